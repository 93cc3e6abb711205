"""What the rules for quantised weights share: finding parts, building the weight, refusing it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from rankwise.weights.dequantise import find_blocks
from rankwise.weights.parts import Context, Parts, Whole
from rankwise.weights.tensor import Status, Weight

Settings = Mapping[str, object]

FLOAT8 = {
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e4m3fnuz: "e4m3fnuz",
    torch.float8_e5m2: "e5m2",
    torch.float8_e5m2fnuz: "e5m2fnuz",
}
# Types that torch has only in newer versions.
E8M0: torch.dtype | None = getattr(torch, "float8_e8m0fnu", None)
FLOAT4: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)
EXPONENTS = (torch.uint8, E8M0)
BYTES = (torch.uint8, torch.int8, FLOAT4)  # what two 4-bit floats are stored as
_SCALES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

_MAX_JSON = 1 << 16

# Tensors of a quantised layer that its weight is not computed from: scales of what goes in and out.
_BESIDE_MODULE = (
    *("input_scale", "input_scale_ub", "input_scale_inv", "input_zero_point", "input_global_scale"),
    *("activation_scale", "activation_scale_inv", "act_global_scale", "act_pre_scale"),
    *("input_activation_scale", "output_activation_scale", "scale_input", "pre_quant_scale"),
    *("k_scale", "v_scale", "q_scale", "output_scale", "output_zero_point", "weight_format"),
    *("comfy_quant", "scaled_fp8"),
)
_BESIDE_WEIGHT = ("_activation_scale", "_input_scale", "_act_pre_scale")


def split_name(name: str) -> tuple[str, str]:
    """Return the module's prefix, with its dot, and the tensor's own name."""
    head, dot, last = name.rpartition(".")
    return head + dot, last


def find_first(names: Iterable[str], context: Context) -> Weight | None:
    """Return the first of these tensors that is stored."""
    return next((context.by_name[name] for name in names if name in context.by_name), None)


def find_all(names: Iterable[str], context: Context) -> Parts:
    """Return those of these tensors that are stored."""
    return tuple(context.by_name[name] for name in names if name in context.by_name)


def find_beside(name: str, context: Context) -> Parts:
    """Return the scales of activations that are stored with a weight."""
    prefix, _ = split_name(name)
    names = (*(prefix + last for last in _BESIDE_MODULE), *(name + end for end in _BESIDE_WEIGHT))
    return tuple(part for part in find_all(names, context) if math.prod(part.shape) <= 1 << 16)


def is_scale(weight: Weight) -> bool:
    """Return whether a tensor's type is one that scales are stored in."""
    return weight.dtype in _SCALES


def read_settings(context: Context) -> Settings:
    """Return what the model's configuration says about its quantisation; empty if nothing."""
    for key in ("quantization_config", "compression_config"):
        settings = context.config.get(key)
        if isinstance(settings, Mapping):
            return settings
    return {}


def read_int(settings: Settings, key: str) -> int:
    """Return a whole number of the settings; 0 if it is missing or something else."""
    value = settings.get(key)
    return value if type(value) is int else 0


def read_text(settings: Settings, key: str) -> str:
    """Return a text of the settings in lower case; empty if it is missing or something else."""
    value = settings.get(key)
    return value.lower() if isinstance(value, str) else ""


def read_block_size(context: Context) -> tuple[int, int] | None:
    """Return the sizes of blocks that the configuration states."""
    match read_settings(context).get("weight_block_size"):
        case [int(rows), int(columns)]:
            return rows, columns
    return None


def read_small(weight: Weight, limit: int) -> Tensor | None:
    """Load a small tensor that describes a layout; None if that is not possible."""
    if weight.obstacle or weight.collective or math.prod(weight.shape) > limit:
        return None
    try:
        return weight.load().detach().cpu().reshape(-1)
    except Exception:  # noqa: BLE001 - whatever a reader raises, the weight gets a row that says so
        return None


def read_json(weight: Weight) -> Settings:
    """Read settings that are stored as bytes of JSON; empty if they are something else."""
    data = read_small(weight, _MAX_JSON)
    if data is None or data.dtype != torch.uint8:
        return {}
    try:
        value = json.loads(bytes(data.tolist()))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def align_scale(shape: Sequence[int], scale: Sequence[int]) -> tuple[int, ...] | None:
    """Return a scale's shape with as many axes as the weight's; None if it can't be."""
    if math.prod(scale) == 1:
        return (1,) * len(shape)
    if len(scale) < len(shape) and tuple(scale) == tuple(shape[: len(scale)]):
        return (*scale, *(1,) * (len(shape) - len(scale)))
    return tuple(scale) if len(scale) == len(shape) else None


def fit_scale(
    shape: Sequence[int], scale: Weight, hint: Sequence[int] | None = None
) -> tuple[int, ...] | None:
    """Return the size of the blocks that a scale applies to; None if it does not fit."""
    aligned = align_scale(shape, scale.shape)
    return None if aligned is None else find_blocks(shape, aligned, hint)


def describe_blocks(shape: Sequence[int], blocks: Sequence[int]) -> str:
    """Return how far a scale reaches, in words."""
    if tuple(blocks) == tuple(shape):
        return "a scale per tensor"
    if tuple(blocks[1:]) == tuple(shape[1:]):
        return {2: "a scale per row", 3: "a scale per matrix"}.get(len(shape), "a scale per filter")
    rows, columns = blocks[-2:]
    if columns == shape[-1] and rows == 1:
        return "a scale per row"
    if rows == shape[-2] and columns == 1:
        return "a scale per column"
    return f"blocks of {columns}" if rows == 1 else f"{rows}×{columns} blocks"


def build_whole(
    name: str,
    inputs: Sequence[Weight],
    decode: Callable[..., Tensor],
    *,
    shape: tuple[int, ...],
    stored: str,
    rounded_to: torch.dtype | None = None,
    beside: Iterable[Weight] = (),
) -> Whole:
    """Build a weight that is dequantised when it is loaded.

    Args:
        name: The weight's name.
        inputs: The tensors that `decode` takes, codes first.
        decode: Computes the weight in float32. Of a stack of matrices it can compute some alone,
            from the same rows of all inputs whose first axis is the stack's.
        shape: The weight's shape.
        stored: The stored type, for users.
        rounded_to: The floating type of the codes, where it is one.
        beside: Other tensors of the same layer.
    """

    def check(values: Tensor, expected: tuple[int, ...]) -> Tensor:
        if tuple(values.shape) != expected:
            raise ValueError(f"Expected a weight of shape {expected}, got {tuple(values.shape)}.")
        return values

    def load() -> Tensor:
        return check(decode(*(part.load().detach() for part in inputs)), shape)

    def load_rows(start: int, count: int) -> Tensor:
        pieces = (
            part.load_slice(start, count) if part.shape[:1] == shape[:1] else part.load()
            for part in inputs
        )
        return check(decode(*(piece.detach() for piece in pieces)), (count, *shape[1:]))

    obstacles = [part.obstacle for part in inputs if part.obstacle]
    if any(part.dtype.is_complex for part in inputs):
        obstacles = [(Status.COMPLEX, f"{stored} with complex numbers")]
    codes = inputs[0]
    weight = Weight(
        name,
        shape,
        torch.float32,
        load,
        identity=("dequantised", codes.identity) if codes.identity else None,
        stored=stored,
        rounded_to=rounded_to,
        kind=codes.kind,
        obstacle=next((o for o in obstacles if o[0] is not Status.QUANTISED), None),
        parameters=math.prod(shape),
        collective=any(part.collective for part in inputs),
        load_rows=load_rows if len(shape) > 2 else None,
    )
    return Whole(weight, _unique((*inputs, *beside)))


def refuse(codes: Weight, layout: str, parts: Iterable[Weight] = ()) -> Whole:
    """Build the row of a quantised weight that is not measured, and merge its parts into it."""
    # Where there is no data, that is the reason, whatever the layout.
    missing = codes.obstacle is not None and codes.obstacle[0] is Status.NO_DATA
    reason = (Status.QUANTISED, f"quantised, not measured: {layout}")
    weight = dataclasses.replace(codes, obstacle=codes.obstacle if missing else reason)
    return Whole(weight, _unique((codes, *parts)))


def without_rows(weight: Weight) -> Weight:
    """Return a weight that can only be loaded as a whole."""
    return dataclasses.replace(weight, load_rows=None)


def _unique(parts: Iterable[Weight]) -> Parts:
    return tuple({part.name: part for part in parts}.values())


def format_type(weight: Weight) -> str:
    """Return the name of a tensor's type."""
    return str(weight.dtype).removeprefix("torch.")
