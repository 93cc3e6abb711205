"""bitsandbytes: int8 with a scale per row, and 4-bit codes of a table (nf4, fp4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rankwise.weights.dequantise import look_up, look_up_pairs, scale_blocks
from rankwise.weights.parts import Context, Rule, Whole
from rankwise.weights.quantised import layout
from rankwise.weights.quantised.layout import build_whole, refuse
from rankwise.weights.tensor import Weight

_KINDS = ("nf4", "fp4")
_TABLES = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_LEVELS = 127


class FourBitState(NamedTuple):
    """What 4-bit codes need in addition to their scales."""

    shape: tuple[int, ...]
    block_size: int
    nested_block_size: int = 0  # of the scales, which may be quantised themselves
    nested_offset: float = 0.0


def _match_four_bits(codes: Weight, context: Context) -> Whole | None:
    """`X.weight` with `X.weight.absmax`, `.quant_map` and a state in JSON."""
    states = (f"{codes.name}.quant_state.bitsandbytes__{kind}" for kind in _KINDS)
    state = layout.find_first(states, context)
    if state is None and f"{codes.name}.absmax" not in context.by_name:
        return None
    tables = {t: context.by_name.get(f"{codes.name}.{t}") for t in _TABLES}
    stored = {t: part for t, part in tables.items() if part is not None}
    parts = (*((state,) if state else ()), *stored.values())
    settings = None if state is None else _read_state(state)
    if state is None or settings is None:
        return refuse(codes, "bitsandbytes 4-bit without a readable quant_state", parts)
    codes_stored = 2 * math.prod(codes.shape) * codes.dtype.itemsize
    problem = _find_problem(settings, codes_stored, {t: p.shape for t, p in stored.items()})
    if problem:
        return refuse(codes, f"bitsandbytes 4-bit with {problem}", parts)

    def decode(codes: Tensor, *tables: Tensor) -> Tensor:
        return decode_four_bits(codes, settings, dict(zip(stored, tables, strict=True)))

    kind = state.name.rpartition("__")[2]
    inputs = (codes, *stored.values())
    whole = build_whole(codes.name, inputs, decode, shape=settings.shape, stored=kind, beside=parts)
    # The first axis of the codes has nothing to do with the weight's.
    return Whole(layout.without_rows(whole.weight), whole.parts)


def _read_state(state: Weight) -> FourBitState | None:
    """Read the state; None if it is not what bitsandbytes writes."""
    value = layout.read_json(state)
    shape, offset = value.get("shape"), value.get("nested_offset", 0.0)
    if not isinstance(shape, list) or not all(type(side) is int and side > 0 for side in shape):
        return None
    if not isinstance(offset, int | float):
        return None
    block, nested = (layout.read_int(value, key) for key in ("blocksize", "nested_blocksize"))
    return FourBitState(tuple(shape), block, nested, float(offset))


def _find_problem(
    state: FourBitState, codes: int, shapes: Mapping[str, tuple[int, ...]]
) -> str | None:
    """Return what does not fit together; None if everything does."""
    sizes = {table: math.prod(shape) for table, shape in shapes.items()}
    numbers = math.prod(state.shape)
    if numbers not in (codes, codes - 1):
        return f"{codes} codes for a weight of shape {list(state.shape)[:8]}"
    if state.block_size <= 0 or sizes.get("absmax") != -(-numbers // state.block_size):
        return f"{sizes.get('absmax', 0)} scales for blocks of {state.block_size}"
    if sizes.get("quant_map") != 16:
        return "no table of its 16 values"
    if "nested_absmax" in sizes:
        groups = -(-sizes["absmax"] // max(state.nested_block_size, 1))
        if state.nested_block_size <= 0 or sizes["nested_absmax"] != groups:
            return f"{sizes['nested_absmax']} scales of scales"
        if sizes.get("nested_quant_map") != 256:
            return "no table of its scales' values"
    return None


def decode_four_bits(codes: Tensor, state: FourBitState, tables: Mapping[str, Tensor]) -> Tensor:
    """Compute the weight from pairs of codes, the higher half of a byte first."""
    scale = tables["absmax"].reshape(-1)
    if "nested_absmax" in tables:
        scale = look_up(tables["nested_quant_map"].reshape(-1), scale)
        nested = tables["nested_absmax"].to(torch.float32).reshape(-1)
        scale = scale_blocks(scale, nested, (state.nested_block_size,)) + state.nested_offset
    packed = codes.contiguous().view(torch.uint8).reshape(-1)
    table = tables["quant_map"].reshape(-1).to(codes.device)
    values = look_up_pairs(table, packed, high_first=True)[: math.prod(state.shape)]
    return scale_blocks(values, scale.to(torch.float32), (state.block_size,)).reshape(state.shape)


def _match_rows(codes: Weight, context: Context) -> Whole | None:
    """`X.weight` in int8 with `X.SCB`, the largest magnitude of every row."""
    prefix, last = layout.split_name(codes.name)
    largest = context.by_name.get(f"{prefix}SCB")
    if last != "weight" or largest is None or codes.dtype != torch.int8:
        return None
    order = context.by_name.get(f"{prefix}weight_format")
    parts = (largest, *((order,) if order else ()))
    value = None if order is None else layout.read_small(order, 1)
    if value is not None and bool(value.contiguous().view(torch.uint8).any()):
        return refuse(codes, "bitsandbytes int8 in the order of a kernel", parts)
    if len(codes.shape) != 2 or largest.shape != codes.shape[:1] or not layout.is_scale(largest):
        return refuse(codes, f"bitsandbytes int8 with scales of shape {list(largest.shape)}", parts)
    stored = "int8 (bitsandbytes)"
    inputs = (codes, largest)
    return build_whole(
        codes.name, inputs, decode_rows, shape=codes.shape, stored=stored, beside=parts
    )


def decode_rows(codes: Tensor, largest: Tensor) -> Tensor:
    """Compute the weight from int8 codes and the largest magnitude of every row."""
    scale = (largest.to(torch.float32) / _LEVELS).reshape(-1, 1)
    return scale_blocks(codes.to(torch.float32, copy=True), scale, (1, codes.shape[1]))


BITSANDBYTES_RULES: tuple[Rule, ...] = (_match_four_bits, _match_rows)
