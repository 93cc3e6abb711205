"""Quantised weights of ONNX models: codes, scales and zero points → the numbers they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from rankwise.checkpoints.onnx.constants import (
    Attributes,
    Constant,
    combine,
    view,
)

# The ranges that QuantizeLinear clips to, by ONNX's number of the type.
_RANGES = {
    2: (0, 255),
    3: (-128, 127),
    4: (0, 65535),
    5: (-32768, 32767),
    21: (0, 15),
    22: (-8, 7),
}
_NAMES = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 21: "uint4", 22: "int4"}
_TYPES = {torch.uint8: 2, torch.int8: 3, torch.uint16: 4, torch.int16: 5}
_PACKED_BITS = (2, 4, 8)


def is_quantised(constant: Constant) -> bool:
    """Return whether a constant holds codes of a weight: small integers, or packed numbers."""
    if constant.stored is not None:
        return not constant.stored.endswith(")")
    return constant.dtype in _TYPES


def dequantize(
    codes: Constant,
    scale: Constant | None,
    zero: Constant | None,
    *,
    axis: int,
    how: str,
    block: int = 0,
) -> Constant | None:
    """Return (codes − zero)·scale; None where the scale is missing or does not fit the codes.

    Scale and zero point are one number, or one for every index along an axis, or one for every
    block of that axis, or broadcast with the codes.
    """
    if scale is None:
        return None

    def compute(values: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
        values = values.to(torch.float32)
        return (values if zeros is None else values - zeros) * scales

    result = _combine_spread(codes, scale, zero, compute, axis=axis, block=block)
    return None if result is None else replace(result, stored=f"{name_codes(codes)} ({how})")


def round_to_codes(
    values: Constant, scale: Constant | None, zero: Constant | None, attributes: Attributes
) -> Constant | None:
    """Return the codes that QuantizeLinear makes of a constant."""
    kind = attributes.get_int("output_dtype") or (2 if zero is None else _TYPES.get(zero.dtype, 0))
    is_packed = zero is not None and zero.stored is not None
    if scale is None or kind not in _RANGES or is_packed or not values.dtype.is_floating_point:
        return None
    low, high = _RANGES[kind]

    def compute(tensor: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
        codes = (tensor.to(torch.float32) / scales).round()  # half to even, as the standard says
        return (codes if zeros is None else codes + zeros).clamp(low, high)

    axis, block = attributes.get_int("axis", 1), attributes.get_int("block_size")
    result = _combine_spread(values, scale, zero, compute, axis=axis, block=block)
    return None if result is None else replace(result, stored=_NAMES[kind])


def _combine_spread(
    values: Constant,
    scale: Constant,
    zero: Constant | None,
    compute: Callable[..., Tensor],
    *,
    axis: int,
    block: int,
) -> Constant | None:
    """Compute a constant from values, and scales and zero points that are spread over them."""
    others = [scale] if zero is None else [scale, zero]
    plans = [_plan_spread(other.shape, values.shape, axis, block) for other in others]
    spreads = [plan for plan in plans if plan is not None]
    if len(spreads) < len(plans):
        return None

    def run(tensor: Tensor, *tensors: Tensor) -> Tensor:
        pairs = zip(spreads, tensors, strict=True)
        return compute(tensor, *(spread(other.to(torch.float32)) for spread, other in pairs))

    return combine([values, *others], values.shape, run, dtype=torch.float32)


def name_codes(codes: Constant) -> str:
    """Return the type of codes as text, as in "int4"."""
    return codes.stored or str(codes.dtype).removeprefix("torch.")


def _plan_spread(
    shape: tuple[int, ...], codes: tuple[int, ...], axis: int, block: int
) -> Callable[[Tensor], Tensor] | None:
    """Return a function that spreads scales over the codes; None where the shapes do not fit."""
    if math.prod(shape) == 1:
        return lambda tensor: tensor.reshape(())
    if not -len(codes) <= axis < len(codes):
        return None
    axis %= len(codes)
    if block > 0 and len(shape) == len(codes):
        counts = [-(-size // block) if i == axis else size for i, size in enumerate(codes)]
        if list(shape) != counts:
            return None
        return lambda tensor: tensor.repeat_interleave(block, axis).narrow(axis, 0, codes[axis])
    if len(shape) == 1 and shape[0] == codes[axis]:
        sides = [-1 if i == axis else 1 for i in range(len(codes))]
        return lambda tensor: tensor.reshape(sides)
    if len(shape) == len(codes) and all(
        side in (1, size) for side, size in zip(shape, codes, strict=True)
    ):
        return lambda tensor: tensor
    return None


def unpack_blocks(
    codes: Constant, scale: Constant | None, zero: Constant | None, attributes: Attributes
) -> Constant | None:
    """Return the [N, K] matrix of a MatMulNBits: blocks of packed codes with a scale each."""
    rows, columns, block = (attributes.get_int(name) for name in ("N", "K", "block_size"))
    bits = attributes.get_int("bits", 4)
    if min(rows, columns, block) < 1 or bits not in _PACKED_BITS or scale is None:
        return None
    blocks = -(-columns // block)
    zero_bytes = -(-blocks * bits // 8)
    if math.prod(codes.shape) != rows * blocks * -(-block * bits // 8):
        return None
    if math.prod(scale.shape) != rows * blocks:
        return None
    packs_zero = zero is not None and not zero.dtype.is_floating_point
    if zero is not None and math.prod(zero.shape) != rows * (zero_bytes if packs_zero else blocks):
        return None

    def compute(packed: Tensor, scales: Tensor, *zeros: Tensor) -> Tensor:
        values = _unpack(packed.reshape(rows, blocks, -1), bits)[..., :block].float()
        offset = torch.full((), 2.0 ** (bits - 1))
        if packs_zero:
            offset = _unpack(zeros[0].reshape(rows, zero_bytes), bits)[:, :blocks].float()
        elif zeros:
            offset = zeros[0].reshape(rows, blocks).float()
        offset = offset.unsqueeze(-1) if offset.ndim else offset
        values = (values - offset) * scales.reshape(rows, blocks, 1).float()
        return values.reshape(rows, blocks * block)[:, :columns]

    parts = [codes, scale] if zero is None else [codes, scale, zero]
    # A byte holds several entries, so the matrix may have more of them than its codes.
    unpacked = replace(codes, entries=codes.entries * 8 // bits)
    result = combine([unpacked, *parts[1:]], (rows, columns), compute, dtype=torch.float32)
    return None if result is None else replace(result, stored=f"int{bits} (MatMulNBits)")


def _unpack(packed: Tensor, bits: int) -> Tensor:
    """Return the codes in each byte, the lowest bits first, along the last axis."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    codes = (packed.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return codes.flatten(-2)


def dequantize_operand(
    operator: str,
    codes: Constant,
    scale: Constant | None,
    zero: Constant | None,
    *,
    axis: int,
    attributes: Attributes,
) -> Constant | None:
    """Return the numbers that an operator's codes stand for; None where that is not known."""
    block = 0
    if operator == "MatMulNBits":
        return unpack_blocks(codes, scale, zero, attributes)
    if operator == "MatMulBnb4":
        return None
    if operator == "GatherBlockQuantized":
        axis, block = attributes.get_int("quantize_axis", 1), attributes.get_int("block_size", 128)
        if zero is None and name_codes(codes) != "int4":
            return None
    if operator == "DynamicQuantizeLSTM" and scale is not None:
        scale = _align_directions(scale, codes)
        zero = None if zero is None else _align_directions(zero, codes)
    return dequantize(codes, scale, zero, axis=axis, how=operator, block=block)


def _align_directions(constant: Constant, codes: Constant) -> Constant | None:
    """Return one number for each direction, or for each row of its gates, as the codes need it."""
    rows = constant.shape[1] if len(constant.shape) == 2 else 1
    return view(constant, (codes.shape[0], rows, 1))
