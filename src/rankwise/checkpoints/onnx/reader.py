"""ONNX models → named tensors: initializers and constants.

A model is parsed as a whole, which takes about twice its size in memory while it is opened and
once its size afterwards; protocol buffers are at most 2 GB. External data is read tensor by tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankwise._text import quote
from rankwise.checkpoints.nested import number_duplicates
from rankwise.checkpoints.onnx.constants import DTYPES, Constant, Load
from rankwise.checkpoints.onnx.graph import trace_uses
from rankwise.checkpoints.onnx.model import Stored, decode, parse_model
from rankwise.checkpoints.onnx.rows import build_rows
from rankwise.checkpoints.safety import (
    build_unreadable,
    convert_errors,
    format_path,
    get_file_size,
    is_present,
    safe_join,
)
from rankwise.checkpoints.source import FileSource, StoredTensor, open_source
from rankwise.errors import CheckpointError, MissingExtraError
from rankwise.weights.tensor import Status, Weight, Weights

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import TensorProto

_KIND = "an ONNX model"
_MAX_SIZE = 2**31  # the limit of protocol buffers


class _Packed(NamedTuple):
    """A type whose values are stored in less than a byte, and the one that they are loaded as."""

    name: str
    bits: int
    dtype: torch.dtype


_PACKED = {
    21: _Packed("uint4", 4, torch.uint8),
    22: _Packed("int4", 4, torch.int8),
    23: _Packed("float4", 4, torch.float32),
    24: _Packed("float8_e8m0", 8, torch.float32),
    25: _Packed("uint2", 2, torch.uint8),
    26: _Packed("int2", 2, torch.int8),
}


class _Source(NamedTuple):
    """A stored tensor: its row, and how its values are loaded, also where the row has none."""

    weight: Weight
    load: Callable[[], Tensor]


def read_onnx(path: Path) -> Weights:
    """Open an ONNX model: its initializers and Constant nodes, those of subgraphs too."""
    try:
        import onnx  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx", "Reading .onnx files") from error
    if get_file_size(path) >= _MAX_SIZE:
        raise CheckpointError(
            f"{format_path(path)}: an ONNX file must be smaller than 2 GB; "
            "save the model with external data."
        )
    with convert_errors(path, _KIND):
        model = parse_model(onnx.load(path, format="protobuf", load_external_data=False))
    names = number_duplicates(tensor.name or "constant" for tensor in model.tensors)
    files = _ExternalFiles(path)
    sources = [
        _describe(path, name, tensor, files)
        for name, tensor in zip(names, model.tensors, strict=True)
    ]
    tensors = [source.weight for source in sources]
    if model.nodes:  # a graph without nodes is a mere list of tensors

        def load(number: int) -> Tensor:
            return sources[number].load()

        with convert_errors(path, _KIND):
            constants = [_start_constant(number, weight) for number, weight in enumerate(tensors)]
            tensors = build_rows(tensors, trace_uses(model, constants, load), load)
    return Weights(format_path(path), tuple(tensors))


def _start_constant(number: int, weight: Weight) -> Constant:
    def compute(load: Load) -> Tensor:
        return load(number)

    entries = math.prod(weight.shape)
    return Constant(weight.shape, weight.dtype, (number,), compute, entries, stored=weight.stored)


def _describe(path: Path, name: str, stored: Stored, files: _ExternalFiles) -> _Source:
    tensor = stored.proto
    shape = tuple(max(size, 0) for size in stored.shape)
    packed = _PACKED.get(tensor.data_type)
    dtype = DTYPES.get(tensor.data_type, torch.uint8) if packed is None else packed.dtype
    nbytes = -(-math.prod(shape) * (dtype.itemsize * 8 if packed is None else packed.bits) // 8)
    obstacle = _find_obstacle(stored)
    load: Callable[[], Tensor]
    load_rows: Callable[[int, int], Tensor] | None = None
    if tensor.data_location == tensor.EXTERNAL and not stored.is_sparse:
        file, offset, length = files.locate(name, tensor)
        if offset < 0 or length < nbytes or offset + nbytes > file.size:
            reason = f"its {nbytes} bytes of external data are not where the model says"
            obstacle = obstacle or (Status.UNREADABLE, reason)
        external = StoredTensor(file, name, offset, shape, dtype)
        load = partial(_load_packed, external, nbytes, tensor)
        if packed is None:
            load, load_rows = external.load, external.load_rows if shape else None
    else:
        obstacle = obstacle or _check_inline(tensor, math.prod(shape), nbytes)
        load = partial(_load_inline, path, tensor, dtype)
    if obstacle is not None:
        row = build_unreadable(path, name, shape, dtype, obstacle)
        return _Source(row, row.load)
    if packed is not None:
        obstacle = (Status.QUANTISED, f"stored as {packed.name}")
        row = build_unreadable(path, name, shape, dtype, obstacle)
        return _Source(replace(row, stored=packed.name), load)
    return _Source(Weight(name, shape, dtype, load, load_rows=load_rows), load)


def _find_obstacle(stored: Stored) -> tuple[Status, str] | None:
    data_type = stored.proto.data_type
    if stored.is_sparse:
        return Status.UNREADABLE, "stored sparsely"
    if data_type == stored.proto.STRING:
        return Status.UNREADABLE, "text, not numbers"
    if data_type not in DTYPES and data_type not in _PACKED:
        return Status.UNREADABLE, f"of ONNX type {data_type}, which is unknown"
    if any(size < 0 for size in stored.shape):
        return Status.UNREADABLE, f"its shape {stored.shape} has a negative size"
    return None


def _check_inline(tensor: TensorProto, count: int, nbytes: int) -> tuple[Status, str] | None:
    stored = len(tensor.raw_data)
    if tensor.HasField("raw_data"):
        if stored == nbytes:
            return None
        if stored:
            return Status.UNREADABLE, f"its shape needs {nbytes} bytes, the file has {stored}"
    # Values that are listed take at least a byte each, and eight of the smallest fit in a byte.
    elif min(count, nbytes) <= tensor.ByteSize():
        return None
    return Status.NO_DATA, "its data was left out of the file"


class _ExternalFiles:
    """The files next to a model that hold its tensors' data."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._files: dict[str, FileSource] = {}

    def locate(self, name: str, tensor: TensorProto) -> tuple[FileSource, int, int]:
        """Return the file of a tensor's data, where the data begins in it, and its length."""
        entries = {decode(entry.key): decode(entry.value) for entry in tensor.external_data}
        file = self._open(name, entries.get("location", ""))
        with convert_errors(self._model, _KIND):
            offset = int(entries.get("offset") or 0)
            return file, offset, int(entries.get("length") or file.size - offset)

    def _open(self, name: str, location: str) -> FileSource:
        if location not in self._files:
            path = safe_join(self._model.parent, location)
            if not is_present(path):
                raise CheckpointError(
                    f"{format_path(self._model)}: the data of {quote(name)} is in "
                    f"{quote(location)}, which is missing; put it into the folder of the model."
                )
            self._files[location] = open_source(path)
        return self._files[location]


def _load_packed(external: StoredTensor, nbytes: int, tensor: TensorProto) -> Tensor:
    data = external.source.read(external.start, nbytes)
    inline = type(tensor)(data_type=tensor.data_type, dims=tensor.dims, raw_data=data)
    return _load_inline(external.source.path, inline, external.dtype)


def _load_inline(path: Path, tensor: TensorProto, dtype: torch.dtype) -> Tensor:
    from onnx import numpy_helper  # noqa: PLC0415 - an optional package

    with convert_errors(path, _KIND):
        array = numpy_helper.to_array(tensor)
        if tensor.data_type in _PACKED:
            return torch.from_numpy(array.astype(str(dtype).removeprefix("torch.")))
        array = np.array(array)  # a copy that may be written
        if array.dtype.isbuiltin == 1:  # 2 is a type that an extension brought
            return torch.from_numpy(array).to(dtype)
        # numpy knows bfloat16 and float8 by an extension only: take them as bits.
        return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(dtype)
