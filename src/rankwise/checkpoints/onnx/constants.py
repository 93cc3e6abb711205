"""What an ONNX graph computes from its stored tensors alone: views, casts, sums and products.

A weight need not be stored as the operator takes it: exporters reorder gates, transpose, multiply
by a mask, or store codes and scales. Constants are described when a model is opened and computed
when they are loaded. Each is computed by few operators and has no more entries than the tensors it
comes from, so that no model can make a small file large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from onnx import AttributeProto

DTYPES = {
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
_MAX_OPERATORS = 64
_MAX_SOURCES = 16

Load = Callable[[int], Tensor]  # the values of a stored tensor, by its number


@dataclass(frozen=True, slots=True)
class Constant:
    """A value of the graph that depends on stored tensors alone."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    sources: tuple[int, ...]  # the numbers of the stored tensors that it is computed from
    compute: Callable[[Load], Tensor]
    entries: int  # of its sources, all together
    operators: int = 0  # how many compute it; 0 is a stored tensor itself
    stored: str | None = None  # the type of its codes, where it is dequantised
    transpose_of: Constant | None = None  # the matrix that it is the transpose of
    parts: tuple[Constant, ...] = ()  # what it joins along its first axis
    unknown: str = ""  # the operator that is not followed, where its values can't be computed


class Attributes:
    """The attributes of a node; those that a function's node refers to are its caller's."""

    def __init__(self, protos: Sequence[AttributeProto], outer: Attributes | None = None) -> None:
        self._protos = {proto.name: proto for proto in protos}
        self._outer = outer

    def find(self, name: str) -> AttributeProto | None:
        """Return an attribute, or None."""
        proto = self._protos.get(name)
        if proto is not None and proto.ref_attr_name:
            return None if self._outer is None else self._outer.find(proto.ref_attr_name)
        return proto

    def get_int(self, name: str, default: int = 0) -> int:
        """Return a number."""
        proto = self.find(name)
        return default if proto is None else int(proto.i)

    def get_ints(self, name: str) -> list[int] | None:
        """Return a list of numbers, or None."""
        proto = self.find(name)
        return None if proto is None else [int(number) for number in proto.ints]

    def get_text(self, name: str) -> str:
        """Return a text, empty where there is none."""
        proto = self.find(name)
        return "" if proto is None else bytes(proto.s).decode("utf-8", "replace")


Inputs = Sequence[Constant | None]  # None for one that is left out


def combine(
    inputs: Sequence[Constant],
    shape: Sequence[int],
    compute: Callable[..., Tensor],
    *,
    dtype: torch.dtype | None = None,
) -> Constant | None:
    """Return a constant that is computed from others; None where that would take too much."""
    sources = tuple(dict.fromkeys(source for part in inputs for source in part.sources))
    operators = 1 + sum(part.operators for part in inputs)
    entries = max(sum(part.entries for part in inputs), 1)
    if math.prod(shape) > entries or operators > _MAX_OPERATORS or len(sources) > _MAX_SOURCES:
        return None
    return Constant(
        shape=tuple(shape),
        dtype=dtype or inputs[0].dtype,
        sources=sources,
        compute=lambda load: compute(*(part.compute(load) for part in inputs)),
        entries=entries,
        operators=operators,
        stored=next((part.stored for part in inputs if part.stored), None),
        unknown=next((part.unknown for part in inputs if part.unknown), ""),
    )


def hide(operator: str, inputs: Inputs) -> Constant | None:
    """Return a constant whose sources are known, but not its values."""
    known = [part for part in inputs if part is not None]

    def refuse(*_tensors: Tensor) -> Tensor:
        raise CheckpointError(f"The ONNX operator {operator} is not followed.")

    constant = combine(known, (0,), refuse)
    return None if constant is None else replace(constant, unknown=constant.unknown or operator)


def view(constant: Constant, shape: Sequence[int]) -> Constant | None:
    """Return the same entries in another shape."""
    if math.prod(shape) != math.prod(constant.shape) or min(shape, default=1) < 0:
        return None
    if tuple(shape) == constant.shape:
        return constant
    return combine([constant], shape, lambda tensor: tensor.reshape(tuple(shape)))


def permute(constant: Constant, axes: Sequence[int]) -> Constant | None:
    """Return a constant with its axes in another order."""
    if sorted(axes) != list(range(len(constant.shape))):
        return None
    if constant.transpose_of is not None and list(axes) == [1, 0]:
        return constant.transpose_of
    shape = [constant.shape[axis] for axis in axes]
    result = combine([constant], shape, lambda tensor: tensor.permute(tuple(axes)))
    if result is not None and list(axes) == [1, 0]:
        return replace(result, transpose_of=constant)
    return result
