"""What rankwise raises on purpose.

RankwiseError
├── CheckpointError          a file or mapping that can't be read as weights
│   └── UnsafeFileError      reading it would run code, or leave its folder
├── MissingExtraError        an optional package is needed for this
├── NotFiniteError           a matrix with NaN or infinity in it
└── ProbeMismatchError       two probes that have nothing to compare
"""

__all__ = [
    "CheckpointError",
    "MissingExtraError",
    "NotFiniteError",
    "ProbeMismatchError",
    "RankwiseError",
    "UnsafeFileError",
]


class RankwiseError(Exception):
    """Base of everything rankwise raises on purpose; its text is a sentence for the user.

    Example:
        >>> import rankwise
        >>> try:
        ...     rankwise.probe("no-such-file.pt")
        ... except rankwise.RankwiseError as error:
        ...     print(error)
        no-such-file.pt: no such file or folder.
    """


class CheckpointError(RankwiseError):
    """A file, folder or mapping that can't be read as weights.

    Example:
        >>> import rankwise
        >>> issubclass(rankwise.CheckpointError, rankwise.RankwiseError)
        True
    """


class UnsafeFileError(CheckpointError):
    """A file that asks to run code, or points outside its own folder; nothing of it was run.

    Example:
        >>> import rankwise
        >>> issubclass(rankwise.UnsafeFileError, rankwise.CheckpointError)
        True
    """


class MissingExtraError(RankwiseError, ImportError):
    """An optional package is missing; the message names the extra to install.

    Args:
        package: The package that could not be imported.
        extra: The extra of rankwise that brings it.
        purpose: What it is needed for, as in "reading .onnx files".

    Example:
        >>> import rankwise
        >>> str(rankwise.MissingExtraError("onnx", "onnx", "Reading .onnx files"))
        "Reading .onnx files needs the package 'onnx': pip install 'rankwise[onnx]'"
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}': pip install 'rankwise[{extra}]'"
        )


class NotFiniteError(RankwiseError, ValueError):
    """A matrix holds NaN or infinity, so it has no spectrum.

    Example:
        >>> import torch, rankwise
        >>> rankwise.probe({"w": torch.full((4, 4), float("nan"))}).layers[0].status.value
        'not finite'
    """


class ProbeMismatchError(RankwiseError):
    """Two probes that share no layer, so that there is nothing to compare.

    Example:
        >>> import rankwise
        >>> issubclass(rankwise.ProbeMismatchError, rankwise.RankwiseError)
        True
    """
