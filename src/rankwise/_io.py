"""Files: written whole or not at all; what to say of a path that does not exist."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from rankwise._text import sanitize, suggest_names
from rankwise.errors import ArgumentError

_SCHEMES = ("http", "https", "s3", "gs", "ftp")
_MAX_ENTRIES = 1000  # of a folder, that a misspelled name is compared with


def refuse_overwrite(target: Path, inputs: Iterable[Path]) -> None:
    """Refuse to overwrite an input file.

    Raises:
        ArgumentError: If `target` is one of the inputs.
    """
    if any(target.exists() and source.exists() and target.samefile(source) for source in inputs):
        raise ArgumentError(f"{target} is an input and would be overwritten; choose another name.")


def explain_missing(path: Path) -> str:
    """Return a sentence for a path that does not exist: that it is an address, or similar names.

    Example:
        >>> explain_missing(Path("no/such/file.pt"))
        'no/such/file.pt: no such file or folder.'
    """
    if address := find_address(path):
        return f"{address}: a web address can't be opened; download the file first."
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _MAX_ENTRIES)]
    except (OSError, ValueError):  # no such folder, or a null character in its name
        names = []
    return f"{sanitize(str(path))}: no such file or folder.{suggest_names(path.name, names)}"


def find_address(path: Path) -> str | None:
    """Return the web address that was given as a path; None if it is none.

    Example:
        >>> find_address(Path("https://host/model.pt")), find_address(Path("model.pt"))
        ('https://host/model.pt', None)
    """
    scheme, colon, rest = sanitize(str(path)).partition(":/")
    # pathlib makes one slash of two
    is_address = colon and scheme.lower() in _SCHEMES and not os.path.lexists(path)
    return f"{scheme}://{rest.lstrip('/')}" if is_address else None


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
