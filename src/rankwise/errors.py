"""The exceptions that rankwise raises, and the warning about layers.

RankwiseError
├── ArgumentError            (also a ValueError) an argument out of range
├── CheckpointError          a file or mapping that can't be read as weights
│   └── UnsafeFileError      reading it would run code, or leave its folder
├── ConfigError              an unknown option of a run or a study, or one out of range
├── DataError                a dataset that is missing or can't be read
├── DistributedError         another process did not answer
├── MissingExtraError        an optional package is needed for this
├── NotFiniteError           a matrix that holds NaN or infinity
├── ProbeMismatchError       two probes without a common layer
├── RunError                 a run that can't be read, written or resumed
├── TargetError              (also a TypeError) not a module, a mapping or a path
└── UnknownLayerError        (also a KeyError) a name that no layer has

LayerWarning                 (a UserWarning) a layer goes wrong in training
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rankwise._text import quote, suggest_names

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ArgumentError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DistributedError",
    "LayerWarning",
    "MissingExtraError",
    "NotFiniteError",
    "ProbeMismatchError",
    "RankwiseError",
    "RunError",
    "TargetError",
    "UnknownLayerError",
    "UnsafeFileError",
]


class RankwiseError(Exception):
    """Base class of all exceptions of rankwise; the message is a sentence for the user.

    Example:
        >>> import rankwise
        >>> try:
        ...     rankwise.probe("no-such-file.pt")
        ... except rankwise.RankwiseError as error:
        ...     print(error)
        no-such-file.pt: no such file or folder.
    """


class ArgumentError(RankwiseError, ValueError):
    """An argument is out of range; the message says what was expected and what was given.

    Example:
        >>> import torch, rankwise
        >>> try:
        ...     rankwise.probe({"w": torch.ones(2, 2)}, p=0)
        ... except rankwise.ArgumentError as error:
        ...     print(error)
        Expected p > 0 (2 for Eq. 2, 1 for the nuclear norm), got 0.
    """


class CheckpointError(RankwiseError):
    """A file, folder or mapping that can't be read as weights.

    Example:
        >>> import rankwise
        >>> issubclass(rankwise.CheckpointError, RankwiseError)
        True
    """


class UnsafeFileError(CheckpointError):
    """A file that would run code or points outside its own folder; nothing was run.

    Example:
        >>> import rankwise
        >>> issubclass(rankwise.UnsafeFileError, rankwise.CheckpointError)
        True
    """


class ConfigError(RankwiseError, ValueError):
    """An option is unknown or out of range; the message says what was expected."""


class DataError(RankwiseError):
    """A dataset is missing or damaged; the message says where to put it or what is wrong."""


class DistributedError(RankwiseError, RuntimeError):
    """Another process of a distributed run did not take part in sharing the probe's results.

    Example:
        >>> import rankwise
        >>> issubclass(rankwise.DistributedError, RuntimeError)
        True
    """


class MissingExtraError(RankwiseError, ImportError):
    """An optional package is missing; the message says which to install.

    Args:
        package: The package, or its module, that could not be imported.
        extra: The extra of rankwise that it belongs to; the message names all of its packages that
            are not installed.
        purpose: What it is needed for, as in "Reading .onnx files".

    Example:
        >>> import rankwise
        >>> str(rankwise.MissingExtraError("onnx", "onnx", "Reading .onnx files"))
        "Reading .onnx files needs the package 'onnx': pip install onnx"
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        module = package.partition(".")[0]
        name = _PACKAGES.get(module, module)
        missing = " ".join([name, *_list_missing(extra, name)])
        super().__init__(f"{purpose} needs the package '{name}': pip install {missing}")


# What is installed under another name than it is imported.
_PACKAGES = {
    "PIL": "pillow",
    "lightning_fabric": "lightning-fabric",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
}


def _list_missing(extra: str, known: str) -> list[str]:
    """Return the packages of an extra that are not installed, except a known one."""
    from importlib import metadata  # noqa: PLC0415 - slow to import, and needed for an error only

    try:
        lines = metadata.requires("rankwise") or []
    except metadata.PackageNotFoundError:  # run from its source, without being installed
        return []
    names = []
    for requirement, _, marker in (line.partition(";") for line in lines):
        name = re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]
        belongs = marker.strip().replace('"', "'") == f"extra == '{extra}'"
        if not belongs or name in (known, "rankwise"):
            continue
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            names.append(name)
    return names


class NotFiniteError(RankwiseError, ValueError):
    """A matrix holds NaN or infinity, so it has no spectrum.

    Example:
        >>> import torch, rankwise
        >>> rankwise.probe({"w": torch.full((4, 4), float("nan"))}).layers[0].status.value
        'not finite'
    """


class ProbeMismatchError(RankwiseError):
    """Two probes have no layer in common, so there is nothing to compare.

    Example:
        >>> import rankwise
        >>> issubclass(rankwise.ProbeMismatchError, RankwiseError)
        True
    """


class RunError(RankwiseError):
    """A run can't be started or resumed; the message says what is saved and what to do."""


class TargetError(RankwiseError, TypeError):
    """The target of a probe is neither a module, nor a mapping of tensors, nor a path.

    Example:
        >>> import rankwise
        >>> try:
        ...     rankwise.probe(3)
        ... except rankwise.TargetError as error:
        ...     print(error)
        Expected a module, a mapping of tensors or a path, got int.
    """


class UnknownLayerError(RankwiseError, KeyError):
    """No layer of a probe has this name; the message has the most similar names.

    Args:
        name: The name that was asked for.
        known: The names of all layers.

    Example:
        >>> import torch, rankwise
        >>> try:
        ...     rankwise.probe({"conv.weight": torch.ones(2, 2)})["conf.weight"]
        ... except rankwise.UnknownLayerError as error:
        ...     print(error)
        There is no layer 'conf.weight'. Did you mean conv.weight? `layers` lists them all.
    """

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        super().__init__(name, known)

    def __str__(self) -> str:
        name, known = self.args
        hint = suggest_names(str(name), known)
        return f"There is no layer {quote(str(name))}.{hint} `layers` lists them all."


class LayerWarning(UserWarning):
    """A layer goes wrong in training; `LayerMonitor` warns of each layer and kind once.

    Example:
        >>> import warnings, rankwise
        >>> with warnings.catch_warnings():  # end the training instead
        ...     warnings.simplefilter("error", rankwise.LayerWarning)
    """
