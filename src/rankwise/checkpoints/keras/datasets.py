"""A dataset of HDF5 → its shape and type, where its numbers lie, or why they can't be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rankwise.checkpoints.keras.chunks import FILTERS, Chunk, ChunkedTensor, list_offsets
from rankwise.checkpoints.safety import build_unreadable
from rankwise.checkpoints.source import ByteOrder, FileSource, StoredTensor, decode
from rankwise.weights.tensor import Status, Weight

if TYPE_CHECKING:
    import h5py

Path = tuple[str, ...]
Obstacle = tuple[Status, str]

# What the chunks of a file may unpack into: so many times its size, or so many bytes.
_MAX_EXPANSION = 100
_MIN_EXPANDED = 64 * 2**20
_MAX_CHUNKS = 200_000
_MAX_COMPACT = 16 * 2**20  # bytes of datasets that lie in headers; each has at most 64 KiB
_MAX_FILTERS = 8
_MAX_SIDE = 2**63
_NOTHING = "no numbers are stored for it"
_INTEGERS = {
    (1, True): torch.int8,
    (2, True): torch.int16,
    (4, True): torch.int32,
    (8, True): torch.int64,
    (1, False): torch.uint8,
    (2, False): torch.uint16,
    (4, False): torch.uint32,
    (8, False): torch.uint64,
}
# Sign, exponent and mantissa: where they begin, and how long the latter are; the exponent's bias.
_FLOATS = {
    (2, 15, 10, 5, 0, 10, 15): torch.float16,
    (2, 15, 7, 8, 0, 7, 127): torch.bfloat16,
    (4, 31, 23, 8, 0, 23, 127): torch.float32,
    (8, 63, 52, 11, 0, 52, 1023): torch.float64,
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset: its description, and how to load it."""

    path: Path
    weight: Weight  # as it is stored, named by its path

    @property
    def shape(self) -> tuple[int, ...]:
        """The stored shape."""
        return self.weight.shape

    def rename(self, path: Path) -> Dataset:
        """Return the dataset under another path that leads to it."""
        return (
            self if path == self.path else Dataset(path, replace(self.weight, name="/".join(path)))
        )


class Budget:
    """What the datasets of a file may take together."""

    def __init__(self, source: FileSource) -> None:
        self._stored = source.size
        self._expanded = max(_MIN_EXPANDED, _MAX_EXPANSION * source.size)
        self.chunks = _MAX_CHUNKS  # how many more may be listed
        self._compact = _MAX_COMPACT

    def take_stored(self, nbytes: int) -> str:
        """Return why so many bytes can't be those of another dataset, "" if they can."""
        if nbytes > self._stored:  # how a small file could be measured as a huge one
            return f"its {nbytes} bytes are more than the other tensors leave of the file"
        self._stored -= nbytes
        return ""

    def take_expanded(self, stored: int, expanded: int) -> str:
        """Return why chunks may not unpack into so many bytes, "" if they may."""
        if expanded > stored:
            if expanded > self._expanded:
                return (
                    f"would unpack from {stored} to {expanded} bytes, and the file into more than "
                    f"{_MAX_EXPANSION} times its size; save it uncompressed"
                )
            self._expanded -= expanded
        return ""

    def take_compact(self, nbytes: int) -> str:
        """Return why so many bytes of a header may not be kept, "" if they may."""
        if nbytes > self._compact:
            return f"the file keeps more than {_MAX_COMPACT} bytes of numbers in headers"
        self._compact -= nbytes
        return ""


def make_row(source: FileSource, path: Path, obstacle: Obstacle) -> Dataset:
    """Return what can't be loaded, with the reason."""
    return Dataset(path, build_unreadable(source.path, "/".join(path), (), torch.uint8, obstacle))


def describe_dataset(
    source: FileSource,
    item: h5py.h5d.DatasetID,
    path: Path,
    identity: Hashable,
    budget: Budget,
    *,
    opaque_is_bfloat16: bool,
) -> Dataset:
    """Describe a dataset; of one that can't be read, the reason."""
    from h5py import h5d, h5s  # noqa: PLC0415 - an optional package

    layout = item.get_create_plist().get_layout()
    space = item.get_space()
    if space.get_simple_extent_type() == h5s.NULL:
        return make_row(source, path, (Status.NO_DATA, "an empty dataset without a shape"))
    shape = tuple(int(side) for side in space.get_simple_extent_dims())
    if any(side >= _MAX_SIDE for side in shape):
        return make_row(source, path, (Status.UNREADABLE, "it has a side that no tensor can have"))
    form = _find_form(item.get_type(), opaque_is_bfloat16=opaque_is_bfloat16)
    if isinstance(form, str):
        return _Array(source, path, shape, torch.uint8).refuse(form)
    array = _Array(source, path, shape, *form, identity)
    if array.nbytes == 0:
        return array.accept(lambda: torch.empty(shape, dtype=array.dtype))
    if layout == h5d.CONTIGUOUS:
        return _describe_contiguous(array, item.get_offset() or 0, budget)
    describe = _describe_compact if layout == h5d.COMPACT else _describe_chunked
    return describe(array, item, budget)


@dataclass(frozen=True, slots=True)
class _Array:
    """What is known of a dataset before it is known where its numbers lie."""

    source: FileSource
    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    byteorder: ByteOrder = "little"
    identity: Hashable = None

    @property
    def name(self) -> str:
        return "/".join(self.path)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def refuse(self, reason: str, status: Status = Status.UNREADABLE) -> Dataset:
        """Return a row with the reason why it can't be read."""
        weight = build_unreadable(
            self.source.path, self.name, self.shape, self.dtype, (status, reason)
        )
        return Dataset(self.path, weight)

    def accept(
        self,
        load: Callable[[], Tensor],
        load_rows: Callable[[int, int], Tensor] | None = None,
    ) -> Dataset:
        """Return the dataset with a function that loads it."""
        weight = Weight(
            self.name,
            self.shape,
            self.dtype,
            load,
            identity=self.identity,
            load_rows=load_rows if self.shape else None,
        )
        return Dataset(self.path, weight)


def _find_form(
    kind: h5py.h5t.TypeID, *, opaque_is_bfloat16: bool
) -> tuple[torch.dtype, ByteOrder] | str:
    """Return the type of the numbers and their byte order, or why they are none."""
    from h5py import h5t  # noqa: PLC0415

    if isinstance(kind, h5t.TypeEnumID):  # as h5py stores truth values
        kind = kind.get_super()
    size = kind.get_size()
    dtype: torch.dtype | None = None
    if isinstance(kind, h5t.TypeIntegerID) and kind.get_precision() == 8 * size:
        dtype = _INTEGERS.get((size, kind.get_sign() == h5t.SGN_2))
    elif isinstance(kind, h5t.TypeFloatID):
        dtype = _FLOATS.get((size, *kind.get_fields(), kind.get_ebias()))
    elif isinstance(kind, h5t.TypeOpaqueID):
        if size == 2 and opaque_is_bfloat16:  # as Keras saves it
            return torch.bfloat16, "little"
        return (
            f"stored as {size} raw bytes per value without a type, as h5py saves bfloat16 and "
            "float8; save it as float32"
        )
    if dtype is None:
        return f"of the type {_name_class(kind)}, which is not a number type of PyTorch"
    order = kind.get_order() if size > 1 else h5t.ORDER_LE
    if order not in (h5t.ORDER_LE, h5t.ORDER_BE):
        return "stored in a byte order that is neither little-endian nor big-endian"
    return dtype, "little" if order == h5t.ORDER_LE else "big"


def _name_class(kind: h5py.h5t.TypeID) -> str:
    """Return what a type is called: "string", "compound", "reference"."""
    name = type(kind).__name__.removeprefix("Type").removesuffix("ID")
    return f"{name.lower()} of {kind.get_size()} bytes"


def _describe_contiguous(array: _Array, start: int, budget: Budget) -> Dataset:
    """Describe a dataset whose numbers lie in the file one after the other."""
    if not start:
        return array.refuse(_NOTHING, Status.NO_DATA)
    if start + array.nbytes > array.source.size:
        return array.refuse("its data lies beyond the end of the file")
    if reason := budget.take_stored(array.nbytes):
        return array.refuse(reason)
    stored = StoredTensor(
        array.source, array.name, start, array.shape, array.dtype, array.byteorder
    )
    return array.accept(stored.load, stored.load_rows)


def _describe_compact(array: _Array, item: h5py.h5d.DatasetID, budget: Budget) -> Dataset:
    """Read a dataset that lies in its header, as its bytes."""
    from h5py import h5s  # noqa: PLC0415

    reason = budget.take_stored(array.nbytes) or budget.take_compact(array.nbytes)
    if not reason and item.get_storage_size() != array.nbytes:
        reason = "its header has fewer bytes than its shape needs"
    if reason:
        return array.refuse(reason)
    data = np.empty(array.nbytes, np.uint8)
    item.read(h5s.ALL, h5s.ALL, data, mtype=item.get_type())

    def load() -> Tensor:
        numbers = decode(torch.from_numpy(data.copy()), array.dtype, array.byteorder)
        return numbers.reshape(array.shape)

    return array.accept(load)


def _describe_chunked(array: _Array, item: h5py.h5d.DatasetID, budget: Budget) -> Dataset:
    """Describe a dataset in chunks, all of which must be stored."""
    properties = item.get_create_plist()
    filters = min(properties.get_nfilters(), _MAX_FILTERS + 1)
    codes = tuple(properties.get_filter(place)[0] for place in range(filters))
    if reason := _find_unknown_filter(codes):
        return array.refuse(reason)
    sides = tuple(int(side) for side in properties.get_chunk())
    steps = zip(array.shape, sides, strict=True)
    needed = math.prod(-(-side // step) for side, step in steps)
    limit = budget.chunks
    chunks = _list_chunks(item, min(needed, limit) + 1)
    if chunks is None:
        return array.refuse("stored in chunks, which needs h5py with HDF5 1.14 or later")
    budget.chunks = max(0, limit - len(chunks))
    if not chunks:
        return array.refuse(_NOTHING, Status.NO_DATA)
    if len(chunks) > limit:
        return array.refuse(f"the file has more than {_MAX_CHUNKS} chunks")
    tensor = ChunkedTensor(
        array.source,
        array.name,
        array.shape,
        array.dtype,
        array.byteorder,
        sides,
        codes,
        tuple(chunks),
    )
    reason = _check_chunks(tensor, needed, budget)
    return array.refuse(reason) if reason else array.accept(tensor.load)


def _find_unknown_filter(codes: tuple[int, ...]) -> str:
    unknown = [code for code in codes if code not in FILTERS]
    if unknown:
        return (
            f"compressed by filter {unknown[0]}, which is not read; "
            "save it with gzip, or uncompressed"
        )
    return "its chunks pass through too many filters" if len(codes) > _MAX_FILTERS else ""


def _list_chunks(item: h5py.h5d.DatasetID, limit: int) -> list[Chunk] | None:
    """Return the chunks of a dataset, no more than a limit; None if the library can't list them."""
    iterate: Callable[..., object] | None = getattr(item, "chunk_iter", None)
    if iterate is None:
        return None
    chunks: list[Chunk] = []

    def add(info: h5py.h5d.StoreInfo) -> bool | None:
        offset = tuple(int(place) for place in info.chunk_offset)
        chunks.append(Chunk(offset, info.filter_mask, info.byte_offset, info.size))
        return True if len(chunks) >= limit else None

    iterate(add)
    return chunks


def _check_chunks(tensor: ChunkedTensor, needed: int, budget: Budget) -> str:
    """Return why chunks can't be those of a dataset, "" if they can."""
    places = {chunk.offset for chunk in tensor.chunks}
    is_whole = len(tensor.chunks) == needed
    if not is_whole or places != list_offsets(tensor.shape, tensor.chunk_shape):
        return f"only {len(places)} of its {needed} chunks are stored"
    ends = (chunk.start + chunk.size for chunk in tensor.chunks)
    if max(ends) > tensor.source.size:
        return "a chunk of it lies beyond the end of the file"
    stored = sum(chunk.size for chunk in tensor.chunks)
    expanded = needed * math.prod(tensor.chunk_shape) * tensor.dtype.itemsize
    return budget.take_stored(stored) or budget.take_expanded(stored, expanded)
