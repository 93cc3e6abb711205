"""The directory of a zip archive, checked before anything in it is read."""

from __future__ import annotations

import zipfile
from collections import Counter
from typing import TYPE_CHECKING

from rankwise._text import quote
from rankwise.checkpoints.failures import reading, shown
from rankwise.checkpoints.safety import regular_size
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["require_stored", "zip_entries"]

_LOCAL_HEADER = 30  # bytes before an entry's data, at the least
_ENCRYPTED = 0x1


def zip_entries(path: Path) -> list[zipfile.ZipInfo]:
    """Reads a zip archive's directory.

    Args:
        path: The archive.

    Returns:
        Its entries, in order.

    Raises:
        CheckpointError: It is truncated, a name occurs twice, or entries overlap or leave the file.
    """
    size = regular_size(path)
    with reading(path, "a zip archive"), zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    names = Counter(entry.filename for entry in entries)
    if len(names) != len(entries):
        name = names.most_common(1)[0][0]
        raise CheckpointError(f"{shown(path)}: holds the entry {quote(name)} twice.")
    for entry in entries:
        if entry.header_offset + _LOCAL_HEADER + entry.compress_size > size:
            raise CheckpointError(
                f"{shown(path)}: the entry {quote(entry.filename)} lies beyond the end of the "
                "file; it is truncated or damaged."
            )
        if entry.flag_bits & _ENCRYPTED:
            raise CheckpointError(f"{shown(path)}: its entries are encrypted; decrypt it first.")
    # Entries that share their bytes are how a small archive unpacks into a huge one.
    if sum(_LOCAL_HEADER + entry.compress_size for entry in entries) > size:
        raise CheckpointError(f"{shown(path)}: its entries overlap; it is damaged or a trap.")
    return entries


def require_stored(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Checks that entries are stored as they are, so that they can be mapped.

    Args:
        path: The archive, for messages.
        entries: Its entries.

    Raises:
        CheckpointError: An entry is compressed, or its two sizes differ.
    """
    for entry in entries:
        stored = entry.compress_type == zipfile.ZIP_STORED
        if not stored or entry.file_size != entry.compress_size:
            raise CheckpointError(
                f"{shown(path)}: its entry {quote(entry.filename)} is compressed, which PyTorch "
                "never does; save the checkpoint again with torch.save."
            )
