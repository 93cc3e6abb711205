"""Which inputs of ONNX's operators are weights, of what kind and orientation.

The operators of the standard, and those that ONNX Runtime adds (`com.microsoft`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from rankwise.checkpoints.onnx.constants import Attributes, Constant, permute, view

_RECURRENT = {
    "LSTM": "an LSTM",
    "GRU": "a GRU",
    "RNN": "an RNN",
    "DynamicQuantizeLSTM": "a quantised LSTM",
}
_GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": ""}


class Role(NamedTuple):
    """What a constant is to the operator that uses it."""

    kind: str
    output_axis: int = 0  # of each matrix, where the constant is a stack of them
    stack: Literal["", "directions", "matrices"] = ""
    gates: str = ""

    def find_output_axis(self, constant: Constant) -> int:
        """Return the axis of the whole constant that counts filters."""
        return self.output_axis + (len(constant.shape) - 2 if self.stack else 0)


# Returns the weight as it is to be probed and its role; None if it has not the expected shape.
Describe = Callable[[Constant, Attributes], tuple[Constant, Role] | None]


class Operand(NamedTuple):
    """An input that takes a weight, and the inputs with its scale and zero point."""

    position: int
    describe: Describe
    scale: int | None = None
    zero: int | None = None


def find_operands(domain: str, operator: str) -> tuple[Operand, ...] | None:
    """Return the inputs that take weights; None for an operator that is not known."""
    if domain in ("", "ai.onnx"):
        from onnx import defs  # noqa: PLC0415 - an optional package

        return _STANDARD.get(operator) or (() if defs.has(operator, "") else None)
    if domain == "com.microsoft":
        return _CONTRIBUTED.get(operator) or (() if operator in _WITHOUT_WEIGHTS else None)
    return None


def describe_other_use(operator: str, position: int) -> str:
    """Return what a constant is that an operator uses, but not as a weight."""
    if operator in _RECURRENT:
        names = {3: "stacked biases", 4: "lengths", 7: "peepholes"}
        return f"{names.get(position, 'an initial state')} of {_RECURRENT[operator]}"
    if operator == "PRelu":
        return "slopes of a PReLU"
    if operator.endswith(("Normalization", "GroupNorm")):
        return f"a scale or bias of a {operator}"
    return f"a constant used by {operator}: a bias table, grid or mask"


def _describe_conv(constant: Constant, attributes: Attributes) -> tuple[Constant, Role] | None:
    if len(constant.shape) < 3:
        return None
    groups = attributes.get_int("group", 1)
    how = "depthwise" if groups > 1 and constant.shape[1] == 1 else "conv"
    return constant, Role(f"{how}{len(constant.shape) - 2}d")


def _describe_conv_transpose(
    constant: Constant, _attributes: Attributes
) -> tuple[Constant, Role] | None:
    if len(constant.shape) < 3:
        return None
    return constant, Role(f"conv_transpose{len(constant.shape) - 2}d", 1)


def _make_product(transposition: str, output_axis: int, kind: str = "linear") -> Describe:
    """Return how a factor of a matrix product is described: the axis of its filters."""

    def describe(constant: Constant, attributes: Attributes) -> tuple[Constant, Role] | None:
        if len(constant.shape) < 2:
            return None
        axis = output_axis ^ int(attributes.get_int(transposition) == 1)
        return constant, Role(kind, axis, "" if len(constant.shape) == 2 else "matrices")

    return describe


def _describe_embedding(constant: Constant, attributes: Attributes) -> tuple[Constant, Role] | None:
    is_table = len(constant.shape) == 2 and attributes.get_int("axis") in (0, -2)
    return (constant, Role("embedding")) if is_table else None


def _make_recurrent(operator: str) -> Describe:
    def describe(constant: Constant, _attributes: Attributes) -> tuple[Constant, Role] | None:
        if len(constant.shape) != 3:
            return None
        return constant, Role("recurrent", 0, "directions", _GATES[operator])

    return describe


def _describe_quantised_lstm(
    constant: Constant, _attributes: Attributes
) -> tuple[Constant, Role] | None:
    """ONNX Runtime's DynamicQuantizeLSTM takes [directions, in, 4·hidden]: gates along columns."""
    turned = permute(constant, (0, 2, 1)) if len(constant.shape) == 3 else None
    return None if turned is None else (turned, Role("recurrent", 0, "directions", "iofc"))


def _make_einsum(position: int) -> Describe:
    def describe(constant: Constant, attributes: Attributes) -> tuple[Constant, Role] | None:
        equation = attributes.get_text("equation").replace(" ", "")
        sides, _, output = equation.partition("->")
        terms = sides.split(",")
        if "." in equation or "->" not in equation or position >= len(terms):
            return None
        letters = terms[position]
        if len(letters) != len(constant.shape) or len(set(letters)) < len(letters):
            return None
        others = {letter for i, term in enumerate(terms) if i != position for letter in term}
        shared = [i for i, letter in enumerate(letters) if letter in output and letter in others]
        rows = [i for i, letter in enumerate(letters) if letter in output and letter not in others]
        columns = [i for i, letter in enumerate(letters) if letter not in output]
        if not rows or not columns:
            return None
        if len(letters) == 2:
            return constant, Role("linear", rows[0])
        turned = permute(constant, shared + rows + columns)
        sizes = [math.prod(constant.shape[i] for i in group) for group in (rows, columns)]
        stack = [constant.shape[i] for i in shared]
        matrix = None if turned is None else view(turned, [*stack, *sizes])
        return None if matrix is None else (matrix, Role("linear", 0, "matrices" if stack else ""))

    return describe


def _describe_packed(constant: Constant, _attributes: Attributes) -> tuple[Constant, Role] | None:
    return constant, Role("linear")


_LEFT, _RIGHT = _make_product("transA", 0), _make_product("transB", 1)
_ATTENTION = _make_product("", 1, "attention")
_EXPERTS = _make_product("", 0)

_STANDARD: dict[str, tuple[Operand, ...]] = {
    "Conv": (Operand(1, _describe_conv),),
    "ConvInteger": (Operand(1, _describe_conv, zero=3),),
    "ConvTranspose": (Operand(1, _describe_conv_transpose),),
    "DeformConv": (Operand(1, _describe_conv),),
    "Einsum": tuple(Operand(i, _make_einsum(i)) for i in range(4)),
    "GRU": (Operand(1, _make_recurrent("GRU")), Operand(2, _make_recurrent("GRU"))),
    "Gather": (Operand(0, _describe_embedding),),
    "GatherElements": (Operand(0, _describe_embedding),),
    "Gemm": (Operand(0, _LEFT), Operand(1, _RIGHT)),
    "LSTM": (Operand(1, _make_recurrent("LSTM")), Operand(2, _make_recurrent("LSTM"))),
    "MatMul": (Operand(0, _LEFT), Operand(1, _RIGHT)),
    "MatMulInteger": (Operand(0, _LEFT, zero=2), Operand(1, _RIGHT, zero=3)),
    "QLinearConv": (Operand(3, _describe_conv, 4, 5),),
    "QLinearMatMul": (Operand(0, _LEFT, 1, 2), Operand(3, _RIGHT, 4, 5)),
    "RNN": (Operand(1, _make_recurrent("RNN")), Operand(2, _make_recurrent("RNN"))),
}
_CONTRIBUTED: dict[str, tuple[Operand, ...]] = {
    "Attention": (Operand(1, _ATTENTION),),
    "DynamicQuantizeLSTM": (
        Operand(1, _describe_quantised_lstm, 8, 9),
        Operand(2, _describe_quantised_lstm, 10, 11),
    ),
    "DynamicQuantizeMatMul": (Operand(1, _RIGHT, 2, 3),),
    "EmbedLayerNormalization": tuple(Operand(i, _describe_embedding) for i in (2, 3, 4)),
    "FusedConv": (Operand(1, _describe_conv),),
    "FusedGemm": (Operand(0, _LEFT), Operand(1, _RIGHT)),
    "FusedMatMul": (Operand(0, _LEFT), Operand(1, _RIGHT)),
    "FusedMatMulActivation": (Operand(0, _LEFT), Operand(1, _RIGHT)),
    "GatherBlockQuantized": (Operand(0, _describe_embedding, 2, 3),),
    "GemmFastGelu": (Operand(0, _LEFT), Operand(1, _RIGHT)),
    "MatMulBnb4": (Operand(1, _describe_packed, 2),),
    "MatMulIntegerToFloat": (Operand(0, _LEFT, 2, 4), Operand(1, _RIGHT, 3, 5)),
    "MatMulNBits": (Operand(1, _describe_packed, 2, 3),),
    "MoE": tuple(Operand(i, _EXPERTS) for i in (2, 4, 6)),
    "PackedAttention": (Operand(1, _ATTENTION),),
    "QAttention": (Operand(1, _ATTENTION, 4, 7),),
    "QEmbedLayerNormalization": tuple(
        Operand(i, _describe_embedding, i + 6, i + 11) for i in (2, 3, 4)
    ),
    "QGemm": (Operand(0, _LEFT, 1, 2), Operand(3, _RIGHT, 4, 5)),
    "QLinearConv": (Operand(3, _describe_conv, 4, 5),),
    "TransposeMatMul": (Operand(0, _LEFT), Operand(1, _RIGHT)),
}
# Operators of ONNX Runtime that take constants of two or more dimensions, none of them a weight.
_WITHOUT_WEIGHTS = {
    "BiasAdd",
    "BiasGelu",
    "BiasSoftmax",
    "FastGelu",
    "GatedRelativePositionBias",
    "Gelu",
    "GroupNorm",
    "GroupQueryAttention",
    "MultiHeadAttention",
    "QLinearAdd",
    "QLinearConcat",
    "QLinearMul",
    "QLinearWhere",
    "QuickGelu",
    "RelativePositionBias",
    "RotaryEmbedding",
    "SkipGroupNorm",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
}
