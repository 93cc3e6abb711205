"""What the standard's operators make of constants: views, casts, sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rankwise.checkpoints.onnx.constants import (
    DTYPES,
    Attributes,
    Constant,
    Inputs,
    combine,
    permute,
    view,
)
from rankwise.checkpoints.onnx.quantised import dequantize, name_codes, round_to_codes

Read = Callable[[Constant | None], list[int] | None]  # the values of a short list of integers
# Takes the first input, all inputs, the attributes and a function that reads small integers.
Fold = Callable[[Constant, Inputs, Attributes, Read], Constant | None]


def fold(operator: str, inputs: Inputs, attributes: Attributes, read: Read) -> Constant | None:
    """Return what an operator of the standard makes of constants; None where it isn't followed."""
    rule = _FOLDS.get(operator)
    is_known = not any(part.unknown for part in inputs if part is not None)
    if rule is None or not is_known or not inputs or inputs[0] is None:
        return None
    return rule(inputs[0], inputs, attributes, read)


def _pass(constant: Constant, _inputs: Inputs, _attributes: Attributes, _read: Read) -> Constant:
    return constant


def _cast(
    constant: Constant, _inputs: Inputs, attributes: Attributes, _read: Read
) -> Constant | None:
    dtype = DTYPES.get(attributes.get_int("to"))
    if dtype is None or not dtype.is_floating_point or constant.dtype.is_complex:
        return None
    if dtype == constant.dtype:
        return constant
    result = combine([constant], constant.shape, lambda tensor: tensor.to(dtype), dtype=dtype)
    if result is None or constant.dtype.is_floating_point:
        return result
    return replace(result, stored=f"{name_codes(constant)} (cast)")


def _transpose(
    constant: Constant, _inputs: Inputs, attributes: Attributes, _read: Read
) -> Constant | None:
    return permute(constant, attributes.get_ints("perm") or range(len(constant.shape))[::-1])


def _reshape(
    constant: Constant, inputs: Inputs, attributes: Attributes, read: Read
) -> Constant | None:
    wanted = read(inputs[1]) if len(inputs) > 1 else attributes.get_ints("shape")
    if wanted is None or wanted.count(-1) > 1:
        return None
    keeps_zero = attributes.get_int("allowzero") == 1
    shape = [
        constant.shape[axis]
        if size == 0 and not keeps_zero and axis < len(constant.shape)
        else size
        for axis, size in enumerate(wanted)
    ]
    if -1 in shape:
        rest = math.prod(size for size in shape if size != -1)
        shape[shape.index(-1)] = math.prod(constant.shape) // rest if rest > 0 else 0
    return view(constant, shape)


def _read_axes(inputs: Inputs, attributes: Attributes, read: Read, rank: int) -> list[int] | None:
    axes = read(inputs[1]) if len(inputs) > 1 else attributes.get_ints("axes")
    if axes is None or not all(-rank <= axis < rank for axis in axes):
        return None
    return [axis % rank for axis in axes]


def _squeeze(
    constant: Constant, inputs: Inputs, attributes: Attributes, read: Read
) -> Constant | None:
    if len(inputs) == 1 and attributes.find("axes") is None:
        return view(constant, [size for size in constant.shape if size != 1])
    axes = _read_axes(inputs, attributes, read, len(constant.shape))
    if axes is None:
        return None
    return view(constant, [size for axis, size in enumerate(constant.shape) if axis not in axes])


def _unsqueeze(
    constant: Constant, inputs: Inputs, attributes: Attributes, read: Read
) -> Constant | None:
    count = read(inputs[1]) if len(inputs) > 1 else attributes.get_ints("axes")
    rank = len(constant.shape) + len(count or ())
    axes = _read_axes(inputs, attributes, read, rank)
    if axes is None:
        return None
    shape = list(constant.shape)
    for axis in sorted(axes):
        shape.insert(axis, 1)
    return view(constant, shape)


def _flatten(
    constant: Constant, _inputs: Inputs, attributes: Attributes, _read: Read
) -> Constant | None:
    shape, axis = constant.shape, attributes.get_int("axis", 1)
    return view(constant, [math.prod(shape[:axis]), math.prod(shape[axis:])])


def _slice(
    constant: Constant, inputs: Inputs, attributes: Attributes, read: Read
) -> Constant | None:
    rank = len(constant.shape)
    if len(inputs) > 1:
        lists = [read(part) if part is not None else None for part in (*inputs[1:5], *[None] * 4)]
    else:
        lists = [*(attributes.get_ints(name) for name in ("starts", "ends", "axes")), None]
    starts, ends, axes, steps = lists[:4]
    if starts is None or ends is None or len(starts) != len(ends):
        return None
    axes = list(range(len(starts))) if axes is None else axes
    if any(step != 1 for step in steps or ()) or not all(-rank <= axis < rank for axis in axes):
        return None
    if len(axes) != len(starts):
        return None
    cuts = [slice(None)] * rank
    for start, end, axis in zip(starts, ends, axes, strict=True):
        cuts[axis] = slice(*slice(start, end).indices(constant.shape[axis]))
    shape = [len(range(size)[cut]) for cut, size in zip(cuts, constant.shape, strict=True)]
    return combine([constant], shape, lambda tensor: tensor[tuple(cuts)])


def _concatenate(
    constant: Constant, inputs: Inputs, attributes: Attributes, _read: Read
) -> Constant | None:
    parts = [part for part in inputs if part is not None]
    rank, axis = len(constant.shape), attributes.get_int("axis", 1)
    if not -rank <= axis < rank or len({part.dtype for part in parts}) > 1:
        return None
    axis %= rank
    others = {(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}
    if len(others) > 1 or any(len(part.shape) != rank for part in parts):
        return None
    size = sum(part.shape[axis] for part in parts)
    shape = [*constant.shape[:axis], size, *constant.shape[axis + 1 :]]
    result = combine(parts, shape, lambda *tensors: torch.cat(tensors, axis))
    return result if result is None or axis else replace(result, parts=tuple(parts))


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> list[int] | None:
    """Return the shape that shapes broadcast to; None where they do not go together."""
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    sizes = [set(column) - {1} for column in columns]
    return None if any(len(size) > 1 for size in sizes) else [next(iter(s), 1) for s in sizes]


def _elementwise(operation: Callable[..., Tensor]) -> Fold:
    """Return a rule for an operator of one or more floating inputs that broadcast."""

    def rule(
        _constant: Constant, inputs: Inputs, _attributes: Attributes, _read: Read
    ) -> Constant | None:
        parts = [part for part in inputs if part is not None]
        if not all(part.dtype.is_floating_point for part in parts):
            return None
        shape = _broadcast([part.shape for part in parts])
        if shape is None:
            return None
        wide = any(part.dtype == torch.float64 for part in parts)
        dtype = torch.float64 if wide else torch.float32
        return combine(
            parts, shape, lambda *tensors: operation(*(t.to(dtype) for t in tensors)), dtype=dtype
        )

    return rule


def _reduce_l2(
    constant: Constant, inputs: Inputs, attributes: Attributes, read: Read
) -> Constant | None:
    axes = _read_axes(inputs, attributes, read, len(constant.shape))
    if not axes or not constant.dtype.is_floating_point or attributes.get_int("keepdims", 1) != 1:
        return None
    shape = [1 if axis in axes else size for axis, size in enumerate(constant.shape)]
    return combine(
        [constant],
        shape,
        lambda tensor: torch.linalg.vector_norm(tensor.float(), dim=axes, keepdim=True),
        dtype=torch.float32,
    )


def _fold_quantize(
    values: Constant, inputs: Inputs, attributes: Attributes, _read: Read
) -> Constant | None:
    scale, zero = (*inputs[1:], None, None)[:2]
    return round_to_codes(values, scale, zero, attributes)


def _fold_dequantize(
    codes: Constant, inputs: Inputs, attributes: Attributes, _read: Read
) -> Constant | None:
    scale, zero = (*inputs[1:], None, None)[:2]
    axis, block = attributes.get_int("axis", 1), attributes.get_int("block_size")
    return dequantize(codes, scale, zero, axis=axis, how="QDQ", block=block)


_FOLDS: dict[str, Fold] = {
    "Identity": _pass,
    "Cast": _cast,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Slice": _slice,
    "Concat": _concatenate,
    "Add": _elementwise(torch.add),
    "Sub": _elementwise(torch.sub),
    "Mul": _elementwise(torch.mul),
    "Div": _elementwise(torch.div),
    "Neg": _elementwise(torch.neg),
    "Sqrt": _elementwise(torch.sqrt),
    "Reciprocal": _elementwise(torch.reciprocal),
    "ReduceL2": _reduce_l2,
    "QuantizeLinear": _fold_quantize,
    "DequantizeLinear": _fold_dequantize,
}
