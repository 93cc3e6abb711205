"""Adapters: low-rank factors → the change of a weight that they make."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from rankwise.weights.parts import Context, Rule, Whole, join_parts
from rankwise.weights.tensor import Weight

_LORA = re.compile(
    r"^(?P<base>.*?)[._]?lora[._](?:embedding_)?(?P<side>A|B|down|up)(?P<adapter>\.(?!weight$)\w+)?(?:\.weight)?$"
)
_LORA_TWIN = {"A": "B", "down": "up"}


def _match_lora(weight: Weight, context: Context) -> Whole | None:
    """`lora_A`, `lora_B` of any adapter: one layer B·A."""
    match = _LORA.match(weight.name)
    if match is None or match["side"] not in _LORA_TWIN or len(weight.shape) < 2:
        return None
    start, end = match.span("side")
    other = context.by_name.get(weight.name[:start] + _LORA_TWIN[match["side"]] + weight.name[end:])
    if other is None or len(other.shape) < 2 or math.prod(other.shape[1:]) != weight.shape[0]:
        return None
    shape = (other.shape[0], math.prod(weight.shape[1:]))
    name = ".".join(filter(None, (match["base"], "lora" + (match["adapter"] or ""))))
    parts = (weight, other)
    return Whole(join_parts(name, parts, _multiply_factors, shape=shape, kind="lora"), parts)


def _multiply_factors(a: Tensor, b: Tensor) -> Tensor:
    """Return a small matrix with the singular values of B·A, from the QR of both factors."""
    right = torch.linalg.qr(a.flatten(1).T, mode="r").R
    left = torch.linalg.qr(b.flatten(1), mode="r").R
    return left @ right.T


ADAPTER_RULES: tuple[Rule, ...] = (_match_lora,)
