""".npz and .npy → named tensors; shapes come from the headers, pickles are never opened."""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from rankwise._text import quote, sanitize
from rankwise.checkpoints.failures import reading, refusing, shown
from rankwise.checkpoints.reopening import Reopening
from rankwise.checkpoints.safety import regular_size
from rankwise.checkpoints.zip_directory import zip_entries
from rankwise.errors import CheckpointError
from rankwise.probes.tensor import Weight, Weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["read_npy", "read_npz"]

_SUFFIX = ".npy"
_LONGEST_HEADER = 2**16
_BOMB_RATIO = 100
_BOMB_SIZE = 10**9
_READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DTYPES = {
    "b1": torch.bool,
    "i1": torch.int8,
    "i2": torch.int16,
    "i4": torch.int32,
    "i8": torch.int64,
    "u1": torch.uint8,
    "u2": torch.uint16,
    "u4": torch.uint32,
    "u8": torch.uint64,
    "f2": torch.float16,
    "f4": torch.float32,
    "f8": torch.float64,
    "c8": torch.complex64,
    "c16": torch.complex128,
}


@dataclass(frozen=True, slots=True)
class _Header:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    size: int  # of the header itself

    @property
    def stored(self) -> torch.dtype | None:
        return _DTYPES.get(f"{self.dtype.kind}{self.dtype.itemsize}")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(path: Path) -> Weights:
    """Opens an archive of arrays, as ``numpy.savez`` writes it.

    Args:
        path: The file.

    Returns:
        Its arrays as tensors, each read and unpacked by its ``load`` only.

    Raises:
        CheckpointError: It is damaged, or would unpack into far more than it is.
    """
    entries = zip_entries(path)
    arrays = [entry for entry in entries if entry.filename.endswith(_SUFFIX)]
    for entry in arrays:
        _check_entry(path, entry)
    handle = Reopening(partial(_open_archive, path))
    with reading(path, "an .npz file"):
        tensors = tuple(_archived(path, entry, handle) for entry in arrays)
    skipped = len(entries) - len(arrays)
    notes = (f"{skipped} entries that aren't arrays left out",) if skipped else ()
    return Weights(sanitize(str(path)), tensors, notes)


def read_npy(path: Path) -> Weights:
    """Opens a file with one array, as ``numpy.save`` writes it.

    Args:
        path: The file.

    Returns:
        One tensor, mapped from the file by its ``load``.

    Raises:
        CheckpointError: It is damaged.
    """
    with reading(path, "an .npy file"), path.open("rb") as file:
        header = _header(file)
    _check_size(path, "tensor", header, regular_size(path))

    def load() -> Tensor:
        with reading(path, "an .npy file"):
            return _tensor(_map(path, header))

    return Weights(sanitize(str(path)), (_weight(path, "tensor", header, load),))


def _open_archive(path: Path) -> zipfile.ZipFile:
    with reading(path, "an .npz file"):
        return zipfile.ZipFile(path)


def _check_entry(path: Path, entry: zipfile.ZipInfo) -> None:
    if entry.compress_type not in _READABLE:
        raise CheckpointError(
            f"{shown(path)}: {quote(entry.filename)} is compressed in a way that numpy never uses."
        )
    if entry.file_size > max(_BOMB_SIZE, _BOMB_RATIO * entry.compress_size):
        raise CheckpointError(
            f"{shown(path)}: {quote(entry.filename)} would unpack from {entry.compress_size} to "
            f"{entry.file_size} bytes; refused. Save it with numpy.savez if that is meant."
        )


def _archived(path: Path, entry: zipfile.ZipInfo, handle: Reopening[zipfile.ZipFile]) -> Weight:
    name = entry.filename.removesuffix(_SUFFIX)
    with handle.get(0).open(entry) as file:
        header = _header(file)
    _check_size(path, name, header, entry.file_size)

    def load() -> Tensor:
        with (
            reading(path, "an .npz file"),
            warnings.catch_warnings(),
            handle.get(entry.file_size).open(entry) as file,
        ):
            warnings.simplefilter("ignore")
            return _tensor(npy.read_array(file, allow_pickle=False))

    return _weight(path, name, header, load)


def _header(file: IO[bytes]) -> _Header:
    # A bounded piece, so that a header can't claim to be gigabytes long.
    start = io.BytesIO(file.read(_LONGEST_HEADER))
    version = npy.read_magic(start)
    parse = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy remarks on files of Python 2
        shape, fortran, dtype = parse(start)
    if any(size < 0 for size in shape):
        raise ValueError(f"negative shape {shape}")
    return _Header(tuple(int(size) for size in shape), dtype, fortran, start.tell())


def _check_size(path: Path, name: str, header: _Header, size: int) -> None:
    if header.dtype.hasobject:  # pickled, of any length, and never read
        return
    if header.size + header.nbytes > size:
        raise CheckpointError(
            f"{shown(path)}: {quote(name)} claims {header.nbytes} bytes, but only "
            f"{max(size - header.size, 0)} are there; it is truncated or damaged."
        )


def _weight(path: Path, name: str, header: _Header, load: Callable[[], Tensor]) -> Weight:
    if header.stored is not None:
        return Weight(name, header.shape, header.stored, load)
    reason = _reason(header.dtype)
    return Weight(
        name,
        header.shape,
        torch.uint8,
        refusing(path, f"{quote(name)} is {reason}."),
        obstacle=("unreadable", reason),
    )


def _reason(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject:
        return "an array of Python objects, which are never unpickled"
    if dtype.kind == "V" and dtype.names is None:
        return (
            f"stored as {dtype.itemsize} raw bytes a value without a type, as bfloat16 and float8 "
            "arrays are saved by numpy; save it as float32"
        )
    return f"of the type {sanitize(str(dtype))[:80]}, which isn't a number of PyTorch's"


def _map(path: Path, header: _Header) -> np.ndarray[Any, Any]:
    order = "F" if header.fortran else "C"
    if header.nbytes == 0:  # nothing that could be mapped
        return np.empty(header.shape, header.dtype, order)  # type: ignore[call-overload]
    # Copy on write: the file is safe, and PyTorch doesn't warn of an array that is read-only.
    return np.memmap(path, header.dtype, "c", header.size, header.shape, order)  # type: ignore[call-overload]


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    native = array.dtype.newbyteorder("=")
    return torch.from_numpy(np.asarray(array.astype(native, copy=False)))
