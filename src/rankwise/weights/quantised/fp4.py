"""4-bit floats (E2M1) in pairs, with scales of blocks: MXFP4 and NVFP4; MXFP6."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.weights.dequantise import (
    FP4_VALUES,
    look_up_fp6,
    look_up_pairs,
    read_scale,
    scale_blocks,
)
from rankwise.weights.parts import Context, Rule, Whole
from rankwise.weights.quantised import layout
from rankwise.weights.quantised.layout import build_whole, find_beside, refuse
from rankwise.weights.tensor import Weight

_MX_BLOCK = 32
_NV_BLOCK = 16


def match_fp4(
    codes: Weight, scale: Weight, context: Context, name: str | None = None
) -> Whole | None:
    """Return the weight of 4-bit floats with scales of blocks; None if the shapes are others.

    `name` is the weight's, if it is not its codes'.
    """
    name = name or codes.name
    lead, pairs = codes.shape[:-1], codes.shape[-1]
    beside = find_beside(name, context)
    shape = (*lead, 2 * pairs)
    in_exponents = scale.dtype in layout.EXPONENTS
    # Codes in int8 with scales that are no powers of two may be integers as well as pairs.
    is_stated = layout.read_text(context.config, "expert_dtype") == "fp4" and layout.is_scale(scale)
    blocks, rest = divmod(2 * pairs, _MX_BLOCK)
    if (in_exponents or is_stated) and not rest and scale.shape == (*lead, blocks):
        return build_whole(
            name, (codes, scale), _decode_mxfp4, shape=shape, stored="MXFP4", beside=beside
        )
    triples, rest = divmod(pairs, 24)
    is_uint8 = codes.dtype == torch.uint8
    if in_exponents and is_uint8 and not rest and scale.shape == (*lead, triples):
        shape = (*lead, triples * _MX_BLOCK)
        return build_whole(
            name, (codes, scale), _decode_mxfp6, shape=shape, stored="MXFP6", beside=beside
        )
    if scale.dtype == torch.float8_e4m3fn:
        return _match_nvfp4(name, codes, scale, context)
    return None


def _match_nvfp4(name: str, codes: Weight, scale: Weight, context: Context) -> Whole:
    """A scale in FP8 for 16 numbers, and one of the whole tensor: multiplied, or divided by."""
    multiplied = context.by_name.get(f"{name}_scale_2")
    divided = context.by_name.get(f"{name}_global_scale")
    second = multiplied or divided
    beside = find_beside(name, context)
    parts = (scale, *((second,) if second else ()), *beside)
    lead, columns = codes.shape[:-1], 2 * codes.shape[-1]
    if second is None or not layout.is_scale(second):
        return refuse(codes, "NVFP4 without its second scale", parts)
    aligned = layout.align_scale(codes.shape, second.shape)
    if columns % _NV_BLOCK or scale.shape != (*lead, columns // _NV_BLOCK) or aligned is None:
        sides = f"scales of shapes {list(scale.shape)} and {list(second.shape)}"
        return refuse(codes, f"NVFP4 with {sides} for codes of shape {list(codes.shape)}", parts)

    def decode(codes: Tensor, scale: Tensor, second: Tensor) -> Tensor:
        sides = layout.align_scale(codes.shape, second.shape) or ()
        factor = second.to(torch.float32).reshape(sides)
        scale = scale.to(torch.float32)
        scale = scale * factor if multiplied else scale / factor
        return _scale_pairs(codes, scale, _NV_BLOCK)

    inputs, shape = (codes, scale, second), (*lead, columns)
    return build_whole(name, inputs, decode, shape=shape, stored="NVFP4", beside=beside)


def _match_blocks(codes: Weight, context: Context) -> Whole | None:
    """`X_blocks` [..., rows, groups, 16], `X_scales` [..., rows, groups]: MXFP4 as in gpt-oss."""
    name = codes.name.removesuffix("_blocks")
    scale = context.by_name.get(f"{name}_scales")
    if name == codes.name or scale is None or codes.dtype != torch.uint8:
        return None
    if len(codes.shape) < 3 or codes.shape[-1] != _MX_BLOCK // 2 or scale.shape != codes.shape[:-1]:
        sides = f"scales of shape {list(scale.shape)} for blocks of shape {list(codes.shape)}"
        return refuse(codes, f"MXFP4 with {sides}", (scale,))
    if scale.dtype not in layout.EXPONENTS:
        return refuse(codes, f"MXFP4 with scales in {layout.format_type(scale)}", (scale,))
    *lead, groups, _ = codes.shape

    def decode(codes: Tensor, scale: Tensor) -> Tensor:
        return _decode_mxfp4(codes.flatten(-2), scale)

    return build_whole(
        name, (codes, scale), decode, shape=(*lead, groups * _MX_BLOCK), stored="MXFP4"
    )


def _decode_mxfp4(codes: Tensor, scale: Tensor) -> Tensor:
    return _scale_pairs(codes, read_scale(scale), _MX_BLOCK)


def _decode_mxfp6(codes: Tensor, scale: Tensor) -> Tensor:
    values = look_up_fp6(codes)
    return scale_blocks(values, read_scale(scale), (*(1,) * (values.ndim - 1), _MX_BLOCK))


def _scale_pairs(codes: Tensor, scale: Tensor, block: int) -> Tensor:
    values = look_up_pairs(torch.tensor(FP4_VALUES), codes)
    return scale_blocks(values, scale, (*(1,) * (values.ndim - 1), block))


FP4_RULES: tuple[Rule, ...] = (_match_blocks,)
