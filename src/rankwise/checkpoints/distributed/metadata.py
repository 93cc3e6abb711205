"""What ``.metadata`` says: the tensors of a distributed checkpoint, and where their pieces lie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rankwise._text import quote
from rankwise.checkpoints.distributed.pieces import Piece, check_cover, is_inside
from rankwise.checkpoints.distributed.program import Translator, list_dtypes
from rankwise.checkpoints.pytorch.archive import load_program
from rankwise.checkpoints.pytorch.inert import InertObject
from rankwise.checkpoints.safety import convert_errors, format_path
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeGuard

    from rankwise.checkpoints.source import FileSource

_KIND = "the metadata of a distributed checkpoint"
_MAX_SIZE = 32 * 2**20
_MAX_DIMENSIONS = 64
_MAX_NUMBERS = 2**62
_MAX_PATH = 64  # levels of nested dictionaries
_MAX_PIECES_PER_PLACE = 8

Route = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SplitTensor:
    """A tensor, the pieces that it is put together from, and what is wrong with them, if so."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Metadata:
    """All tensors by name, and how many items are something else."""

    tensors: tuple[SplitTensor, ...]
    routes: Mapping[str, Route]  # of names: the keys of the nested dictionaries that were saved
    others: int


class Record(InertObject):
    """An object of a class that PyTorch describes checkpoints by: its fields, and no behaviour."""

    __slots__ = ()

    def read(self, name: str) -> object:
        """Return a field, None where there is none."""
        state = self.content
        return state.get(name) if isinstance(state, dict) else None


class _Metadata(Record):
    __slots__ = ()


class _Tensor(Record):
    __slots__ = ()


class _Bytes(Record):
    __slots__ = ()


class _Properties(Record):
    __slots__ = ()


class _Chunk(Record):
    __slots__ = ()


class _Index(Record):
    __slots__ = ()


class _Place(Record):
    __slots__ = ()


class _Other(Record):
    """What is of no interest: layouts, memory formats, paths on the machine of the writer."""

    __slots__ = ()


_MODULES: Mapping[str, Mapping[str, type[Record]]] = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata": _Metadata,
        "TensorStorageMetadata": _Tensor,
        "BytesStorageMetadata": _Bytes,
        "TensorProperties": _Properties,
        "ChunkStorageMetadata": _Chunk,
        "MetadataIndex": _Index,
        "StorageMeta": _Other,
        "_MEM_FORMAT_ENCODING": _Other,
    },
    # Up to torch 2.2.
    "torch.distributed._shard.sharded_tensor.metadata": {
        "TensorProperties": _Properties,
        "MEM_FORMAT_ENCODING": _Other,
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo": _Place},
    "torch.serialization": {"_get_layout": _Other},
    "pathlib": dict.fromkeys(("PosixPath", "WindowsPath", "PurePosixPath"), _Other),
    "pathlib._local": dict.fromkeys(("PosixPath", "WindowsPath", "PurePosixPath"), _Other),
}
# The names here can't be those of the classes that a program has allowed for its own files.
_CLASSES = [
    (kind, f"rankwise.{kind.__name__}")
    for kind in (_Metadata, _Tensor, _Bytes, _Properties, _Chunk, _Index, _Place, _Other)
]
_NAMES = {
    **list_dtypes(),
    b"torch.Size": b"torch.Size",
    **{
        f"{module}.{name}".encode(): f"rankwise.{kind.__name__}".encode()
        for module, kinds in _MODULES.items()
        for name, kind in kinds.items()
    },
}


def read_metadata(source: FileSource) -> Metadata:
    """Read which tensors a distributed checkpoint has, and where their pieces lie."""
    path = source.path
    if source.size > _MAX_SIZE:
        raise CheckpointError(
            f"{format_path(path)}: too large for {_KIND} (more than {_MAX_SIZE} bytes)."
        )
    program = Translator(path, source.read(0, source.size), _NAMES).translate()
    root = load_program(source, program, _CLASSES)
    with convert_errors(path, _KIND):
        if not isinstance(root, _Metadata):
            raise CheckpointError(f"{format_path(path)}: not {_KIND}.")
        try:
            return _read_root(root)
        except CheckpointError as error:  # knows no path
            raise CheckpointError(f"{format_path(path)}: {error}; damaged or malicious.") from error


def _read_root(root: _Metadata) -> Metadata:
    items = root.read("state_dict_metadata")
    places = _read_places(root.read("storage_data"))
    planned = root.read("planner_data")
    routes = _read_routes(planned) if isinstance(planned, dict) else {}
    if not isinstance(items, dict) or not all(isinstance(name, str) for name in items):
        raise CheckpointError("has no table of tensors by name")
    # The network's order is that of the routes, where one process knows all names.
    names = dict.fromkeys([*(name for name in routes if name in items), *items])
    _check_number(items.values(), len(places))
    tensors = [
        _read_tensor(name, items[name], places)
        for name in names
        if isinstance(items[name], _Tensor)
    ]
    return Metadata(tuple(tensors), routes, len(items) - len(tensors))


def _read_routes(table: dict[object, object]) -> dict[str, Route]:
    """Return the keys that lead to each name, where they are given in the usual form."""
    return {
        name: route
        for name, route in table.items()
        if isinstance(name, str)
        and isinstance(route, tuple)
        and 0 < len(route) <= _MAX_PATH
        and all(type(key) in (str, int) for key in route)
    }


def _read_places(table: object) -> dict[tuple[str, tuple[int, ...]], _Place]:
    """Return the places of all pieces, by the name of the tensor and where the piece begins."""
    if not isinstance(table, dict):
        raise CheckpointError("has no table of places")
    places = {}
    for index, place in table.items():
        if not isinstance(index, _Index) or not isinstance(place, _Place):
            raise CheckpointError("has a table of places with something else in it")
        name, offsets = index.read("fqn"), index.read("offset")
        if isinstance(name, str) and isinstance(offsets, torch.Size):
            if (name, tuple(offsets)) in places:
                raise CheckpointError(f"gives two places for one piece of {quote(name)}")
            places[name, tuple(offsets)] = place
    return places


def _check_number(items: Iterable[object], places: int) -> None:
    """Raise ``CheckpointError`` if there are more pieces than places: tensors can share a list.

    Pieces without numbers may have no place.
    """
    lists = [item.read("chunks") for item in items if isinstance(item, _Tensor)]
    count = sum(len(chunks) for chunks in lists if isinstance(chunks, list))
    if count > _MAX_PIECES_PER_PLACE * places + len(lists):
        raise CheckpointError("describes more pieces of tensors than it has places for")


def _read_tensor(
    name: str, item: Record, places: Mapping[tuple[str, tuple[int, ...]], _Place]
) -> SplitTensor:
    properties, shape, chunks = (item.read(field) for field in ("properties", "size", "chunks"))
    state = properties.content if isinstance(properties, _Properties) else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    if isinstance(state, dict):  # as before torch 2.0
        dtype = state.get("dtype")
    if not isinstance(dtype, torch.dtype) or not _is_shape(shape) or not isinstance(chunks, list):
        raise CheckpointError(
            f"does not describe the shape, the type and the pieces of {quote(name)}"
        )
    sides = tuple(shape)
    try:
        pieces = tuple(_read_pieces(name, sides, chunks, places))
        check_cover(sides, pieces)
        _check_lengths(dtype, pieces)
    except CheckpointError as error:
        return SplitTensor(name, sides, dtype, (), str(error))
    return SplitTensor(name, sides, dtype, pieces)


def _is_shape(shape: object) -> TypeGuard[torch.Size]:
    return (
        isinstance(shape, torch.Size)
        and len(shape) <= _MAX_DIMENSIONS
        and min(shape, default=0) >= 0
        and math.prod(max(side, 1) for side in shape) < _MAX_NUMBERS
    )


def _read_pieces(
    name: str,
    shape: tuple[int, ...],
    chunks: list[object],
    places: Mapping[tuple[str, tuple[int, ...]], _Place],
) -> Iterator[Piece]:
    for chunk in chunks:
        offsets, sizes = (
            (chunk.read("offsets"), chunk.read("sizes"))
            if isinstance(chunk, _Chunk)
            else (None, None)
        )
        if not isinstance(offsets, torch.Size) or not isinstance(sizes, torch.Size):
            raise CheckpointError("one of its pieces is not described")
        if not is_inside(shape, offsets, sizes):
            raise CheckpointError("one of its pieces lies outside of its shape")
        if not math.prod(sizes):
            continue
        place = places.get((name, tuple(offsets)))
        if place is None:
            raise CheckpointError("one of its pieces is in no file")
        yield _read_place(tuple(offsets), tuple(sizes), place)


def _read_place(offsets: tuple[int, ...], sizes: tuple[int, ...], place: _Place) -> Piece:
    file, start, length = (place.read(name) for name in ("relative_path", "offset", "length"))
    transforms = place.read("transform_descriptors") or []
    if (
        not isinstance(file, str)
        or type(start) is not int
        or type(length) is not int
        or min(start, length) < 0
        or not isinstance(transforms, list)
        or not all(isinstance(text, str) for text in transforms)
    ):
        raise CheckpointError("the place of one of its pieces is not described")
    return Piece(offsets, sizes, file, start, length, tuple(transforms))


def _check_lengths(dtype: torch.dtype, pieces: tuple[Piece, ...]) -> None:
    """Raise ``CheckpointError`` if a piece has fewer bytes than its numbers take."""
    plain = (piece for piece in pieces if not piece.transforms)
    if any(piece.count * dtype.itemsize > piece.length for piece in plain):
        raise CheckpointError("one of its pieces has fewer bytes than numbers")
