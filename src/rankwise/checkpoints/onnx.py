"""ONNX models → named tensors: initializers and constants.

A model is parsed as a whole, which takes about twice its size in memory while it is opened and
once its size afterwards; protocol buffers are at most 2 GB. External data is read tensor by tensor.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankwise._text import quote
from rankwise.checkpoints.nested import number_duplicates
from rankwise.checkpoints.safety import (
    build_unreadable,
    convert_errors,
    format_path,
    get_file_size,
    safe_join,
)
from rankwise.errors import CheckpointError, MissingExtraError
from rankwise.weights.tensor import Status, Weight, Weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

_KIND = "an ONNX model"
_MAX_SIZE = 2**31  # the limit of protocol buffers
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
_PACKED = {21: "uint4", 22: "int4", 23: "float4", 24: "float8_e8m0", 25: "uint2", 26: "int2"}


class _Initializer(NamedTuple):
    """A tensor of the model: an initializer, or the value of a Constant node."""

    name: str
    shape: tuple[int, ...]
    proto: TensorProto  # of a sparse tensor, the one with its values
    is_sparse: bool = False


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
        model = onnx.load(path, format="protobuf", load_external_data=False)
        initializers = list(_find_initializers(model))
    names = number_duplicates(initializer.name or "constant" for initializer in initializers)
    tensors = tuple(
        _describe(path, name, initializer)
        for name, initializer in zip(names, initializers, strict=True)
    )
    return Weights(format_path(path), tensors)


def _find_initializers(model: ModelProto) -> Iterator[_Initializer]:
    yield from _search_graph(model.graph)
    for training in model.training_info:
        yield from _search_graph(training.initialization)
        yield from _search_graph(training.algorithm)
    for function in model.functions:
        yield from _search_nodes(function.node)


def _search_graph(graph: GraphProto) -> Iterator[_Initializer]:
    yield from _search_nodes(graph.node)
    for tensor in graph.initializer:
        yield _Initializer(_decode(tensor.name), tuple(tensor.dims), tensor)
    for tensor in graph.sparse_initializer:
        name = _decode(tensor.values.name)
        yield _Initializer(name, tuple(tensor.dims), tensor.values, is_sparse=True)


def _search_nodes(nodes: Iterable[NodeProto]) -> Iterator[_Initializer]:
    for node in nodes:
        name = next((_decode(output) for output in node.output if output), "")
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                yield _Initializer(name, tuple(attribute.t.dims), attribute.t)
            if attribute.HasField("g"):  # the branches of If, the body of Loop
                yield from _search_graph(attribute.g)
            for graph in attribute.graphs:
                yield from _search_graph(graph)
            if node.op_type == "Constant" and attribute.HasField("sparse_tensor"):
                sparse = attribute.sparse_tensor
                name = name or _decode(sparse.values.name)
                yield _Initializer(name, tuple(sparse.dims), sparse.values, is_sparse=True)


def _decode(name: str | bytes) -> str:
    """Return a name as text; protocol buffers give bytes where it is not UTF-8."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def _describe(path: Path, name: str, initializer: _Initializer) -> Weight:
    tensor = initializer.proto
    shape = tuple(max(size, 0) for size in initializer.shape)
    dtype = _DTYPES.get(tensor.data_type, torch.uint8)
    obstacle = _find_obstacle(initializer)
    if tensor.data_location == tensor.EXTERNAL and not initializer.is_sparse:
        file, offset, length = _locate_external(path, name, tensor)
        nbytes = math.prod(shape) * dtype.itemsize
        if offset < 0 or length < nbytes or offset + nbytes > get_file_size(file):
            reason = f"its {nbytes} bytes of external data are not where the model says"
            obstacle = obstacle or (Status.UNREADABLE, reason)
        load = partial(_load_external, file, offset, shape, dtype)
    else:
        obstacle = obstacle or _check_inline(tensor, shape, dtype)
        load = partial(_load_inline, path, tensor, dtype)
    if obstacle is not None:
        return build_unreadable(path, name, shape, dtype, obstacle)
    return Weight(name, shape, dtype, load)


def _find_obstacle(initializer: _Initializer) -> tuple[Status, str] | None:
    data_type = initializer.proto.data_type
    if initializer.is_sparse:
        return Status.UNREADABLE, "stored sparsely"
    if data_type == initializer.proto.STRING:
        return Status.UNREADABLE, "text, not numbers"
    if data_type in _PACKED:
        return Status.QUANTISED, f"stored as {_PACKED[data_type]}"
    if data_type not in _DTYPES:
        return Status.UNREADABLE, f"of ONNX type {data_type}, which is unknown"
    if any(size < 0 for size in initializer.shape):
        return Status.UNREADABLE, f"its shape {initializer.shape} has a negative size"
    return None


def _check_inline(
    tensor: TensorProto, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[Status, str] | None:
    count = math.prod(shape)
    nbytes, stored = count * dtype.itemsize, len(tensor.raw_data)
    if tensor.HasField("raw_data"):
        if stored == nbytes:
            return None
        if stored:
            return Status.UNREADABLE, f"its shape needs {nbytes} bytes, the file has {stored}"
    # Values that are listed take at least a byte each.
    elif count <= tensor.ByteSize():
        return None
    return Status.NO_DATA, "its data was left out of the file"


def _locate_external(path: Path, name: str, tensor: TensorProto) -> tuple[Path, int, int]:
    """Return the file of a tensor's data, where the data begins in it, and its length."""
    entries = {_decode(entry.key): _decode(entry.value) for entry in tensor.external_data}
    location = entries.get("location", "")
    file = safe_join(path.parent, location)
    if not file.exists():
        raise CheckpointError(
            f"{format_path(path)}: the data of {quote(name)} is in {quote(location)}, "
            "which is missing; put it beside the model."
        )
    with convert_errors(path, _KIND):
        offset = int(entries.get("offset") or 0)
        return file, offset, int(entries.get("length") or get_file_size(file) - offset)


def _load_external(file: Path, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    nbytes = math.prod(shape) * dtype.itemsize
    with convert_errors(file, "external data of an ONNX model"):
        data = np.fromfile(file, dtype=np.uint8, count=nbytes, offset=offset)
        return torch.from_numpy(data).view(dtype).reshape(shape)


def _load_inline(path: Path, tensor: TensorProto, dtype: torch.dtype) -> Tensor:
    from onnx import numpy_helper  # noqa: PLC0415 - an optional package

    with convert_errors(path, _KIND):
        array = np.array(numpy_helper.to_array(tensor))  # a copy that may be written
        if array.dtype.isbuiltin == 1:  # 2 is a type that an extension brought
            return torch.from_numpy(array).to(dtype)
        # numpy knows bfloat16 and float8 by an extension only: take them as bits.
        return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(dtype)
