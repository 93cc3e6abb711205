"""Which axis of a stored weight counts its outputs.

Most weights are stored as [out, in]. Some formats and models store [in, out]: Flax and Keras, the
layers of GPT-2, the fused experts of Llama 4 and gpt-oss.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankwise.weights.tensor import Weight

ByName = Mapping[str, Weight]

_KERNEL = re.compile(r".*(^|[./])kernel(:0)?", re.DOTALL)
_GPT2 = re.compile(
    r"(?P<block>.*?)(?P<part>(attn\.|mlp\.)?(c_attn|c_proj|c_fc|q_attn))\.weight", re.S
)
_KNOWN = ("linear", "recurrent", "attention")
_MAX_NAME = 500
# Experts that compute up and gate projections, and those that project down again.
_UP = ("gate_up_proj", "up_proj", "gate_proj", "w1", "w3", "wi", "wi_0", "wi_1", "input_linear")
_DOWN = ("down_proj", "w2", "wo", "output_linear")


def find_output_axis(weight: Weight, by_name: ByName) -> int:
    """Return which of the last two axes of a weight counts its outputs: 0 for [out, in].

    Example:
        >>> import torch
        >>> from rankwise.weights.module import describe_tensor
        >>> weight = describe_tensor("h.0.attn.c_attn.weight", torch.zeros(768, 2304))
        >>> find_output_axis(weight, {})
        1
    """
    # Who knows the kind of a matrix, from a graph or from its layer, knows its output axis too.
    if weight.output_axis or len(weight.shape) < 2 or weight.kind in _KNOWN:
        return weight.output_axis
    if len(weight.shape) > 2:
        return _find_axis_of_experts(weight, by_name)
    if len(weight.name) > _MAX_NAME:
        return 0
    if _KERNEL.fullmatch(weight.name):
        return 1
    match = _GPT2.fullmatch(weight.name)
    return int(match is not None and _is_gpt2(match["block"], match["part"], weight, by_name))


def _is_gpt2(block: str, part: str, weight: Weight, by_name: ByName) -> bool:
    """Return whether a layer is stored as GPT-2 stores it; newer models use its names otherwise."""
    rows, columns = weight.shape
    if part.endswith("c_attn"):
        return columns == 3 * rows
    if part.endswith("c_fc"):
        return columns > rows
    if part.startswith("mlp.") and rows != columns:
        return rows > columns
    for owner in ("attn.", "crossattention.", ""):
        stacked = by_name.get(f"{block}{owner}c_attn.weight")
        if stacked is not None and len(stacked.shape) == 2:
            return stacked.shape[0] < stacked.shape[1]
    return False


def _find_axis_of_experts(weight: Weight, by_name: ByName) -> int:
    """Return it by the experts' bias, or by their other projection: up and down, sides must fit."""
    rows, columns = weight.shape[-2:]
    bias = by_name.get(f"{weight.name}_bias")
    if bias is not None and rows != columns and bias.shape[-1:] in ((rows,), (columns,)):
        return int(bias.shape[-1] == columns)
    suffix = ".weight" if weight.name.endswith(".weight") else ""
    prefix, _, last = weight.name.removesuffix(".weight").rpartition(".")
    for other in _DOWN if last in _UP else _UP if last in _DOWN else ():
        twin = by_name.get(f"{prefix}.{other}{suffix}" if prefix else other + suffix)
        if twin is None or len(twin.shape) != len(weight.shape):
            continue
        up, down = (weight.shape, twin.shape) if last in _UP else (twin.shape, weight.shape)
        as_stored, turned = _fits(up[-2:], down[-2:]), _fits(up[:-3:-1], down[:-3:-1])
        if as_stored != turned:
            return int(turned)
    return 0


def _fits(up: tuple[int, ...], down: tuple[int, ...]) -> bool:
    """Return whether two shapes, as [out, in], are those of an expert's projections up and down."""
    return up[1] == down[0] and up[0] in (down[1], 2 * down[1])
