"""The records of a zip archive, located and checked before any of them is read.

Archives are read here without ``zipfile``'s own reader, which would parse the whole directory again
for every record, or keep the file open.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from rankwise._text import quote
from rankwise.checkpoints.safety import convert_errors, format_path
from rankwise.checkpoints.source import FileSource, OpenSource, allocate, get_buffer
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of the name and of the extra field
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 0x1
_CHUNK = 2**16  # unpacks into 64 MiB at most
_MAX_DEFLATION = 1032  # what deflate can save at most: 258 bytes in 2 bits


@dataclass(frozen=True, slots=True)
class Record:
    """An entry of a zip archive: where its bytes lie, and what they unpack into."""

    name: str
    start: int  # of its data
    stored: int  # bytes in the file
    size: int  # bytes after unpacking
    method: int  # of compression
    checksum: int

    @property
    def is_compressed(self) -> bool:
        """Whether the data must be unpacked."""
        return self.method != zipfile.ZIP_STORED


def list_names(source: FileSource) -> list[str]:
    """Return the names of an archive's entries."""
    with source.open() as file:
        return [entry.filename for entry in _read_directory(source, file)]


def _read_directory(source: FileSource, file: OpenSource) -> list[zipfile.ZipInfo]:
    with (
        convert_errors(source.path, "a zip archive"),
        zipfile.ZipFile(file.as_file()) as archive,
    ):
        return archive.infolist()


def read_records(source: FileSource) -> list[Record]:
    """Return the records of an archive, none of which overlaps another or ends beyond the file."""
    path = source.path
    with source.open() as file:
        entries = _read_directory(source, file)
        _check_names(source, entries)
        records = []
        end = 0
        for entry in sorted(entries, key=lambda entry: entry.header_offset):
            if entry.flag_bits & _ENCRYPTED:
                raise CheckpointError(
                    f"{format_path(path)}: its entries are encrypted; decrypt it."
                )
            record = _locate(source, file, entry)
            if record.start + record.stored > source.size:
                raise CheckpointError(
                    f"{format_path(path)}: the entry {quote(record.name)} lies beyond the end of "
                    "the file, which is truncated or damaged."
                )
            # Entries that share their bytes are how a small archive unpacks into a huge one.
            if entry.header_offset < end:
                raise CheckpointError(
                    f"{format_path(path)}: its entries overlap; damaged or malicious."
                )
            end = record.start + record.stored
            records.append(record)
    places = {entry.filename: place for place, entry in enumerate(entries)}
    return sorted(records, key=lambda record: places[record.name])


def _check_names(source: FileSource, entries: Sequence[zipfile.ZipInfo]) -> None:
    names = Counter(entry.filename for entry in entries)
    if len(names) != len(entries):
        name = names.most_common(1)[0][0]
        raise CheckpointError(
            f"{format_path(source.path)}: contains the entry {quote(name)} twice."
        )


def _locate(source: FileSource, file: OpenSource, entry: zipfile.ZipInfo) -> Record:
    """Return an entry with the place of its data, which only the header before the data tells."""
    try:
        header = file.read(entry.header_offset, _LOCAL_HEADER.size)
        magic, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    except CheckpointError:
        magic = b""
    if magic != _LOCAL_MAGIC:
        raise CheckpointError(
            f"{format_path(source.path)}: the entry {quote(entry.filename)} lies beyond the end of "
            "the file or is not where the directory says; it is truncated or damaged."
        )
    start = entry.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    return Record(
        entry.filename, start, entry.compress_size, entry.file_size, entry.compress_type, entry.CRC
    )


def check_expansion(source: FileSource, record: Record) -> None:
    """Raise ``CheckpointError`` if a record can't unpack into what the directory says."""
    if record.is_compressed:
        valid = record.size <= _MAX_DEFLATION * record.stored
    else:
        valid = record.size == record.stored
    if not valid:
        raise CheckpointError(
            f"{format_path(source.path)}: the entry {quote(record.name)} can't unpack from "
            f"{record.stored} to {record.size} bytes; damaged or malicious."
        )


def read_record(source: FileSource, record: Record) -> Tensor:
    """Return the content of a record as a tensor of bytes; its checksum must agree."""
    if record.is_compressed:
        content = allocate(record.size)
        with source.open() as file:
            _inflate(source, file, record, get_buffer(content))
    else:
        content = source.read_tensor(record.start, record.size)
    if zlib.crc32(get_buffer(content)) != record.checksum:
        raise CheckpointError(
            f"{format_path(source.path)}: can't be read: the entry {quote(record.name)} is "
            "damaged, as its checksum (CRC-32) does not agree."
        )
    return content


def read_beginning(file: OpenSource, record: Record, count: int) -> bytes:
    """Return the first bytes of a record's content, at most `count`."""
    stored = file.read(record.start, min(record.stored, count))
    return zlib.decompressobj(-15).decompress(stored, count) if record.is_compressed else stored


def _inflate(source: FileSource, file: OpenSource, record: Record, view: memoryview) -> None:
    unpacker = zlib.decompressobj(-15)
    place = filled = 0
    while place < record.stored and filled < len(view):
        count = min(_CHUNK, record.stored - place)
        piece = unpacker.decompress(file.read(record.start + place, count), len(view) - filled)
        view[filled : filled + len(piece)] = piece
        place, filled = place + count, filled + len(piece)
    if filled != len(view):
        raise CheckpointError(
            f"{format_path(source.path)}: the entry {quote(record.name)} unpacks into {filled} "
            f"bytes instead of {len(view)}; it is damaged."
        )
