"""ONNX models → named tensors: initializers and constants, each read when its turn comes."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rankwise._text import quote, sanitize
from rankwise.checkpoints.failures import reading, refusing, shown
from rankwise.checkpoints.naming import unique_names
from rankwise.checkpoints.onnx_wire import StoredTensor, model_tensors
from rankwise.checkpoints.safety import regular_size, within
from rankwise.errors import CheckpointError, MissingExtraError
from rankwise.probes.tensor import Weight, Weights

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

__all__ = ["read_onnx"]

_KIND = "an ONNX model"
_TEXT = 8
_DTYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
    17: torch.float8_e4m3fn,
    18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2,
    20: torch.float8_e5m2fnuz,
}
_BITS_OF_PACKED = {
    21: "uint4",
    22: "int4",
    23: "float4",
    24: "float8_e8m0",
    25: "uint2",
    26: "int2",
}


def read_onnx(path: Path) -> Weights:
    """Opens an ONNX model.

    Args:
        path: The file; external data must lie in its folder.

    Returns:
        Its initializers and the values of its Constant nodes, those of subgraphs too.

    Raises:
        CheckpointError: It is damaged, or a file of external data is missing.
        UnsafeFileError: External data lies outside its folder.
        MissingExtraError: The package onnx is missing.
    """
    onnx = _onnx()
    size = regular_size(path)
    with reading(path, _KIND), path.open("rb") as file:
        found = list(model_tensors(file, size))
    names = unique_names(tensor.name or "constant" for tensor in found)
    tensors = tuple(
        _weight(path, name, tensor, onnx) for name, tensor in zip(names, found, strict=True)
    )
    return Weights(sanitize(str(path)), tensors)


def _onnx() -> ModuleType:
    try:
        import onnx  # noqa: PLC0415 - an optional package
        import onnx.numpy_helper  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx", "Reading .onnx files") from error
    return onnx


def _weight(path: Path, name: str, tensor: StoredTensor, onnx: ModuleType) -> Weight:
    shape, dtype = tuple(tensor.shape), _DTYPES.get(tensor.data_type)
    source = _external(path, name, tensor) if tensor.elsewhere else None
    obstacle = _obstacle(tensor) or (source and _misfit(tensor, source))
    if obstacle or dtype is None:
        status, reason = obstacle or ("unreadable", "of an unknown type")
        load = refusing(path, f"{quote(name)} can't be read: {reason}.")
        return Weight(name, shape, dtype or torch.uint8, load, obstacle=(status, reason))
    if source:
        return Weight(name, shape, dtype, partial(_load_external, *source[:2], shape, dtype))
    return Weight(name, shape, dtype, partial(_load_inside, path, tensor, dtype, onnx))


def _obstacle(tensor: StoredTensor) -> tuple[str, str] | None:
    if tensor.sparse:
        return "unreadable", "stored sparsely"
    if tensor.data_type == _TEXT:
        return "unreadable", "text, not numbers"
    if tensor.data_type in _BITS_OF_PACKED:
        return "quantised", f"stored as {_BITS_OF_PACKED[tensor.data_type]}"
    if tensor.data_type not in _DTYPES:
        return "unreadable", f"of ONNX type {tensor.data_type}, which is unknown"
    return None if tensor.elsewhere else _inner_misfit(tensor)


def _inner_misfit(tensor: StoredTensor) -> tuple[str, str] | None:
    count, message = math.prod(tensor.shape), tensor.end - tensor.start
    wanted = count * _DTYPES[tensor.data_type].itemsize
    if tensor.raw is not None and tensor.raw != wanted:
        if tensor.raw == 0:
            return "no data", "its data was left out of the file"
        return "unreadable", f"its shape needs {wanted} bytes, the file holds {tensor.raw}"
    # Listed values take a byte each at the least.
    if tensor.raw is None and count > message:
        return "no data", "its data was left out of the file"
    return None


def _external(path: Path, name: str, tensor: StoredTensor) -> tuple[Path, int, int, int]:
    """The file of a tensor's data, where in it the data begins, its length, the file's size."""
    location = tensor.external.get("location", "")
    file = within(path.parent, location)
    if not file.exists():
        raise CheckpointError(
            f"{shown(path)}: the data of {quote(name)} lies in {quote(location)}, "
            "which is missing; put it beside the model."
        )
    size = regular_size(file)
    with reading(path, _KIND):
        start = int(tensor.external.get("offset") or 0)
        length = int(tensor.external.get("length") or size - start)
    return file, start, length, size


def _misfit(tensor: StoredTensor, source: tuple[Path, int, int, int]) -> tuple[str, str] | None:
    _, start, length, size = source
    wanted = math.prod(tensor.shape) * _DTYPES[tensor.data_type].itemsize
    if start < 0 or length < wanted or start + wanted > size:
        return "unreadable", f"its external data of {wanted} bytes isn't where it should be"
    return None


def _load_external(file: Path, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    count = math.prod(shape) * dtype.itemsize
    with reading(file, "external data of an ONNX model"):
        data = np.fromfile(file, dtype=np.uint8, count=count, offset=start)
        return torch.from_numpy(data).view(dtype).reshape(shape)


def _load_inside(path: Path, tensor: StoredTensor, dtype: torch.dtype, onnx: ModuleType) -> Tensor:
    with reading(path, _KIND), path.open("rb") as file:
        file.seek(tensor.start)
        message = onnx.TensorProto.FromString(file.read(tensor.end - tensor.start))
        loaded = _tensor(onnx.numpy_helper.to_array(message), dtype)
    if tuple(loaded.shape) != tuple(tensor.shape):
        raise CheckpointError(f"{shown(path)}: changed while it was being read.")
    return loaded


def _tensor(array: np.ndarray[Any, Any], dtype: torch.dtype) -> Tensor:
    own = np.array(array)  # writable, which views of the message aren't
    if own.dtype.isbuiltin == 1:  # 2 is a type that an extension brought
        return torch.from_numpy(own).to(dtype)
    # numpy knows bfloat16 and float8 by an extension only: take them as bits.
    bits = own.view(f"u{own.dtype.itemsize}")
    return torch.from_numpy(bits).view(dtype)
