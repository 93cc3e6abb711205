"""What each stored tensor of an ONNX model is used for, found by walking its graph once.

Nodes come in the order in which they are computed, so one pass knows of every value whether it
depends on stored tensors alone, and follows those to the operators that take them: through views
and casts, arithmetic with other constants, dequantisation, subgraphs and the model's own functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from rankwise.checkpoints.onnx.constants import (
    Attributes,
    Constant,
    Load,
    hide,
    view,
)
from rankwise.checkpoints.onnx.folds import fold
from rankwise.checkpoints.onnx.model import Graph, Model, Node
from rankwise.checkpoints.onnx.operators import (
    Operand,
    Role,
    describe_other_use,
    find_operands,
)
from rankwise.checkpoints.onnx.quantised import (
    dequantize,
    dequantize_operand,
    is_quantised,
    name_codes,
)
from rankwise.errors import RankwiseError

_STANDARD = ("", "ai.onnx")
_QUANTISERS = ("QuantizeLinear", "DequantizeLinear")  # com.microsoft has them too
_MAX_LIST = 32  # integers that are read when a model is opened: shapes, axes, where slices start
_MAX_DEPTH = 40  # of functions that call functions


class Use(NamedTuple):
    """A weight: the constant that an operator takes, and as what."""

    constant: Constant
    role: Role | None  # None where only names and shapes can tell
    obstacle: str = ""  # why its codes can't be turned into numbers


@dataclass
class Uses:
    """What the stored tensors of a model are used for, by their numbers.

    Attributes:
        weights: Those that are weights, or the largest part of one.
        parts: The others that a weight is computed from, with the number of that weight.
        others: What a tensor is that is used, but not as a weight.
        unknown: Tensors that an operator uses which is not known.
    """

    weights: dict[int, Use] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    others: dict[int, str] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)


class _Product(NamedTuple):
    """A product with codes, or a row of them, that a later operator multiplies by their scale."""

    number: int
    codes: Constant
    zero: Constant | None
    role: Role


class _Scale(NamedTuple):
    """A value that is known when the model runs, multiplied by a constant."""

    constant: Constant


_Value = Constant | _Product | _Scale


@dataclass
class _Scope:
    """The values that nodes of a graph can refer to: its own, and those of the graphs around it."""

    outer: _Scope | None = None
    attributes: Attributes | None = None  # of the call, inside a function
    values: dict[str, _Value | None] = field(default_factory=dict)

    def find(self, name: str) -> _Value | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None

    def bind(self, names: Sequence[str], value: _Value | None) -> None:
        self.values.update(dict.fromkeys(filter(None, names), value))


def _takes_group_index(node: Node) -> bool:
    """Return whether a MatMulNBits takes the groups of its columns in another order."""
    return node.operator == "MatMulNBits" and len(node.inputs) > 4 and bool(node.inputs[4])


class _Call(NamedTuple):
    """A node with what is known of its inputs."""

    node: Node
    values: Sequence[_Value | None]
    attributes: Attributes
    scope: _Scope

    def find_constant(self, position: int | None) -> Constant | None:
        if position is None or position >= len(self.values):
            return None
        return _as_constant(self.values[position])

    def bind(self, value: _Value | None) -> None:
        self.scope.bind(self.node.outputs, value)

    def is_constant(self) -> bool:
        """Return whether an operator of the standard computes with constants alone."""
        if self.node.domain not in _STANDARD and self.node.operator not in _QUANTISERS:
            return False
        given = [value for name, value in zip(self.node.inputs, self.values, strict=True) if name]
        return bool(given) and all(isinstance(value, Constant) for value in given)


def trace_uses(model: Model, constants: Sequence[Constant], load: Load) -> Uses:
    """Find what each stored tensor is used for.

    Args:
        model: The graphs and functions.
        constants: A description of each stored tensor.
        load: Loads a stored tensor, given its number; used for short lists of integers.
    """
    tracer = _Tracer(model, constants, load)
    for graph in model.graphs:
        tracer.trace_main(graph)
    return tracer.finish()


class _Tracer:
    def __init__(self, model: Model, constants: Sequence[Constant], load: Load) -> None:
        self._functions = model.functions
        self._constants = constants
        self._load = load
        # Functions that call others many times could make a short file take forever.
        self._budget = 4 * model.nodes + 10_000
        self._depth = 0
        self._uses = Uses()
        self._products: dict[int, _Product] = {}  # those whose scale was not found yet
        self._numbers = itertools.count()
        self._scope = _Scope()

    def finish(self) -> Uses:
        for product in self._products.values():
            if product.role.kind == "embedding":  # any table of small integers
                self._add_other(product.codes, describe_other_use("Gather", 0))
            else:
                self._add_weight(product.codes, product.role, "its scale was not found")
        return self._uses

    def trace_main(self, graph: Graph) -> None:
        self._trace_graph(graph, self._scope)
        for name in graph.outputs:
            if isinstance(value := self._scope.find(name), Constant):
                self._add_other(value, "returned by the graph as it is")

    def _trace_graph(self, graph: Graph, scope: _Scope) -> None:
        for name, number in graph.initializers:
            scope.values[name] = self._constants[number]
        for node in graph.nodes:
            self._trace_node(node, scope)

    def _trace_node(self, node: Node, scope: _Scope) -> None:
        if node.constant is not None:
            scope.bind(node.outputs, self._constants[node.constant])
            return
        self._budget -= 1
        values = [scope.find(name) if name else None for name in node.inputs]
        call = _Call(node, values, Attributes(node.proto.attribute, scope.attributes), scope)
        function = self._functions.get((node.domain, node.operator))
        if function is not None:
            self._trace_function(call, function)
        elif node.graphs:
            self._trace_subgraphs(call)
        elif call.is_constant():
            self._fold(call)
        elif not self._complete_product(call):
            self._trace_operator(call)

    def _fold(self, call: _Call) -> None:
        operator, inputs = call.node.operator, [_as_constant(value) for value in call.values]
        result = fold(operator, inputs, call.attributes, self._read) or hide(operator, inputs)
        if result is None:  # computed from too many
            for constant in inputs:
                self._add_unknown(constant)
        call.bind(result)

    def _read(self, constant: Constant | None) -> list[int] | None:
        """Return the values of a short list of integers, as operators take for shapes and axes."""
        if constant is None or constant.unknown or math.prod(constant.shape) > _MAX_LIST:
            return None
        if constant.dtype not in (torch.int64, torch.int32):
            return None
        try:
            return [int(number) for number in constant.compute(self._load).flatten().tolist()]
        except RankwiseError:  # its data is missing or broken, as its own row says
            return None

    def _trace_operator(self, call: _Call) -> None:
        operator = call.node.operator
        operands = find_operands(call.node.domain, operator)
        for position, value in enumerate(call.values):
            if not isinstance(value, Constant):
                continue
            operand = next((o for o in operands or () if o.position == position), None)
            if operands is None:
                self._add_unknown(value)
            elif operand is None or not self._use_operand(call, operand, value):
                self._add_other(value, describe_other_use(operator, position))

    def _use_operand(self, call: _Call, operand: Operand, constant: Constant) -> bool:
        """Add a weight; return whether the operator takes the constant as one."""
        if constant.unknown:
            for source in constant.sources:
                self._uses.weights.setdefault(source, Use(constant, None))
            return True
        described = operand.describe(constant, call.attributes)
        if described is None:
            return False
        weight, role = described
        if not is_quantised(constant):
            if constant.dtype.is_floating_point:
                self._add_weight(weight, role)
            return constant.dtype.is_floating_point
        scale, zero = call.find_constant(operand.scale), call.find_constant(operand.zero)
        if operand.scale is None:
            product = _Product(next(self._numbers), weight, zero, role)
            self._products[product.number] = product
            call.bind(product)
            return True
        numbers = None
        if not _takes_group_index(call.node):
            numbers = dequantize_operand(
                call.node.operator,
                weight,
                scale,
                zero,
                axis=role.find_output_axis(weight),
                attributes=call.attributes,
            )
        obstacle = f"{name_codes(constant)} codes of {call.node.operator}"
        self._add_weight(numbers or weight, role, "" if numbers is not None else obstacle)
        return True

    def _complete_product(self, call: _Call) -> bool:
        """Follow a product with codes to its scale; return whether the node belongs to that."""
        operator, values = call.node.operator, call.values
        product = next((value for value in values if isinstance(value, _Product)), None)
        scale = next((value for value in values if isinstance(value, _Scale)), None)
        if product is None:
            constant = next((value for value in values if isinstance(value, Constant)), None)
            if scale is not None and operator in ("Reshape", "Unsqueeze", "Squeeze"):
                call.bind(scale)
            elif operator == "Mul" and constant is not None:
                call.bind(_Scale(constant))
            return False
        factor, zero = None, product.zero
        if operator in ("Cast", "Add"):  # a bias may be added to the codes
            call.bind(product)
            return operator == "Cast"
        if operator == "Mul" and scale is not None:
            factor = scale.constant
        elif operator == "DequantizeLinear":
            factor, zero = call.find_constant(1), call.find_constant(2)
        if factor is None:
            return False
        numbers = dequantize(
            product.codes,
            view(factor, (math.prod(factor.shape),)),
            zero,
            axis=product.role.find_output_axis(product.codes),
            how="scaled",
        )
        if numbers is None:
            return False
        self._products.pop(product.number, None)
        self._add_weight(numbers, product.role)
        return True

    def _trace_function(self, call: _Call, function: Graph) -> None:
        if self._depth == _MAX_DEPTH or self._budget < 0:
            for value in call.values:
                self._add_unknown(_as_constant(value))
            return
        values = dict(zip(function.inputs, call.values, strict=False))
        inner = _Scope(attributes=call.attributes, values=values)
        self._depth += 1
        self._trace_graph(function, inner)
        self._depth -= 1
        for name, formal in zip(call.node.outputs, function.outputs, strict=False):
            call.scope.values[name] = inner.find(formal)

    def _trace_subgraphs(self, call: _Call) -> None:
        for graph in call.node.graphs:
            scope = _Scope(call.scope, call.scope.attributes, dict.fromkeys(graph.inputs))
            for place in _list_unchanged(call.node, graph):
                scope.values[graph.inputs[place]] = call.values[place]
            self._trace_graph(graph, scope)
            for name in graph.outputs:  # a branch may return a weight
                self._add_unknown(_as_constant(scope.find(name)))
        for value in call.values:
            if isinstance(value, Constant):
                self._add_other(value, f"an initial state or input of a {call.node.operator}")

    def _add_weight(self, constant: Constant, role: Role, obstacle: str = "") -> None:
        parts = constant.parts if role.stack == "directions" else ()
        if parts and all(part.shape[0] == 1 for part in parts):
            for part in parts:  # each direction is stored on its own
                self._add_weight(part, role, obstacle)
            return
        whole = max(constant.sources, key=lambda source: self._constants[source].entries)
        if whole in self._uses.weights:
            return
        self._uses.weights[whole] = Use(constant, role, obstacle)
        for source in constant.sources:
            if source != whole:
                self._uses.parts.setdefault(source, whole)

    def _add_other(self, constant: Constant, what: str) -> None:
        for source in constant.sources:
            self._uses.others.setdefault(source, what)

    def _add_unknown(self, constant: Constant | None) -> None:
        if constant is not None:
            self._uses.unknown.update(constant.sources)


def _as_constant(value: _Value | None) -> Constant | None:
    return value if isinstance(value, Constant) else None


def _list_unchanged(node: Node, body: Graph) -> list[int]:
    """Return the inputs of a Loop or Scan that keep their value: the body returns them as given."""
    shift = {"Loop": 1, "Scan": 0}.get(node.operator)
    if shift is None:
        return []
    identities = (inner for inner in body.nodes if inner.operator == "Identity")
    copies = {inner.outputs[0]: inner.inputs[0] for inner in identities if inner.inputs}
    count = min(len(node.inputs), len(body.inputs), len(body.outputs) + shift)
    returned = [body.outputs[place - shift] for place in range(shift, count)]
    return [
        place
        for place, name in enumerate(returned, start=shift)
        if copies.get(name, name) == body.inputs[place]
    ]
