"""Which paths may be opened: regular files, and inside a folder only what belongs to it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from rankwise._text import quote
from rankwise.checkpoints.failures import shown
from rankwise.errors import CheckpointError, UnsafeFileError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_folder", "regular_size", "within"]


def is_folder(path: Path) -> bool:
    """Tells a folder from a file.

    Args:
        path: A path.

    Returns:
        Whether it is a folder.

    Raises:
        CheckpointError: There is nothing at this path, or it can't be reached.
    """
    return stat.S_ISDIR(_status(path).st_mode)


def regular_size(path: Path) -> int:
    """Checks that a path is a regular file which may be read; a pipe or device could wait forever.

    Args:
        path: A path.

    Returns:
        The file's size in bytes.

    Raises:
        CheckpointError: It is missing, no regular file, or may not be read.
    """
    status = _status(path)
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(
            f"{shown(path)}: not a regular file (a pipe, socket or device); save it as one."
        )
    if not os.access(path, os.R_OK):
        raise CheckpointError(f"{shown(path)}: permission denied; it must be readable for you.")
    return status.st_size


def within(folder: Path, name: str) -> Path:
    """Finds a file that another file of the same folder names.

    Args:
        folder: The folder that must not be left.
        name: The name, as written in a file that nobody vouches for.

    Returns:
        The path, which may not exist.

    Raises:
        UnsafeFileError: The name is absolute, climbs with "..", or leads out by a link.
    """
    parts = name.replace("\\", "/").split("/")
    drive = parts[0][1:2] == ":"  # C:file, on systems that have drives
    if not name or "\0" in name or parts[0] == "" or drive or ".." in parts:
        raise UnsafeFileError(
            f"{shown(folder)}: names {quote(name)}, which isn't a file inside its own folder; "
            "nothing was read."
        )
    path = folder / name
    try:
        real, home = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:  # a link that leads to itself
        raise CheckpointError(f"{shown(path)}: can't be reached.") from error
    if not real.is_relative_to(home) and real.parent != _blobs(home):
        raise UnsafeFileError(
            f"{shown(path)}: a link that leads out of its folder; nothing was read. "
            "Give the path of the real file, or copy it into the folder."
        )
    return path


def _blobs(home: Path) -> Path | None:
    """Where a Hugging Face cache keeps the files that snapshots/<revision>/ links to."""
    snapshots = next((parent for parent in home.parents if parent.name == "snapshots"), None)
    return None if snapshots is None else snapshots.parent / "blobs"


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError as error:
        raise CheckpointError(f"{shown(path)}: no such file or folder.") from error
    except PermissionError as error:
        raise CheckpointError(f"{shown(path)}: permission denied.") from error
    except (OSError, ValueError) as error:  # ValueError: a path that holds a null byte
        raise CheckpointError(f"{shown(path)}: can't be reached.") from error
