"""An ONNX file → where its tensors lie, found without loading them.

ONNX files are protocol buffers: fields of a number and a value, messages inside messages. Parsing
one as a whole would take all its weights into memory, so the fields are walked here and only the
few that describe a tensor are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["StoredTensor", "fields", "model_tensors"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DEEPEST = 32
_LONGEST_TEXT = 2**16


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    Attributes:
        number: Which field it is.
        value: Its value, where it is a number; otherwise 0.
        start: Where its content begins in the file, where it has one; otherwise -1.
        end: Where its content ends.
    """

    number: int
    value: int
    start: int
    end: int


@dataclass(slots=True)
class StoredTensor:
    """A tensor's description, and where in the file it lies.

    Attributes:
        name: Its name, or the name of the Constant node that gives it.
        start: Where its message begins.
        end: Where its message ends.
        data_type: ONNX's number for its type.
        shape: Its shape.
        raw: How many bytes of raw data it has; None where its values are listed instead.
        external: Where its data lies in another file: "location", "offset", "length".
        elsewhere: Whether its data lies in another file.
        sparse: Whether it is stored sparsely.
    """

    name: str
    start: int
    end: int
    data_type: int = 0
    shape: list[int] = field(default_factory=list)
    raw: int | None = None
    external: dict[str, str] = field(default_factory=dict)
    elsewhere: bool = False
    sparse: bool = False


def fields(file: BinaryIO, start: int, end: int) -> Iterator[Field]:
    """Walks the fields of one message.

    Args:
        file: The open file.
        start: Where the message begins.
        end: Where it ends.

    Yields:
        Its fields, in order.

    Raises:
        ValueError: The bytes aren't fields of a message, or leave it.
    """
    place = start
    while place < end:
        file.seek(place)
        tag = _varint(file)
        kind, value, begin = tag & 7, 0, -1
        if kind == _VARINT:
            value = _varint(file)
            place = file.tell()
        elif kind == _BYTES:
            length = _varint(file)
            begin = file.tell()
            place = begin + length
        elif kind in (_FIXED64, _FIXED32):
            place = file.tell() + (8 if kind == _FIXED64 else 4)
        else:
            raise ValueError(f"no field begins at byte {place}")
        if place > end:
            raise ValueError(f"a field reaches {place - end} bytes beyond its message")
        yield Field(tag >> 3, value, begin, place)


def model_tensors(file: BinaryIO, size: int) -> Iterator[StoredTensor]:
    """Finds the initializers and constants of a model, those of subgraphs too.

    Args:
        file: The open file.
        size: Its size.

    Yields:
        Tensors in the order of the file.

    Raises:
        ValueError: It isn't an ONNX model.
    """
    for part in _messages(file, 0, size, (7, 20, 25)):
        if part.number == 7:
            yield from _graph(file, part, 0)
        elif part.number == 20:  # training: an initialization and an algorithm, both graphs
            for graph in _messages(file, part.start, part.end, (1, 2)):
                yield from _graph(file, graph, 0)
        else:  # a function: its nodes
            for node in _messages(file, part.start, part.end, (7,)):
                yield from _node(file, node, 0)


def _graph(file: BinaryIO, graph: Field, depth: int) -> Iterator[StoredTensor]:
    if depth > _DEEPEST:
        raise ValueError("its graphs are nested too deep")
    for part in _messages(file, graph.start, graph.end, (1, 5, 15)):
        if part.number == 1:
            yield from _node(file, part, depth)
        else:
            yield _tensor(file, part, None, sparse=part.number == 15)


def _node(file: BinaryIO, node: Field, depth: int) -> Iterator[StoredTensor]:
    output, constant, attributes = "", False, []
    for part in _messages(file, node.start, node.end, (2, 4, 5)):
        if part.number == 2:
            output = output or _text(file, part)
        elif part.number == 4:
            constant = _text(file, part) == "Constant"
        else:
            attributes.append(part)
    for attribute in attributes:
        # 5 and 22: a tensor, a sparse one; 6 and 11: graphs, the branches of If, the body of Loop.
        for part in _messages(file, attribute.start, attribute.end, (5, 6, 11, 22)):
            if part.number in (6, 11):
                yield from _graph(file, part, depth + 1)
            elif constant:
                yield _tensor(file, part, output, sparse=part.number == 22)


def _tensor(file: BinaryIO, part: Field, name: str | None, *, sparse: bool) -> StoredTensor:
    found = StoredTensor(name or "", part.start, part.end, sparse=sparse)
    for item in fields(file, part.start, part.end):
        if sparse:
            _read_sparse(file, item, found)
        else:
            _read_tensor(file, item, found, rename=name is None)
    return found


def _read_tensor(file: BinaryIO, item: Field, found: StoredTensor, *, rename: bool) -> None:
    match item.number:
        case 1:
            found.shape += _integers(file, item)
        case 2:
            found.data_type = item.value
        case 8 if rename and item.start >= 0:
            found.name = _text(file, item)
        case 9 if item.start >= 0:
            found.raw = item.end - item.start
        case 13 if item.start >= 0:
            key, value = _entry(file, item)
            found.external[key] = value
        case 14:
            found.elsewhere = item.value == 1


def _read_sparse(file: BinaryIO, item: Field, found: StoredTensor) -> None:
    if item.number == 1 and item.start >= 0:
        values = _tensor(file, item, None, sparse=False)
        found.name, found.data_type = found.name or values.name, values.data_type
    elif item.number == 3:
        found.shape += _integers(file, item)


def _entry(file: BinaryIO, item: Field) -> tuple[str, str]:
    texts = {
        part.number: _text(file, part) for part in _messages(file, item.start, item.end, (1, 2))
    }
    return texts.get(1, ""), texts.get(2, "")


def _messages(file: BinaryIO, start: int, end: int, numbers: tuple[int, ...]) -> Iterator[Field]:
    return (item for item in fields(file, start, end) if item.number in numbers and item.start >= 0)


def _integers(file: BinaryIO, item: Field) -> list[int]:
    if item.start < 0:
        return [item.value]
    if item.end - item.start > _LONGEST_TEXT:
        raise ValueError("a tensor has too many dimensions")
    file.seek(item.start)
    numbers = []
    while file.tell() < item.end:
        numbers.append(_varint(file))
    return numbers


def _text(file: BinaryIO, item: Field) -> str:
    if item.end - item.start > _LONGEST_TEXT:
        raise ValueError("a name is longer than 64 kB")
    file.seek(item.start)
    return file.read(item.end - item.start).decode("utf-8", "surrogateescape")


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("the file ends inside a field")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("a number is longer than 64 bits")
