"""ONNX models: graphs whose messages are changed field by field, and damaged on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.layouts import PLAIN
from tests.fuzz.tensors import Stored, mutate_tensors
from tests.fuzz.values import OUTSIDE, damage_bytes, draw_integer, draw_text

_TYPES = {
    "F32": TensorProto.FLOAT,
    "F16": TensorProto.FLOAT16,
    "F64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "F8_E4M3": TensorProto.FLOAT8E4M3FN,
    "F8_E5M2": TensorProto.FLOAT8E5M2,
    "I64": TensorProto.INT64,
    "I32": TensorProto.INT32,
    "I16": TensorProto.INT16,
    "I8": TensorProto.INT8,
    "U8": TensorProto.UINT8,
    "U16": TensorProto.UINT16,
    "U32": TensorProto.UINT32,
    "U64": TensorProto.UINT64,
    "BOOL": TensorProto.BOOL,
    "C64": TensorProto.COMPLEX64,
}
EXTERNAL = "weights.bin"
_LOCATIONS = (
    EXTERNAL,
    EXTERNAL,
    EXTERNAL,
    f"../{OUTSIDE}/secret.bin",
    f"{EXTERNAL}/../../{OUTSIDE}/secret.bin",
    "/etc/passwd",
    "/dev/zero",
    "link",
    "fifo",
    "",
    "missing.bin",
    ".",
    "\0",
)
_OPERATORS = (
    "Conv",
    "ConvTranspose",
    "Gemm",
    "LSTM",
    "GRU",
    "RNN",
    "MatMul",
    "Constant",
    "DequantizeLinear",
    "QLinearConv",
    "Identity",
    "Transpose",
    "Reshape",
    "Loop",
)
_MAX_DEPTH = 6


def _make_initializer(tensor: Stored) -> TensorProto:
    name = tensor.name.encode("utf-8", "replace").decode()
    return TensorProto(
        name=name, dims=tensor.shape, data_type=_TYPES[tensor.dtype], raw_data=tensor.data
    )


def _make_array(name: str, *shape: int, kind: int = TensorProto.FLOAT) -> TensorProto:
    values = np.random.default_rng(len(name)).normal(size=shape)
    if kind == TensorProto.FLOAT:
        return helper.make_tensor(name, kind, shape, values.astype("<f4").tobytes(), raw=True)
    codes = (values * 30).astype(np.int8)
    return helper.make_tensor(name, kind, shape, codes.tobytes(), raw=True)


def _make_graph(nodes: Sequence[onnx.NodeProto], arrays: Sequence[TensorProto]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "graph", [], [], initializer=arrays)


@cache
def make_seed_models() -> tuple[bytes, ...]:
    """Return one serialized model for every kind of graph."""
    node, array = helper.make_node, _make_array
    int8 = TensorProto.INT8
    branch = _make_graph(
        [
            node("MatMul", ["x", "inner"], ["y"]),
            node("Constant", [], ["c"], value=array("v", 3, 3)),
        ],
        [array("inner", 4, 3)],
    )
    sparse = helper.make_sparse_tensor(
        array("s", 3), helper.make_tensor("i", TensorProto.INT64, [3], [0, 3, 5]), [4, 4]
    )
    graphs = [
        _make_graph(
            [
                node("Conv", ["x", "c.weight", "c.bias"], ["h"], kernel_shape=[2, 2], group=1),
                node("Gemm", ["h", "fc"], ["y"], transB=1, alpha=1.0),
            ],
            [array("c.weight", 4, 3, 2, 2), array("c.bias", 4), array("fc", 5, 4)],
        ),
        _make_graph(
            [
                node("LSTM", ["x", "W", "R", "B"], ["y"], hidden_size=3, direction="forward"),
                node("GRU", ["y", "W2", "R2"], ["z"], hidden_size=2, direction="bidirectional"),
            ],
            [
                array("W", 1, 12, 4),
                array("R", 1, 12, 3),
                array("B", 1, 24),
                array("W2", 2, 6, 3),
                array("R2", 2, 6, 2),
            ],
        ),
        _make_graph(
            [
                node("DequantizeLinear", ["q", "scale", "zero"], ["w"], axis=0),
                node("MatMul", ["x", "w"], ["y"]),
                node("Transpose", ["t"], ["tt"], perm=[1, 0]),
                node("MatMul", ["y", "tt"], ["z"]),
            ],
            [
                array("q", 4, 6, kind=int8),
                array("scale", 4),
                array("zero", 4, kind=int8),
                array("t", 3, 6),
            ],
        ),
        _make_graph(
            [node("If", ["b"], ["y"], then_branch=branch, else_branch=branch)],
            [array("outer", 3, 4)],
        ),
        _make_graph(
            [node("Identity", ["a"], ["b"]), node("Identity", ["b"], ["a"])],
            [array("e", 6, 3), array("a", 2, 2)],
        ),
        _make_graph(
            [
                node("Gather", ["embed", "ids"], ["h"]),
                node("Attention", ["h", "qkv"], ["y"], num_heads=2, domain="com.microsoft"),
                node(
                    "MatMulNBits",
                    ["y", "B", "s"],
                    ["z"],
                    K=32,
                    N=4,
                    bits=4,
                    block_size=32,
                    domain="com.microsoft",
                ),
            ],
            [
                array("embed", 7, 4),
                array("qkv", 4, 12),
                array("B", 4, 1, 16, kind=TensorProto.UINT8),
                array("s", 4),
            ],
        ),
    ]
    graphs[3].sparse_initializer.append(sparse)
    models = [helper.make_model(graph) for graph in graphs]
    function = helper.make_function(
        "d", "F", ["x"], ["y"], [node("Constant", [], ["y"], value=array("f", 3, 3))], []
    )
    models[0].functions.append(function)
    models[1].training_info.add().algorithm.CopyFrom(branch)
    return tuple(model.SerializeToString() for model in models)


def draw_model(rng: Random) -> tuple[onnx.ModelProto, bytes]:
    """Draw a valid model, and the data that lies beside it."""
    if rng.random() < 0.5:
        model = onnx.ModelProto.FromString(rng.choice(make_seed_models()))
    else:
        tensors, _ = rng.choice(PLAIN)(rng)
        if rng.random() < 0.5:
            tensors = mutate_tensors(tensors, rng)
        model = helper.make_model(_make_graph([], [_make_initializer(t) for t in tensors]))
    data = b""
    if rng.random() < 0.25:
        for tensor in model.graph.initializer:
            _move_outside(tensor, len(data))
            data += tensor.raw_data
            tensor.ClearField("raw_data")
    return model, data


def _move_outside(tensor: TensorProto, offset: int) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": EXTERNAL, "offset": offset, "length": len(tensor.raw_data)}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))


def mutate_model(model: onnx.ModelProto, rng: Random) -> None:
    """Change one thing of a model: a tensor, where its data lies, an edge, or any field."""
    tensors = list(model.graph.initializer)
    nodes = list(model.graph.node)
    match rng.randrange(9):
        case 0 if tensors:
            tensor = rng.choice(tensors)
            tensor.dims[:] = [draw_integer(rng) % 2**63 for _ in range(rng.randrange(4))]
        case 1 if tensors:
            rng.choice(tensors).data_type = rng.randrange(30)
        case 2 if tensors:
            _mutate_external(rng.choice(tensors), rng)
        case 3 if nodes and tensors:
            node = rng.choice(nodes)
            node.input[:] = [rng.choice(tensors).name, *node.output, draw_text_for_proto(rng)]
        case 4 if nodes:
            rng.choice(nodes).op_type = rng.choice(_OPERATORS)
        case 5 if len(nodes) > 1:
            one, other = rng.sample(nodes, 2)
            other.output[:] = one.input[:1]
            one.input[:] = other.output
        case _:
            mutate_message(model, rng)


def _mutate_external(tensor: TensorProto, rng: Random) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    values = {
        "location": rng.choice(_LOCATIONS),
        "offset": rng.choice(("0", "-1", "8", "x", str(draw_integer(rng)))),
        "length": rng.choice(("0", "", "-5", "16", str(draw_integer(rng)))),
    }
    for key, value in values.items():
        if rng.random() < 0.6:
            tensor.external_data.add(key=key, value=value)


def draw_text_for_proto(rng: Random) -> str:
    """Draw a text that a protocol buffer can hold."""
    return draw_text(rng).encode("utf-8", "replace").decode()


def mutate_message(message: Any, rng: Random, depth: int = 0) -> None:
    """Set, clear or repeat a random field of a message, or go into one of its messages."""
    fields = message.DESCRIPTOR.fields
    present = [field for field, _ in message.ListFields()]
    inner = [field for field in present if field.message_type is not None]
    if inner and depth < _MAX_DEPTH and rng.random() < 0.8:
        value = getattr(message, rng.choice(inner).name)
        if hasattr(value, "DESCRIPTOR"):
            mutate_message(value, rng, depth + 1)
        elif len(value):
            _mutate_repeated(value, rng, depth)
        return
    field = rng.choice(present or fields) if rng.random() < 0.6 else rng.choice(fields)
    if rng.random() < 0.2 or field.message_type is not None:
        message.ClearField(field.name)
        return
    new = _draw_scalar(field, rng)
    value = getattr(message, field.name)
    if hasattr(value, "append"):
        value.append(new)
    else:
        setattr(message, field.name, new)


def _mutate_repeated(values: Any, rng: Random, depth: int) -> None:
    place = rng.randrange(len(values))
    match rng.randrange(6):
        case 0:
            del values[place]
        case 1:
            values.add().CopyFrom(values[place])
        case _:
            mutate_message(values[place], rng, depth + 1)


def _draw_scalar(field: Any, rng: Random) -> object:
    kinds = field.cpp_type
    if kinds in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    if field.type == field.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 16, 64)))
    if field.type == field.TYPE_STRING:
        return draw_text_for_proto(rng)
    if kinds == field.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])
    bits = 31 if kinds in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 63
    value = draw_integer(rng) % 2**bits
    return -value if rng.random() < 0.2 and kinds in (1, 2) else value


def damage_wire(content: bytes, rng: Random) -> bytes:
    """Damage the bytes of a model, or nest and repeat messages as no writer would."""
    match rng.randrange(6):
        case 0:
            inner = b""
            for _ in range(rng.choice((20, 90, 400))):  # graph → node → attribute → graph
                for tag in (0x32, 0x2A, 0x0A):
                    inner = bytes((tag,)) + _varint(len(inner)) + inner
            return content + b"\x3a" + _varint(len(inner)) + inner
        case 1:
            return content + rng.choice(
                (b"\x3a\xff\xff\xff\xff\x07", b"\x08" + b"\xff" * 11, b"\x3b")
            )
        case 2:
            return content + b"\x3a\x00" * rng.choice((1, 500))
        case _:
            return damage_bytes(content, rng)


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes((*result, value))
