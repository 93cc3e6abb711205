""".npz and .npy → named tensors; shapes come from the headers, pickles are never opened."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
import zipfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from rankwise._text import quote, sanitize
from rankwise.checkpoints.memory import BoundedHandle
from rankwise.checkpoints.safety import (
    build_unreadable,
    convert_errors,
    format_path,
    get_file_size,
    read_zip_directory,
)
from rankwise.errors import CheckpointError
from rankwise.weights.tensor import Status, Weight, Weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SUFFIX = ".npy"
_MAX_HEADER = 2**16
_BOMB_RATIO = 100
_BOMB_SIZE = 10**9
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
    entries = read_zip_directory(path)
    arrays = [entry for entry in entries if entry.filename.endswith(_SUFFIX)]
    for entry in arrays:
        _check_entry(path, entry)

    def open_archive() -> zipfile.ZipFile:
        with convert_errors(path, "an .npz file"):
            return zipfile.ZipFile(path)

    handle = BoundedHandle(open_archive)
    with convert_errors(path, "an .npz file"):
        tensors = tuple(_describe_entry(path, entry, handle) for entry in arrays)
    skipped = len(entries) - len(arrays)
    notes = (f"entries that aren't arrays, left out: {skipped}",) if skipped else ()
    return Weights(format_path(path), tensors, notes)


def read_npy(path: Path) -> Weights:
    """Open a file with one array, as ``numpy.save`` writes it; ``load`` maps it."""
    with convert_errors(path, "an .npy file"), path.open("rb") as file:
        header = _read_header(file)
    _check_size(path, "tensor", header, get_file_size(path))

    def load() -> Tensor:
        with convert_errors(path, "an .npy file"):
            return _convert_array(_map_array(path, header))

    return Weights(format_path(path), (_describe(path, "tensor", header, load),))


def _check_entry(path: Path, entry: zipfile.ZipInfo) -> None:
    if entry.compress_type not in _COMPRESSIONS:
        raise CheckpointError(
            f"{format_path(path)}: {quote(entry.filename)} is compressed by a method that numpy "
            "never uses; save it again with numpy.savez."
        )
    if entry.file_size > max(_BOMB_SIZE, _BOMB_RATIO * entry.compress_size):
        raise CheckpointError(
            f"{format_path(path)}: {quote(entry.filename)} would unpack from "
            f"{entry.compress_size} to {entry.file_size} bytes, which looks malicious; "
            "if it is not, save it uncompressed with numpy.savez."
        )


def _describe_entry(
    path: Path, entry: zipfile.ZipInfo, handle: BoundedHandle[zipfile.ZipFile]
) -> Weight:
    name = entry.filename.removesuffix(_SUFFIX)
    with handle.get(0).open(entry) as file:
        header = _read_header(file)
    _check_size(path, name, header, entry.file_size)

    def load() -> Tensor:
        with (
            convert_errors(path, "an .npz file"),
            warnings.catch_warnings(),
            handle.get(entry.file_size).open(entry) as file,
        ):
            warnings.simplefilter("ignore")
            return _convert_array(npy.read_array(file, allow_pickle=False))

    return _describe(path, name, header, load)


def _read_header(file: IO[bytes]) -> _Header:
    # A bounded piece, so that a header can't claim to be gigabytes long.
    start = io.BytesIO(file.read(_MAX_HEADER))
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


def _describe(path: Path, name: str, header: _Header, load: Callable[[], Tensor]) -> Weight:
    dtype = header.dtype
    if dtype.kind in "biufc":
        with contextlib.suppress(TypeError):  # PyTorch has no long double
            return Weight(name, header.shape, _convert_array(np.empty(0, dtype)).dtype, load)
    if dtype.hasobject:
        reason = "an array of Python objects, which are never unpickled"
    elif dtype.kind == "V" and dtype.names is None:
        reason = (
            f"stored as {dtype.itemsize} raw bytes per value without a type, as numpy saves "
            "bfloat16 and float8; save it as float32"
        )
    else:
        reason = f"of type {sanitize(str(dtype))[:80]}, which is not a number type of PyTorch"
    return build_unreadable(path, name, header.shape, torch.uint8, (Status.UNREADABLE, reason))


def _map_array(path: Path, header: _Header) -> np.ndarray[Any, Any]:
    order = "F" if header.fortran else "C"
    if header.nbytes == 0:  # nothing that could be mapped
        return np.empty(header.shape, header.dtype, order)  # type: ignore[call-overload]
    # Copy on write: the file is safe, and PyTorch doesn't warn of a read-only array.
    return np.memmap(path, header.dtype, "c", header.size, header.shape, order)  # type: ignore[call-overload]


def _convert_array(array: np.ndarray[Any, Any]) -> Tensor:
    native = array.dtype.newbyteorder("=")
    return torch.from_numpy(np.asarray(array.astype(native, copy=False)))
