"""The header of a GGUF file: its metadata, and where each tensor lies.

Written from the format's specification, versions 2 and 3, in either byte order. The package `gguf`
has a reader too, but it maps the file into memory and believes every count that the file names.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankwise._text import quote
from rankwise.checkpoints.safety import convert_errors, format_path
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankwise.checkpoints.source import ByteOrder, FileSource, OpenSource

_VERSIONS = (2, 3)
# Codes of metadata types: numbers by their code of `struct`, then texts and arrays.
_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_MAX_TEXT = 2**16  # bytes of a key, a name or a value that is kept
_MAX_KEPT = 4096  # numbers of an array that is kept, as those of heads in each layer are
_MAX_TEXTS = 10_000_000  # in arrays, as those of a vocabulary; more would only take time
_MAX_DEPTH = 4  # of arrays in arrays
_MAX_SIDES = 4  # of a tensor, the format's own limit
_MIN_ENTRY = 13  # bytes: a key's length, a type, a value
_MIN_TENSOR = 24  # bytes: a name's length, a number of sides, a type, an offset
_DEFAULT_ALIGNMENT = 32
_CHUNK = 2**20

Value = int | float | bool | str | list[int | float | bool]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What the header says of a tensor."""

    name: str
    shape: tuple[int, ...]  # as numpy has it: the format names the fastest axis first
    type: int
    start: int  # of its data in the file


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file."""

    byteorder: ByteOrder
    metadata: Mapping[str, Value]  # without long arrays, such as the vocabulary
    tensors: tuple[TensorInfo, ...]


def read_header(source: FileSource) -> Header:
    """Read the header of a GGUF file."""
    with convert_errors(source.path, "a GGUF file"), source.open() as file:
        cursor = _Cursor(source, file)
        cursor.skip(4)
        _read_version(cursor)
        tensor_count, entry_count = cursor.read_number("Q"), cursor.read_number("Q")
        cursor.check_count(entry_count, _MIN_ENTRY)
        metadata: dict[str, Value] = {}
        for _ in range(entry_count):
            key = cursor.read_text()
            value = _read_value(cursor, cursor.read_number("I"))
            if key in metadata:
                raise CheckpointError(
                    f"{format_path(source.path)}: its metadata has the key {quote(key)} twice."
                )
            metadata[key] = "" if value is None else value
        cursor.check_count(tensor_count, _MIN_TENSOR)
        tensors = [_read_tensor(cursor) for _ in range(tensor_count)]
    _check_names(source, tensors)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise CheckpointError(
            f"{format_path(source.path)}: expected a power of two as its alignment; it is damaged."
        )
    begin = -(-cursor.place // alignment) * alignment
    placed = (TensorInfo(info.name, info.shape, info.type, begin + info.start) for info in tensors)
    return Header(cursor.byteorder, metadata, tuple(placed))


class _Cursor:
    """Reads a file from its beginning on, some of it at a time."""

    def __init__(self, source: FileSource, file: OpenSource) -> None:
        self.place = 0
        self.byteorder: ByteOrder = "little"
        self.texts_left = _MAX_TEXTS
        self._source = source
        self._file = file
        self._start = 0  # of the bytes at hand
        self._bytes = b""

    def build_error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{format_path(self._source.path)}: {what}.")

    def check_count(self, count: int, size: int) -> None:
        """Raise ``CheckpointError`` if the file is too short for so many items of a size."""
        left = self._source.size - self.place
        if count * size > left:
            raise self.build_error(
                f"its header claims {count} items of at least {size} bytes, but only {left} bytes "
                "are left; it is truncated or damaged"
            )

    def skip(self, count: int) -> None:
        self.check_count(count, 1)
        self.place += count

    def read(self, count: int) -> bytes:
        self.check_count(count, 1)
        at = self.place - self._start
        if at < 0 or at + count > len(self._bytes):
            size = min(max(count, _CHUNK), self._source.size - self.place)
            self._start, self._bytes, at = self.place, self._file.read(self.place, size), 0
        self.place += count
        return self._bytes[at : at + count]

    def read_numbers(self, code: str, count: int) -> list[int]:
        order = "<" if self.byteorder == "little" else ">"
        size = struct.calcsize(f"{order}{code}")
        self.check_count(count, size)
        return list(struct.unpack(f"{order}{count}{code}", self.read(count * size)))

    def read_number(self, code: str) -> int:
        return self.read_numbers(code, 1)[0]

    def read_text(self) -> str:
        length = self.read_number("Q")
        if length > _MAX_TEXT:
            raise self.build_error(
                f"a name in its header claims {length} bytes, more than {_MAX_TEXT}; it is damaged"
            )
        return self.read(length).decode("utf-8", "backslashreplace")


def _read_version(cursor: _Cursor) -> None:
    raw = cursor.read(4)
    little, big = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
    version = little
    if little & 0xFFFF == 0:  # a small number whose bytes are the other way round
        version, cursor.byteorder = big, "big"
    if version not in _VERSIONS:
        raise cursor.build_error(
            f"of GGUF version {version}, but only versions 2 and 3 can be read; convert the model "
            "with a current llama.cpp"
        )


def _read_value(cursor: _Cursor, kind: int, depth: int = 0) -> Value | None:
    """Read a value; return None for one that is too long to be of use here."""
    if kind in _NUMBERS:
        return cursor.read_number(_NUMBERS[kind])
    if kind == _TEXT:
        length = cursor.read_number("Q")
        if length > _MAX_TEXT:  # as a chat template may be
            cursor.skip(length)
            return None
        return cursor.read(length).decode("utf-8", "backslashreplace")
    if kind == _ARRAY and depth < _MAX_DEPTH:
        return _read_array(cursor, depth)
    raise cursor.build_error(f"its metadata has a value of the unknown type {kind}; it is damaged")


def _read_array(cursor: _Cursor, depth: int) -> Value | None:
    kind, count = cursor.read_number("I"), cursor.read_number("Q")
    if kind in _NUMBERS:
        code = _NUMBERS[kind]
        if count <= _MAX_KEPT:
            return list(cursor.read_numbers(code, count))
        cursor.skip(count * struct.calcsize(f"<{code}"))
        return None
    cursor.check_count(count, 8 if kind == _TEXT else 12)
    cursor.texts_left -= count
    if cursor.texts_left < 0:
        raise cursor.build_error(f"its metadata holds more than {_MAX_TEXTS} texts; it is damaged")
    for _ in range(count):
        if kind == _TEXT:
            cursor.skip(cursor.read_number("Q"))
        else:
            _read_value(cursor, kind, depth + 1)
    return None


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    name = cursor.read_text()
    sides = cursor.read_number("I")
    if sides > _MAX_SIDES:
        raise cursor.build_error(
            f"{quote(name)} claims {sides} dimensions, more than {_MAX_SIDES}; the file is damaged"
        )
    shape = tuple(reversed(cursor.read_numbers("Q", sides)))
    # A product of 2^63 would not fit even where a later side is 0.
    if any(side >= 2**63 for side in shape) or math.prod(max(side, 1) for side in shape) >= 2**63:
        raise cursor.build_error(f"{quote(name)} claims an absurd shape; the file is damaged")
    return TensorInfo(name, shape, cursor.read_number("I"), cursor.read_number("Q"))


def _check_names(source: FileSource, tensors: list[TensorInfo]) -> None:
    name, count = next(iter(Counter(info.name for info in tensors).most_common(1)), ("", 0))
    if count > 1:
        raise CheckpointError(
            f"{format_path(source.path)}: contains the tensor {quote(name)} twice; it is damaged."
        )
