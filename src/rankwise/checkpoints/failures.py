"""Whatever a parser raises on a damaged file → one sentence for the user."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rankwise._text import sanitize
from rankwise.errors import CheckpointError, RankwiseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

__all__ = ["one_line", "reading", "refusing", "shown"]

_LONGEST = 200


def shown(path: Path) -> str:
    """Gives a path as messages show it.

    Args:
        path: A path.

    Returns:
        Its text, printable.
    """
    return sanitize(str(path))


def one_line(error: BaseException) -> str:
    """Gives the first line of an error's text that says something.

    Args:
        error: Any exception.

    Returns:
        One printable line of at most 200 characters, the error's class name where it has no text.
    """
    lines = (line.strip() for line in str(error).splitlines())
    text = next((line for line in lines if line), type(error).__name__)
    return sanitize(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turns every failure inside into a ``CheckpointError`` of one line.

    Args:
        path: The file that is read.
        what: What it is read as, with its article: "a PyTorch file".

    Raises:
        CheckpointError: Instead of whatever was raised; rankwise's own errors pass.
    """
    try:
        yield
    except RankwiseError:
        raise
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise CheckpointError(f"{shown(path)}: can't be read: {reason}.") from error
    except MemoryError as error:
        raise CheckpointError(
            f"{shown(path)}: reading it needs more memory than there is."
        ) from error
    # Parsers raise anything on hostile bytes: KeyError, IndexError, struct.error, RecursionError.
    except Exception as error:
        raise CheckpointError(
            f"{shown(path)}: can't be read as {what}, it may be damaged or truncated: "
            f"{one_line(error)}"
        ) from error


def refusing(path: Path, reason: str) -> Callable[[], Tensor]:
    """Gives the ``load`` of a tensor that can't be read.

    Args:
        path: The file it is in.
        reason: Why it can't.

    Returns:
        A function that raises ``CheckpointError``.
    """

    def load() -> Tensor:
        raise CheckpointError(f"{shown(path)}: {reason}")

    return load
