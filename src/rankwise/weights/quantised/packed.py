"""`X_packed`: the packed layouts of compressed-tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rankwise.weights.dequantise import count_words, scale_blocks, scale_groups, unpack_words
from rankwise.weights.parts import Context, Rule, Whole
from rankwise.weights.quantised import layout
from rankwise.weights.quantised.fp4 import match_fp4
from rankwise.weights.quantised.layout import build_whole, find_beside, refuse
from rankwise.weights.tensor import Weight

_BITS = (4, 8, 2, 3, 5, 6, 7, 1)  # the more usual first
_MAX_AXES = 8


def _match_packed(codes: Weight, context: Context) -> Whole | None:
    """`X.weight_packed` with `X.weight_scale`: integers, or 4- and 6-bit floats."""
    name = codes.name.removesuffix("_packed")
    scale = context.by_name.get(f"{name}_scale")
    if name == codes.name or scale is None or len(codes.shape) < 2:
        return None
    ends = ("_zero_point", "_shape", "_g_idx", "_global_scale")
    parts = (scale, *layout.find_all((name + end for end in ends), context))
    parts = (*parts, *find_beside(name, context))
    by_end = {part.name.removeprefix(name): part for part in parts}
    if codes.dtype in layout.BYTES:
        whole = match_fp4(codes, scale, context, name)
        return whole or refuse(codes, "packed bytes of compressed-tensors", parts)
    if codes.dtype != torch.int32 or not layout.is_scale(scale):
        return refuse(codes, f"codes in {layout.format_type(codes)}", parts)
    shape = _read_shape(codes, by_end.get("_shape"))
    if shape is None:
        return refuse(codes, "packed integers whose shape (weight_shape) is not known", parts)
    found = _match_integers(name, codes, shape, by_end, context)
    if isinstance(found, str):
        return refuse(codes, found, parts)
    return Whole(found.weight, tuple({part.name: part for part in (*found.parts, *parts)}.values()))


def _match_integers(
    name: str,
    codes: Weight,
    shape: tuple[int, ...],
    parts: Mapping[str, Weight],
    context: Context,
) -> Whole | str:
    """Integers of 1 to 8 bits in words, offset to be positive; zero points are packed by rows."""
    scale, zero, groups = parts["_scale"], parts.get("_zero_point"), parts.get("_g_idx")
    weights = dict(_list_schemes(context))
    packing = _find_packing(codes.shape[-1], shape[-1], tuple(weights))
    if packing is None:
        return f"integers in words: {codes.shape[-1]} of them for {shape[-1]} columns"
    bits, dense = packing
    blocks = layout.fit_scale(shape, scale, (1, weights.get(bits, 0)))
    is_packed = zero is not None and zero.dtype == torch.int32
    rows = count_words(shape[-2], bits, dense=dense) if is_packed else shape[-2]
    if groups is not None and (len(shape) != 2 or groups.shape != shape[1:]):
        return f"int{bits} with a g_idx of shape {list(groups.shape)}"
    if blocks is None and groups is None:
        return f"int{bits} with a scale of shape {list(scale.shape)} for {list(shape)}"
    if zero is not None and zero.shape != (*scale.shape[:-2], rows, *scale.shape[-1:]):
        return f"int{bits} with zero points of shape {list(zero.shape)}"

    def read_offset(scale: Tensor, stored: Tensor | None) -> Tensor:
        """Return what to subtract from the codes: their middle, and the zero point."""
        if stored is not None and is_packed:
            return unpack_words(stored.mT, bits, dense=dense)[..., : shape[-2]].mT
        middle = scale.new_full(scale.shape, 2.0 ** (bits - 1))
        return middle if stored is None else middle + stored.reshape(scale.shape)

    def decode(codes: Tensor, scale: Tensor, *others: Tensor) -> Tensor:
        rest = list(others)
        values = unpack_words(codes, bits, dense=dense)[..., : shape[-1]]
        sides = layout.align_scale(values.shape, scale.shape) or scale.shape
        scale = scale.to(torch.float32).reshape(sides)
        offset = read_offset(scale, rest.pop(0) if zero else None)
        # −1 everywhere is how the library writes that columns are in order.
        if rest and (blocks is None or int(rest[0].max()) >= 0):
            return scale_groups(values, scale, offset, rest[0])
        return scale_blocks(values, scale, blocks or (), offset)

    inputs = (codes, scale, *(part for part in (zero, groups) if part))
    return build_whole(name, inputs, decode, shape=shape, stored=f"int{bits} (compressed-tensors)")


def _read_shape(codes: Weight, stated: Weight | None) -> tuple[int, ...] | None:
    """Return the weight's shape, as stored with the codes; None if it can't be theirs."""
    values = None if stated is None else layout.read_small(stated, _MAX_AXES)
    if values is None or values.dtype not in (torch.int32, torch.int64):
        return None
    shape = tuple(int(side) for side in values)
    fits = len(shape) == len(codes.shape) and shape[:-1] == codes.shape[:-1]
    # A word holds 32 codes of one bit at most.
    return shape if fits and 0 < shape[-1] <= 32 * codes.shape[-1] else None


def _find_packing(words: int, columns: int, stated: tuple[int, ...]) -> tuple[int, bool] | None:
    """Return the bits of a code, and whether codes run on from one word to the next."""
    for bits in (*stated, *_BITS):
        for dense in (True, False):
            if bits in _BITS and count_words(columns, bits, dense=dense) == words:
                return bits, dense
    return None


def _list_schemes(context: Context) -> Iterator[tuple[int, int]]:
    """Yield bits and group size of every scheme in the configuration."""
    groups = layout.read_settings(context).get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        scheme = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(scheme, Mapping):
            yield layout.read_int(scheme, "num_bits"), layout.read_int(scheme, "group_size")


PACKED_RULES: tuple[Rule, ...] = (_match_packed,)
