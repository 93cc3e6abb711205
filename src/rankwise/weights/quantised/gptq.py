"""`qweight`, `qzeros`, `scales`, `g_idx`: GPTQ and AWQ, and what packs its codes like them."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.weights.dequantise import (
    AWQ_PLACES,
    count_words,
    find_blocks,
    scale_blocks,
    scale_groups,
    unpack_words,
)
from rankwise.weights.parts import Context, Rule, Whole
from rankwise.weights.quantised import layout
from rankwise.weights.quantised.layout import build_whole, refuse
from rankwise.weights.tensor import Weight

_BITS = (4, 8, 2, 3)  # the more usual first; others are packed in planes
_AWQ_BITS = 4


def _match_qweight(codes: Weight, context: Context) -> Whole | None:
    """`X.qweight` with `X.scales`; the weight is X.weight, [out, in]."""
    prefix, last = layout.split_name(codes.name)
    scales = context.by_name.get(f"{prefix}scales")
    if last != "qweight" or scales is None:
        return None
    names = (f"{prefix}{part}" for part in ("qzeros", "g_idx", "bits", "workspace"))
    beside = (*layout.find_all(names, context), *layout.find_beside(codes.name, context))
    zeros, groups = (context.by_name.get(f"{prefix}{part}") for part in ("qzeros", "g_idx"))
    parts = (scales, *beside)
    if codes.dtype != torch.int32 or not len(codes.shape) == len(scales.shape) == 2:
        what = f"{layout.format_type(codes)} codes of shape {list(codes.shape)}"
        return refuse(codes, f"{what}, packed for a kernel", parts)
    if not layout.is_scale(scales) or 0 in codes.shape or 0 in scales.shape:
        return refuse(codes, f"scales of shape {list(scales.shape)}, which do not fit", parts)
    find = _find_gptq if codes.shape[1] == scales.shape[1] else _find_awq
    if groups is not None and 0 in groups.shape:
        groups = None
    found = find(prefix, codes, scales, zeros, groups, context)
    if isinstance(found, str):
        return refuse(codes, found, parts)
    return Whole(found.weight, (*found.parts, *beside))


def _find_gptq(  # noqa: PLR0917 - the parts of a weight, in their usual order
    prefix: str,
    codes: Weight,
    scales: Weight,
    zeros: Weight | None,
    groups: Weight | None,
    context: Context,
) -> Whole | str:
    """GPTQ packs along the inputs: codes [in·bits/32, out], zero points [groups, out·bits/32]."""
    settings = layout.read_settings(context)
    count, outputs = scales.shape
    if layout.read_text(settings, "checkpoint_format") == "gptq_p":
        return "GPTQ in planes of bits (gptq_p)"
    if zeros is None or zeros.dtype != torch.int32 or zeros.shape[:-1] != (count,):
        return "GPTQ without its zero points (qzeros)"
    bits, inputs = _find_bits(codes.shape[0], outputs, zeros.shape[-1], groups, settings)
    hint = (1, layout.read_int(settings, "group_size"))
    blocks = find_blocks((outputs, inputs), (outputs, count), hint) if bits else None
    if blocks is None and not (bits and groups):
        sides = ", ".join(str(list(part.shape)) for part in (codes, zeros, scales))
        return f"GPTQ whose codes, zero points and scales have the shapes {sides}"
    if groups is not None and (groups.shape != (inputs,) or groups.dtype.is_floating_point):
        return f"GPTQ with a g_idx of shape {list(groups.shape)} for {inputs} inputs"
    shift, sizes = _read_zero_shift(context), blocks or (1, inputs)

    def decode(codes: Tensor, zeros: Tensor, scales: Tensor, *groups: Tensor) -> Tensor:
        values = unpack_words(codes.T, bits)[:, :inputs]
        zero = unpack_words(zeros, bits)[:, :outputs]
        zero = (zero + _find_zero_shift(zero, bits, shift)).remainder_(2**bits).T
        scale = scales.to(torch.float32).T
        in_order = torch.arange(inputs, device=values.device) // sizes[1]
        if groups and not (blocks and torch.equal(groups[0].to(torch.int64), in_order)):
            return scale_groups(values, scale, zero, groups[0])
        return scale_blocks(values, scale, sizes, zero)

    parts = (codes, zeros, scales, *((groups,) if groups else ()))
    name, shape = f"{prefix}weight", (outputs, inputs)
    return build_whole(name, parts, decode, shape=shape, stored=f"GPTQ int{bits}")


def _find_bits(
    rows: int, outputs: int, zero_words: int, groups: Weight | None, settings: layout.Settings
) -> tuple[int, int]:
    """Return the bits of a code and the number of inputs; zeros if no number of bits fits."""
    for bits in (layout.read_int(settings, "bits"), *_BITS):
        if bits not in _BITS or count_words(outputs, bits) != zero_words:
            continue
        inputs = groups.shape[0] if groups and len(groups.shape) == 1 else rows * 32 // bits
        if count_words(inputs, bits) == rows:
            return bits, inputs
    return 0, 0


def _read_zero_shift(context: Context) -> int | None:
    """Return what is missing from stored zero points, if the configuration says which format it is.

    The first format stores them minus one, the second ("gptq_v2") as they are. AutoRound names the
    one it imitates.
    """
    settings = layout.read_settings(context)
    if (stated := layout.read_text(settings, "checkpoint_format")) in ("gptq", "gptq_v2"):
        return int(stated == "gptq")
    if packing := layout.read_text(settings, "packing_format"):
        return int("gptq" in packing)
    return None


def _find_zero_shift(zero: Tensor, bits: int, stated: int | None) -> int:
    """Return what to add to stored zero points: one where nothing says so, unless they are centred.

    Symmetric codes have their zero in the middle: a file that stores the middle itself stores zero
    points as they are.
    """
    if stated is not None:
        return stated
    return int(not bool((zero == 2 ** (bits - 1)).all()))


def _find_awq(  # noqa: PLR0917 - the parts of a weight, in their usual order
    prefix: str,
    codes: Weight,
    scales: Weight,
    zeros: Weight | None,
    groups: Weight | None,
    context: Context,
) -> Whole | str:
    """AWQ (gemm) packs along the outputs, interleaved: codes [in, out/8], zeros [groups, out/8]."""
    settings = layout.read_settings(context)
    inputs, words = codes.shape
    count, outputs = scales.shape
    sides = f"codes of shape {list(codes.shape)} and scales of shape {list(scales.shape)}"
    if groups is not None or count_words(outputs, _AWQ_BITS) != words or outputs % 8:
        return f"{sides}, neither GPTQ nor AWQ (gemm)"
    blocks = find_blocks((inputs, outputs), (count, outputs))
    if hint := layout.read_int(settings, "group_size"):
        blocks = find_blocks((inputs, outputs), (count, outputs), (hint, 1))
    if blocks is None:
        return f"AWQ with {sides}"
    if zeros is None and settings.get("zero_point") is not False:
        return "AWQ without its zero points (qzeros)"
    if zeros is not None and (zeros.dtype != torch.int32 or zeros.shape != (count, words)):
        return f"AWQ with zero points of shape {list(zeros.shape)}"

    def decode(codes: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
        values = unpack_words(codes, _AWQ_BITS, places=AWQ_PLACES)
        if zeros is None:
            zero = torch.full(scales.shape, 8.0, device=values.device)
        else:
            zero = unpack_words(zeros, _AWQ_BITS, places=AWQ_PLACES)
        return scale_blocks(values, scales.to(torch.float32), blocks, zero).T

    parts = (codes, scales, *((zeros,) if zeros else ()))
    shape = (outputs, inputs)
    return build_whole(f"{prefix}weight", parts, decode, shape=shape, stored="AWQ int4")


GPTQ_RULES: tuple[Rule, ...] = (_match_qweight,)
