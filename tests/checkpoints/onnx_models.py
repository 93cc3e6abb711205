"""ONNX models for tests: a few nodes around stored tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rankwise.checkpoints import open_weights
from rankwise.weights.tensor import Weight

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]

Stored = np.ndarray | TensorProto


def save_model(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    stored: Mapping[str, Stored],
    outputs: Sequence[str] = ("y",),
    functions: Sequence[onnx.FunctionProto] = (),
) -> Path:
    initializers = [_as_proto(name, value) for name, value in stored.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "graph", [], results, initializer=initializers)
    model = helper.make_model(graph, opset_imports=OPSETS, functions=list(functions), ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path


def _as_proto(name: str, value: Stored) -> TensorProto:
    if isinstance(value, TensorProto):
        value.name = name
        return value
    return numpy_helper.from_array(value, name)


def open_model(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    stored: Mapping[str, Stored],
    **more: Sequence[onnx.FunctionProto],
) -> dict[str, Weight]:
    """Saves and opens a model; returns its rows by name."""
    model = save_model(path / "model.onnx", nodes, stored, **more)  # type: ignore[arg-type]
    return {weight.name: weight for weight in open_weights(model).tensors}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
