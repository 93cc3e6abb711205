"""The parts of an ONNX model that are followed: stored tensors, nodes, subgraphs and functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto


class Stored(NamedTuple):
    """A tensor of the model: an initializer, or the value of a Constant node."""

    name: str
    shape: tuple[int, ...]
    proto: TensorProto  # of a sparse tensor, the one with its values
    is_sparse: bool = False


@dataclass(slots=True)
class Node:
    """An operator with the names of the values that it takes and makes."""

    domain: str
    operator: str
    inputs: list[str]
    outputs: list[str]
    proto: NodeProto  # for its attributes
    graphs: list[Graph]
    constant: int | None = None  # the number of the tensor that a Constant node holds


@dataclass(slots=True)
class Graph:
    """A graph, or the body of a function, which has no initializers."""

    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    initializers: list[tuple[str, int]]  # their names and numbers


@dataclass(slots=True)
class Model:
    """The graphs of a model, and all tensors in them by number."""

    tensors: list[Stored] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    functions: dict[tuple[str, str], Graph] = field(default_factory=dict)
    nodes: int = 0  # how many there are, those of subgraphs too


def parse_model(proto: ModelProto) -> Model:
    """List the stored tensors of a model and the nodes that may use them."""
    model = Model()
    model.graphs.append(_parse_graph(proto.graph, model))
    for training in proto.training_info:
        model.graphs.append(_parse_graph(training.initialization, model))
        model.graphs.append(_parse_graph(training.algorithm, model))
    for function in proto.functions:
        inputs, outputs = (_decode_all(names) for names in (function.input, function.output))
        body = Graph(inputs, outputs, _parse_nodes(function.node, model), [])
        model.functions[decode(function.domain), decode(function.name)] = body
    return model


def _parse_graph(proto: GraphProto, model: Model) -> Graph:
    nodes = _parse_nodes(proto.node, model)
    initializers = []
    for tensor in proto.initializer:
        name = decode(tensor.name)
        initializers.append((name, len(model.tensors)))
        model.tensors.append(Stored(name, tuple(tensor.dims), tensor))
    for sparse in proto.sparse_initializer:
        name = decode(sparse.values.name)
        initializers.append((name, len(model.tensors)))
        model.tensors.append(Stored(name, tuple(sparse.dims), sparse.values, is_sparse=True))
    inputs, outputs = (_decode_all(v.name for v in side) for side in (proto.input, proto.output))
    return Graph(inputs, outputs, nodes, initializers)


def _parse_nodes(protos: Iterable[NodeProto], model: Model) -> list[Node]:
    return [_parse_node(proto, model) for proto in protos]


def _parse_node(proto: NodeProto, model: Model) -> Node:
    inputs, outputs = _decode_all(proto.input), _decode_all(proto.output)
    node = Node(decode(proto.domain), decode(proto.op_type), inputs, outputs, proto, [])
    model.nodes += 1
    name = next((output for output in outputs if output), "")
    for attribute in proto.attribute:
        if node.operator == "Constant" and attribute.HasField("t"):
            node.constant = len(model.tensors)
            model.tensors.append(Stored(name, tuple(attribute.t.dims), attribute.t))
        if attribute.HasField("g"):  # the branches of If, the body of Loop
            node.graphs.append(_parse_graph(attribute.g, model))
        for graph in attribute.graphs:
            node.graphs.append(_parse_graph(graph, model))
        if node.operator == "Constant" and attribute.HasField("sparse_tensor"):
            sparse = attribute.sparse_tensor
            node.constant = len(model.tensors)
            name = name or decode(sparse.values.name)
            stored = Stored(name, tuple(sparse.dims), sparse.values, is_sparse=True)
            model.tensors.append(stored)
    return node


def decode(name: str | bytes) -> str:
    """Return a name as text; protocol buffers give bytes where it is not UTF-8."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def _decode_all(names: Iterable[str | bytes]) -> list[str]:
    return [decode(name) for name in names]
