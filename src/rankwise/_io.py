"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from rankwise.errors import ArgumentError


def refuse_overwrite(target: Path, inputs: Iterable[Path]) -> None:
    """Refuse to overwrite an input file.

    Raises:
        ArgumentError: If `target` is one of the inputs.
    """
    if any(target.exists() and source.exists() and target.samefile(source) for source in inputs):
        raise ArgumentError(f"{target} is an input and would be overwritten; choose another name.")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that after a crash there is either the old one or the new one.

    Raises:
        OSError: If it can't be written; the old file is unchanged.
    """
    path = path.resolve()  # a link keeps pointing to the file
    if path.exists() and not path.is_file():  # /dev/null must not be replaced by a file
        path.write_bytes(content)
        return
    # Not tempfile, whose files only their owner may read.
    temporary = path.with_name(f".rankwise-{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # name the file itself, not the temporary one or none
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power failure, where the system can."""
    with contextlib.suppress(OSError):  # folders can't be opened on Windows
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
