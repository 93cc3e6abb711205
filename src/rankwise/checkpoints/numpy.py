""".npz and .npy → named tensors; shapes come from the headers, pickles are never opened."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
import zipfile
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from rankwise._text import quote, sanitize
from rankwise.checkpoints.records import (
    Record,
    check_expansion,
    read_beginning,
    read_record,
    read_records,
)
from rankwise.checkpoints.safety import build_unreadable, convert_errors, format_path
from rankwise.checkpoints.source import FileSource, OpenSource, check_rows, open_source
from rankwise.errors import CheckpointError
from rankwise.weights.tensor import Status, Weight, Weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SUFFIX = ".npy"
_MAX_HEADER = 2**16
# What the compressed arrays of a file may unpack into: so many times its size, or so many bytes.
_MAX_EXPANSION = 100
_MIN_EXPANDED = 64 * 2**20
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True, slots=True)
class _Header:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    size: int  # of the header itself

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(path: Path) -> Weights:
    """Open an archive of arrays, as ``numpy.savez`` writes it; ``load`` unpacks one array."""
    source = open_source(path)
    records = read_records(source)
    arrays = [record for record in records if record.name.endswith(_SUFFIX)]
    for record in arrays:
        _check_compression(path, record)
        check_expansion(source, record)
    with convert_errors(path, "an .npz file"), source.open() as file:
        headers = [_read_record_header(file, record) for record in arrays]
    left = max(_MIN_EXPANDED, _MAX_EXPANSION * source.size)
    tensors = []
    for record, header in zip(arrays, headers, strict=True):
        expanded = record.size if record.is_compressed else 0
        tensors.append(_describe_record(source, record, header, is_too_large=expanded > left))
        left -= expanded if expanded <= left else 0
    skipped = len(records) - len(arrays)
    notes = (f"entries that aren't arrays, left out: {skipped}",) if skipped else ()
    return Weights(format_path(path), tuple(tensors), notes)


def read_npy(path: Path) -> Weights:
    """Open a file with one array, as ``numpy.save`` writes it."""
    source = open_source(path)
    with convert_errors(path, "an .npy file"):
        header = _parse_header(source.read(0, min(source.size, _MAX_HEADER)))
    _check_size(path, "tensor", header, source.size)
    return Weights(format_path(path), (_describe_stored(source, "tensor", header, 0),))


def _check_compression(path: Path, record: Record) -> None:
    if record.method not in _COMPRESSIONS:
        raise CheckpointError(
            f"{format_path(path)}: {quote(record.name)} is compressed by a method that numpy "
            "never uses; save it again with numpy.savez."
        )


def _read_record_header(file: OpenSource, record: Record) -> _Header:
    # A bounded piece, so that a header can't claim to be gigabytes long.
    return _parse_header(read_beginning(file, record, _MAX_HEADER))


def _parse_header(beginning: bytes) -> _Header:
    width = 2 if beginning[6:7] == b"\x01" else 4  # of the field with the header's length
    length = int.from_bytes(beginning[8 : 8 + width], "little")
    return _parse_whole_header(beginning[: 8 + width + length])


@lru_cache(maxsize=64)  # most arrays of a file have one of a few shapes
def _parse_whole_header(content: bytes) -> _Header:
    start = io.BytesIO(content)
    version = npy.read_magic(start)
    parse = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of files from Python 2
        shape, fortran, dtype = parse(start)
    if any(size < 0 for size in shape):
        raise ValueError(f"negative shape {shape}")
    return _Header(tuple(int(size) for size in shape), dtype, fortran, start.tell())


def _check_size(path: Path, name: str, header: _Header, size: int) -> None:
    if header.dtype.hasobject:  # pickled, of any length, and never read
        return
    if header.size + header.nbytes > size:
        raise CheckpointError(
            f"{format_path(path)}: {quote(name)} needs {header.nbytes} bytes, but the file has "
            f"only {max(size - header.size, 0)}; it is truncated or damaged."
        )


def _describe_record(
    source: FileSource, record: Record, header: _Header, *, is_too_large: bool
) -> Weight:
    name = record.name.removesuffix(_SUFFIX)
    _check_size(source.path, name, header, record.size)
    if not record.is_compressed:
        return _describe_stored(source, name, header, record.start, record)
    if is_too_large:
        reason = (
            f"would unpack from {record.stored} to {record.size} bytes, and the file into more "
            f"than {_MAX_EXPANSION} times its size; save it uncompressed with numpy.savez"
        )
        obstacle = (Status.UNREADABLE, reason)
        return build_unreadable(source.path, name, header.shape, torch.uint8, obstacle)
    return _describe(source, name, header, partial(_load_record, source, record, header))


def _describe_stored(
    source: FileSource, name: str, header: _Header, start: int, record: Record | None = None
) -> Weight:
    """Describe an array whose bytes lie in the file as they are."""
    whole = partial(_load_range, source, header, start + header.size, header.shape)
    load = whole if record is None else partial(_load_record, source, record, header)

    def load_rows(first: int, count: int) -> Tensor:
        check_rows(name, header.shape, first, count)
        row = math.prod(header.shape[1:]) * header.dtype.itemsize
        shape = (count, *header.shape[1:])
        return _load_range(source, header, start + header.size + first * row, shape)

    in_rows = bool(header.shape) and (not header.fortran or len(header.shape) == 1)
    return _describe(source, name, header, load, load_rows if in_rows else None)


def _describe(
    source: FileSource,
    name: str,
    header: _Header,
    load: Callable[[], Tensor],
    load_rows: Callable[[int, int], Tensor] | None = None,
) -> Weight:
    dtype = header.dtype
    if dtype.kind in "biufc":
        with contextlib.suppress(TypeError):  # PyTorch has no long double
            converted = _convert_array(np.empty(0, dtype)).dtype
            return Weight(name, header.shape, converted, load, load_rows=load_rows)
    if dtype.hasobject:
        reason = "an array of Python objects, which are never unpickled"
    elif dtype.kind == "V" and dtype.names is None:
        reason = (
            f"stored as {dtype.itemsize} raw bytes per value without a type, as numpy saves "
            "bfloat16 and float8; save it as float32"
        )
    else:
        reason = f"of type {sanitize(str(dtype))[:80]}, which is not a number type of PyTorch"
    obstacle = (Status.UNREADABLE, reason)
    return build_unreadable(source.path, name, header.shape, torch.uint8, obstacle)


def _load_record(source: FileSource, record: Record, header: _Header) -> Tensor:
    with convert_errors(source.path, "an .npz file"):
        content = read_record(source, record)
        data = content[header.size : header.size + header.nbytes]
        return _convert_bytes(data, header, header.shape)


def _load_range(source: FileSource, header: _Header, start: int, shape: tuple[int, ...]) -> Tensor:
    with convert_errors(source.path, "an array of numpy"):
        data = source.read_tensor(start, math.prod(shape) * header.dtype.itemsize)
        return _convert_bytes(data, header, shape)


def _convert_bytes(data: Tensor, header: _Header, shape: tuple[int, ...]) -> Tensor:
    array = data.numpy().view(header.dtype)
    array = np.require(array, requirements="A")
    # The first axis of an array in Fortran's order changes fastest.
    array = array.reshape(shape[::-1]).T if header.fortran else array.reshape(shape)
    return _convert_array(array)


def _convert_array(array: np.ndarray[Any, Any]) -> Tensor:
    native = array.dtype.newbyteorder("=")
    return torch.from_numpy(np.asarray(array.astype(native, copy=False)))
