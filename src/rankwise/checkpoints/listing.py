"""The names in a folder, and those that are only written in a file."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from rankwise.checkpoints.ordering import sort_names
from rankwise.checkpoints.safety import convert_errors, format_path, is_folder, safe_join
from rankwise.checkpoints.source import open_source
from rankwise.errors import CheckpointError, RankwiseError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_NAME = 4096  # bytes of a file that contains a name
_KNOWN = ".metadata"  # of the names that begin with a dot, the one that means something
_MAX_FOLDERS = 100  # folders whose content is looked at


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, without hidden ones and locks."""
    with convert_errors(folder, "a folder"):
        names = [path.name for path in folder.iterdir()]
    visible = [name for name in names if not name.startswith(".") or name == _KNOWN]
    return sorted(name for name in visible if not name.endswith(".lock"))


def list_inside(folder: Path, name: str) -> list[str]:
    """Return the names in a folder of a folder; none if it is a file or leads elsewhere."""
    try:
        path = safe_join(folder, name)
        return list_names(path) if is_folder(path) else []
    except RankwiseError:
        return []


def find_matches(folder: Path, names: list[str], pattern: str) -> list[str]:
    """Return the names that match a pattern, those of folders after "/" if it has one.

    They are in the order of the numbers in them.
    """
    head, _, rest = pattern.partition("/")
    found = sort_names(name for name in names if fnmatchcase(name, head))
    if not rest:
        return found
    return [
        name
        for name in found[-_MAX_FOLDERS:]
        if any(fnmatchcase(inner, rest) for inner in list_inside(folder, name))
    ]


def read_name(path: Path) -> str:
    """Return the name that a small file contains, as the tag of a checkpoint is written."""
    source = open_source(path)
    if source.size > _MAX_NAME:
        raise CheckpointError(f"{format_path(path)}: too large for a file with a name.")
    return source.read(0, source.size).decode("utf-8", "replace").strip()
