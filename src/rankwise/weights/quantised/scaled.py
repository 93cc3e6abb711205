"""Codes of one byte times a scale: FP8, MXFP8, int8; as stored by torchao and quanto too."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from rankwise.weights.dequantise import read_scale, scale_blocks
from rankwise.weights.parts import Context, Parts, Rule, Whole
from rankwise.weights.quantised import layout
from rankwise.weights.quantised.fp4 import match_fp4
from rankwise.weights.quantised.layout import FLOAT8, build_whole, find_beside, refuse
from rankwise.weights.tensor import Weight

_TORCHAO = re.compile(r"^_(?P<name>\w+)_qdata$")


def list_scale_names(name: str) -> tuple[str, ...]:
    """Return the names under which the scale of a weight may be stored; it multiplies the codes."""
    ends = ("_scale_inv", "_scale", "_weight_scale_inv", "_weight_scale")
    prefix, last = layout.split_name(name)
    others = (f"{prefix}scale_weight", f"{prefix}scale") if last == "weight" else ()
    return (*(name + end for end in ends), *others)


def _match_scaled(codes: Weight, context: Context) -> Whole | None:
    """`X.weight` in FP8 or int8, with `X.weight_scale` or `X.weight_scale_inv`."""
    is_code = codes.dtype in FLOAT8 or codes.dtype in layout.BYTES
    scale = layout.find_first(list_scale_names(codes.name), context) if is_code else None
    if scale is None or len(codes.shape) < 2:
        return None
    beside = find_beside(codes.name, context)
    if codes.dtype in layout.BYTES and (whole := match_fp4(codes, scale, context)) is not None:
        return whole
    zero = context.by_name.get(f"{codes.name}_zero_point")
    hint = layout.read_block_size(context)
    return build_scaled(codes.name, codes, scale, zero, hint=hint, beside=beside)


def _match_torchao(codes: Weight, context: Context) -> Whole | None:
    """`X._weight_qdata`, `X._weight_scale`: tensors of torchao in a safetensors file."""
    prefix, last = layout.split_name(codes.name)
    if (match := _TORCHAO.match(last)) is None:
        return None
    stem = f"{prefix}_{match['name']}"
    ends = ("_scale", "_zero_point", "_per_tensor_scale", "_act_pre_scale", "_scale_and_zero")
    parts = layout.find_all((stem + end for end in ends), context)
    by_end = {part.name.removeprefix(stem): part for part in parts}
    scale, zero = by_end.get("_scale"), by_end.get("_zero_point")
    # Of MX tensors only the file's metadata say in which order the scales are; a zero point that is
    # no whole number belongs to 4-bit codes in pairs.
    plain = (
        len(codes.shape) >= 2
        and scale is not None
        and layout.is_scale(scale)
        and (zero is None or not zero.dtype.is_floating_point)
        and not {"_per_tensor_scale", "_scale_and_zero"} & by_end.keys()
    )
    if scale is None or not plain:
        return refuse(codes, "a layout of torchao", parts)
    return build_scaled(prefix + match["name"], codes, scale, zero, hint=None, beside=parts)


def _match_quanto(codes: Weight, context: Context) -> Whole | None:
    """`X.weight._data`, `X.weight._scale`: quanto's tensors of one byte."""
    # Packed codes are a tensor within the tensor: `X.weight._data._data`.
    name = codes.name.removesuffix("._data").removesuffix("._data")
    scale = context.by_name.get(f"{name}._scale")
    if name == codes.name or scale is None or len(codes.shape) < 2:
        return None
    shift = layout.find_all((f"{name}._shift",), context)
    beside = (*shift, *find_beside(name, context))
    if shift:
        return refuse(codes, "packed codes of quanto", (scale, *beside))
    return build_scaled(name, codes, scale, None, hint=None, beside=beside)


def build_scaled(
    name: str,
    codes: Weight,
    scale: Weight,
    zero: Weight | None,
    *,
    hint: tuple[int, int] | None,
    beside: Parts,
) -> Whole:
    """Build the weight (codes − zero) · scale, or refuse it where the shapes don't fit."""
    parts = (scale, *((zero,) if zero else ()), *beside)
    shape, blocks = codes.shape, layout.fit_scale(codes.shape, scale, hint)
    what = f"fp8 {FLOAT8[codes.dtype]}" if codes.dtype in FLOAT8 else "int8"
    in_exponents = scale.dtype in layout.EXPONENTS
    if codes.dtype not in FLOAT8 and (codes.dtype != torch.int8 or in_exponents):
        return refuse(codes, f"packed {layout.format_type(codes)} codes with a scale", parts)
    if not (in_exponents or layout.is_scale(scale)):
        return refuse(codes, f"{what} with a scale in {layout.format_type(scale)}", parts)
    if blocks is None:
        sides = f"a scale of shape {list(scale.shape)} for a weight of shape {list(shape)}"
        return refuse(codes, f"{what} with {sides}", parts)
    if zero is not None and zero.shape != scale.shape:
        return refuse(codes, f"{what} with zero points of shape {list(zero.shape)}", parts)

    def decode(codes: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        values = codes.to(torch.float32, copy=True)
        sides = layout.align_scale(values.shape, scale.shape) or scale.shape
        offset = None if zero is None else zero.to(torch.float32).reshape(sides)
        return scale_blocks(values, read_scale(scale).reshape(sides), blocks, offset)

    inputs = (codes, scale) if zero is None else (codes, scale, zero)
    stored = f"{what}, {layout.describe_blocks(shape, blocks)}"
    rounded_to = codes.dtype if codes.dtype in FLOAT8 else None
    return build_whole(
        name, inputs, decode, shape=shape, stored=stored, rounded_to=rounded_to, beside=beside
    )


SCALED_RULES: tuple[Rule, ...] = (_match_scaled, _match_torchao, _match_quanto)
