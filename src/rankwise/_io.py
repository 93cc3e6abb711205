"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from rankwise.errors import ArgumentError

__all__ = ["check_not_input", "write_bytes"]


def check_not_input(target: Path, sources: Iterable[Path]) -> None:
    """See that writing a file destroys none that is read.

    Raises:
        ArgumentError: If it is one of them.
    """
    if any(target.exists() and source.exists() and target.samefile(source) for source in sources):
        raise ArgumentError(f"{target} is an input; it would be overwritten. Give another name.")


def write_bytes(path: Path, content: bytes) -> None:
    """Writes beside the file first, then puts it in its place in one step.

    Raises:
        OSError: If it can't be written; what stood there before is left as it was.
    """
    path = path.resolve()  # a link keeps pointing to the file
    if path.exists() and not path.is_file():  # /dev/null must not be replaced by a file
        path.write_bytes(content)
        return
    # Not tempfile, whose files only their owner may read.
    fresh = path.with_name(f".rankwise-{secrets.token_hex(6)}.tmp")
    try:
        with fresh.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:  # a full disk tells no name, or that of the file beside
        fresh.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
