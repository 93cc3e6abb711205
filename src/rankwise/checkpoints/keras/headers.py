"""Headers of HDF5 objects: attributes that are texts, and whether numbers lie in other files.

Written from the format's specification. The HDF5 library takes memory for every text of a list,
and a small file may name one long text many times; of a dataset made of parts of other files it
reads the list of these files as soon as it is opened.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rankwise.checkpoints.keras.indexes import IndexChecker

if TYPE_CHECKING:
    from rankwise.checkpoints.source import OpenSource

Attribute = str | list[str]

_MAX_TEXT = 16 * 2**20  # bytes
_MAX_TEXTS = 64 * 2**20  # of a file
_MAX_BLOCKS = 1000  # of one header
_MIN_READ = 64 * 2**20  # bytes of headers and texts that are read, or four times the file
_MAX_OBJECTS = 200_000  # in all heaps
# Types of messages.
_EXTERNAL, _LAYOUT, _ATTRIBUTE, _CONTINUATION, _NAMES = 0x07, 0x08, 0x0C, 0x10, 0x11
_CHUNKED, _VIRTUAL = 2, 3  # classes of layouts
_STRING, _VARIABLE = 3, 9  # classes of types
_ROOTS = {0: 64, 1: 68, 2: 36, 3: 36}  # where it is said, by the version of the format
_DESCRIPTOR = struct.Struct("<IQI")  # of a text: length, heap, number of the object in it
_HEAP = b"GCOL"


@dataclass(frozen=True, slots=True)
class _Message:
    type: int
    data: bytes


@dataclass(slots=True)
class Header:
    """What the header of an object tells."""

    attributes: dict[str, Attribute] = field(default_factory=dict)
    is_virtual: bool = False  # parts of other datasets, of this file or others
    is_external: bool = False  # numbers without a structure in another file


class HeaderReader:
    """Reads headers of one file, in which addresses and lengths have 8 bytes."""

    def __init__(self, file: OpenSource, size: int) -> None:
        self._file = file
        self._size = size
        self._texts = _MAX_TEXTS
        self._bytes = max(_MIN_READ, 4 * size)
        self._objects = _MAX_OBJECTS
        self._indexes = IndexChecker(file)
        self._heaps: dict[int, dict[int, tuple[int, int]]] = {}  # place and size of each object

    def find_root(self) -> int:
        """Return where the header of the root group lies, as the beginning of the file says.

        The library, asked for the place of an object, also adds up the size of its index, and
        never ends where that leads in a circle.
        """
        place = _ROOTS.get(self._file.read(8, 1)[0])
        if place is None:
            raise ValueError("a file of an unknown version of the format")
        return int.from_bytes(self._file.read(place, 8), "little")

    def read(self, address: int) -> Header:
        """Return what the header of an object tells, with attributes that are texts or lists.

        Attributes that are kept elsewhere than in the header, as those of an object that has very
        many, are left out.
        """
        header = Header()
        for message in self._list_messages(address):
            if message.type == _ATTRIBUTE:
                name, value = self._parse(message.data)
                if value is not None:
                    header.attributes[name] = value
            elif message.type == _LAYOUT:
                header.is_virtual |= self._check_layout(message.data)
            elif message.type == _NAMES:
                tree, names = struct.unpack_from("<QQ", message.data)
                self._indexes.check_tree(tree, key=8)
                self._indexes.check_names(names)
            elif message.type == _EXTERNAL:
                header.is_external = True
        return header

    def _check_layout(self, data: bytes) -> bool:
        """Check the index of a dataset in chunks; return whether it is a virtual one."""
        version, kind = data[0], data[1]
        if version > 3:
            return kind == _VIRTUAL
        sides, kind, start = (data[2], kind, 3) if version == 3 else (kind, data[2], 8)
        if kind == _CHUNKED:  # a key is the size of a chunk, the filters left out, the place
            place = int.from_bytes(data[start : start + 8], "little")
            self._indexes.check_tree(place, key=8 + 8 * sides)
        return False

    def _list_messages(self, address: int) -> Iterator[_Message]:
        """Yield the messages of an object's header, which may go on in other blocks."""
        start = self._read(address, 16)
        if start[:4] == b"OHDR":
            flags = start[5]
            place = address + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
            width = 1 << (flags & 3)
            length = int.from_bytes(self._read(place, width), "little")
            blocks = [(place + width, length)]
            head = 6 if flags & 4 else 4
        elif start[0] == 1:
            blocks, flags, head = [(address + 16, int.from_bytes(start[8:12], "little"))], -1, 8
        else:
            raise ValueError("an object's header of an unknown version")
        for count, (first, length) in enumerate(blocks):
            if count > _MAX_BLOCKS:
                raise ValueError("an object's header goes on in too many blocks")
            content = self._read(first, length)
            for message in _split(content, head, flags):
                if message.type == _CONTINUATION:
                    place, size = struct.unpack_from("<QQ", message.data)
                    is_new = flags >= 0  # with a signature before and a checksum behind
                    blocks.append((place + 4, size - 8) if is_new else (place, size))
                else:
                    yield message

    def _read(self, start: int, count: int) -> bytes:
        self._bytes -= count
        if count > _MAX_TEXT or self._bytes < 0:
            raise ValueError("its headers are larger than a file of this size can need")
        return self._file.read(start, count)

    def _parse(self, data: bytes) -> tuple[str, Attribute | None]:
        version, flags, name_size, type_size, space_size = struct.unpack_from("<BBHHH", data)
        place = 9 if version == 3 else 8
        padding = 8 if version == 1 else 1
        pieces = []
        for size in (name_size, type_size, space_size):
            pieces.append(data[place : place + size])
            place += -(-size // padding) * padding
        name = _decode(pieces[0])
        shape = _parse_space(pieces[2])
        if version not in (1, 2, 3) or (version > 1 and flags & 3) or shape is None:
            return name, None
        if shape and shape[0] == 0:
            return name, []
        texts = self._read_texts(pieces[1], data[place:], shape[0] if shape else 1)
        return name, (texts if shape or texts is None else texts[0])

    def _read_texts(self, kind: bytes, data: bytes, count: int) -> list[str] | None:
        """Return so many texts; None if they are none, or too long."""
        bits, size = int.from_bytes(kind[1:4], "little"), int.from_bytes(kind[4:8], "little")
        step = size if kind[0] & 15 == _STRING else _DESCRIPTOR.size
        if kind[0] & 15 not in (_STRING, _VARIABLE) or not 0 < count * step <= len(data):
            return None
        items = [data[i * step : (i + 1) * step] for i in range(count)]
        if kind[0] & 15 == _VARIABLE:
            if bits & 15 != 1 or size != step:  # a sequence of numbers
                return None
            places = [self._find_object(*_DESCRIPTOR.unpack(item)) for item in items]
            self._texts -= sum(size for _, size in places)
            if self._texts < 0:
                return None
            items = [self._read(*place) if place[1] else b"" for place in places]
        return [_decode(item) for item in items]

    def _find_object(self, length: int, heap: int, number: int) -> tuple[int, int]:
        """Return place and size of a text that lies in a heap, of which a file may have many."""
        if length == 0:
            return 0, 0
        if heap not in self._heaps:
            self._heaps[heap] = dict(self._list_objects(heap))
        place, size = self._heaps[heap][number]
        if length > size:
            raise ValueError("a text is longer than its place in the heap")
        return place, length

    def _list_objects(self, heap: int) -> Iterator[tuple[int, tuple[int, int]]]:
        start = self._file.read(heap, 16)
        end = heap + int.from_bytes(start[8:16], "little")
        if start[:4] != _HEAP or end > self._size:
            raise ValueError("a heap of texts is not where an attribute says")
        place = heap + 16
        while place + 16 <= end:
            number, _, size = struct.unpack("<HHxxxxQ", self._file.read(place, 16))
            if number == 0:  # the rest is free
                return
            self._objects -= 1
            if self._objects < 0:
                raise ValueError(f"its heaps hold more than {_MAX_OBJECTS} texts")
            yield number, (place + 16, size)
            place += 16 + -(-size // 8) * 8


def _split(content: bytes, head: int, flags: int) -> Iterator[_Message]:
    """Split a block of a header into its messages."""
    place = 0
    while place + head <= len(content):
        if flags < 0:
            kind, size = struct.unpack_from("<HH", content, place)
        else:
            kind, size = struct.unpack_from("<BH", content, place)
        place += head
        yield _Message(kind, content[place : place + size])
        place += size


def _parse_space(space: bytes) -> tuple[int, ...] | None:
    """Return the shape of an attribute: () or a length; None for anything else."""
    version, rank = space[0], space[1]
    if rank > 1 or version not in (1, 2) or (version == 2 and space[3] == 2):
        return None
    start = 8 if version == 1 else 4
    return (int.from_bytes(space[start : start + 8], "little"),) if rank else ()


def _decode(text: bytes) -> str:
    return text.partition(b"\0")[0].decode("utf-8", "backslashreplace")
