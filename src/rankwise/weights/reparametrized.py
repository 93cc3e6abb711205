"""Weights that torch stores in parts: weight norm, spectral norm, parametrizations, pruning."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from rankwise.weights.parts import Context, Rule, Whole, join_parts
from rankwise.weights.tensor import Weight


def _match_weight_norm(weight: Weight, context: Context) -> Whole | None:
    """`X_g`, `X_v` of the old torch.nn.utils.weight_norm: X = g · v/‖v‖."""
    if not weight.name.endswith(("_g", "_v")):
        return None
    base = weight.name[:-2]
    length, direction = context.by_name.get(f"{base}_g"), context.by_name.get(f"{base}_v")
    return _join_weight_norm(base, length, direction)


def _match_parametrized_weight_norm(weight: Weight, context: Context) -> Whole | None:
    """`parametrizations.X.original0`, `…original1`: weight norm as a parametrization."""
    stem, _, last = weight.name.rpartition(".")
    if last not in ("original0", "original1"):
        return None
    length, direction = (
        context.by_name.get(f"{stem}.original0"),
        context.by_name.get(f"{stem}.original1"),
    )
    return _join_weight_norm(_without_parametrizations(stem), length, direction)


def _join_weight_norm(name: str, length: Weight | None, direction: Weight | None) -> Whole | None:
    if length is None or direction is None or len(direction.shape) < 2:
        return None
    axes = [i for i, side in enumerate(length.shape) if side == 1]
    full = [1 if i in axes else side for i, side in enumerate(direction.shape)]
    if list(length.shape) != full and length.shape != ():
        return None
    axes = axes if length.shape else list(range(len(direction.shape)))

    def join(v: Tensor, g: Tensor) -> Tensor:
        return g * v / torch.linalg.vector_norm(v, dim=axes, keepdim=True)

    parts = (direction, length)
    return Whole(join_parts(name, parts, join), parts)


def _match_spectral_norm(weight: Weight, context: Context) -> Whole | None:
    """`X_orig`, `X_u`, `X_v` of the old torch.nn.utils.spectral_norm: X = orig/σ, σ = uᵀ W v."""
    if not weight.name.endswith("_orig"):
        return None
    base = weight.name[: -len("_orig")]
    u, v = context.by_name.get(f"{base}_u"), context.by_name.get(f"{base}_v")
    return _join_spectral_norm(base, weight, u, v)


def _match_parametrization(weight: Weight, context: Context) -> Whole | None:
    """`parametrizations.X.original`: spectral norm where its vectors are stored with it."""
    stem, _, last = weight.name.rpartition(".")
    if last != "original" or "parametrizations." not in f".{stem}":
        return None
    name = _without_parametrizations(stem)
    u, v = context.by_name.get(f"{stem}.0._u"), context.by_name.get(f"{stem}.0._v")
    if (match := _join_spectral_norm(name, weight, u, v)) is not None:
        return match
    note = "the file does not say how it is parametrized; the stored original was probed"
    return Whole(dataclasses.replace(weight, name=name, note=note), (weight,))


def _join_spectral_norm(
    name: str, weight: Weight, u: Weight | None, v: Weight | None
) -> Whole | None:
    if u is None or v is None or len(u.shape) != 1 or len(v.shape) != 1:
        return None
    if math.prod(weight.shape) != u.shape[0] * v.shape[0]:
        return None
    axis = 0 if weight.shape[0] == u.shape[0] else 1

    def join(w: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return w / (left @ (w.movedim(axis, 0).flatten(1) @ right))

    parts = (weight, u, v)
    return Whole(join_parts(name, parts, join), parts)


def _match_pruning(weight: Weight, context: Context) -> Whole | None:
    """`X_orig`, `X_mask` of torch.nn.utils.prune: X = orig · mask."""
    if not weight.name.endswith("_orig"):
        return None
    base = weight.name[: -len("_orig")]
    mask = context.by_name.get(f"{base}_mask")
    if mask is None or mask.shape != weight.shape:
        return None
    parts = (weight, mask)
    pruned = join_parts(base, parts, torch.mul, parameters=math.prod(weight.shape))
    return Whole(pruned, parts)


def _without_parametrizations(stem: str) -> str:
    return ".".join(step for step in stem.split(".") if step != "parametrizations")


REPARAMETRIZATION_RULES: tuple[Rule, ...] = (
    _match_weight_norm,
    _match_parametrized_weight_norm,
    _match_spectral_norm,
    _match_parametrization,
    _match_pruning,
)
