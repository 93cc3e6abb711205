"""Stored tensors → the weights a network computes with.

What is stored need not be what the network computes with: weight norm stores a direction and a
length, pruning a mask, LoRA two thin factors, a recurrent layer all its gates in one matrix. Parts
are matched by their names; each part keeps a row that names the weight it belongs to.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from rankwise.probes.tensor import Status, Weight

Parts = tuple[Weight, ...]
ByName = Mapping[str, Weight]

_LORA = re.compile(
    r"^(?P<base>.*?)[._]?lora[._](?:embedding_)?(?P<side>A|B|down|up)(?P<adapter>\.(?!weight$)\w+)?(?:\.weight)?$"
)
_LORA_TWIN = {"A": "B", "down": "up"}
_GATES = {3: "rzn", 4: "ifgo"}
_RECURRENT = re.compile(r"^(?P<head>.*\bweight_)[ih]h(?P<tail>(_l\d+(_reverse)?)?)$")
_FUSED = re.compile(r"(^|\.)(in_proj_weight|(qkv|c_attn|in_proj|Wqkv)\.weight)$")
# What DDP, torch.compile, FSDP and activation checkpointing put into parameters' names.
_WRAPPERS = re.compile(
    r"(?:^module\.)|(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)


def strip_wrappers(weights: Sequence[Weight]) -> list[Weight]:
    """Remove wrappers' prefixes from the names, unless two names would become equal."""
    names = [_WRAPPERS.sub("", weight.name) for weight in weights]
    if len(set(names)) < len(names):
        return list(weights)
    return [dataclasses.replace(w, name=name) for w, name in zip(weights, names, strict=True)]


def combine_parts(weights: Sequence[Weight]) -> list[Weight]:
    """Insert each reparametrized weight before the first of its parts; mark the parts as merged."""
    by_name = {weight.name: weight for weight in weights}
    rows: list[Weight] = []
    merged: dict[str, str] = {}
    for weight in weights:
        match = _find_whole(weight, by_name) if weight.name not in merged else None
        if match is not None:
            whole, parts = match
            rows.append(whole)
            merged.update({part.name: whole.name for part in parts})
        rows.append(weight)
    return [_mark_merged(row, merged[row.name]) if row.name in merged else row for row in rows]


def _find_whole(weight: Weight, by_name: ByName) -> tuple[Weight, Parts] | None:
    """Return the weight that this one is a part of, with all its parts; None if it is no part."""
    if weight.obstacle is not None:
        return None
    rules = (
        _match_weight_norm,
        _match_parametrized_weight_norm,
        _match_spectral_norm,
        _match_parametrization,
        _match_pruning,
        _match_lora,
    )
    matches = (rule(weight, by_name) for rule in rules)
    # A name that exists already means that the whole is stored as well.
    return next((m for m in matches if m is not None and m[0].name not in by_name), None)


def _mark_merged(part: Weight, whole: str) -> Weight:
    return dataclasses.replace(part, obstacle=(Status.MERGED, f"part of {whole}"))


def _join(name: str, parts: Parts, join: Callable[..., Tensor], **changes: object) -> Weight:
    """Return a weight that is computed from its parts on loading; the first gives its shape."""
    first = parts[0]
    fields: dict[str, object] = {
        "name": name,
        "load": lambda: join(*(part.load().detach().to(torch.float64) for part in parts)),
        "identity": tuple(part.identity for part in parts) if first.identity else None,
        "parameters": sum(math.prod(part.shape) for part in parts),
        "collective": any(part.collective for part in parts),
        "obstacle": next((part.obstacle for part in parts if part.obstacle), None),
    }
    return dataclasses.replace(first, **{**fields, **changes})  # type: ignore[arg-type]


def _match_weight_norm(weight: Weight, by_name: ByName) -> tuple[Weight, Parts] | None:
    """`X_g`, `X_v` of the old torch.nn.utils.weight_norm: X = g · v/‖v‖."""
    if not weight.name.endswith(("_g", "_v")):
        return None
    base = weight.name[:-2]
    length, direction = by_name.get(f"{base}_g"), by_name.get(f"{base}_v")
    return _join_weight_norm(base, length, direction)


def _match_parametrized_weight_norm(weight: Weight, by_name: ByName) -> tuple[Weight, Parts] | None:
    """`parametrizations.X.original0`, `…original1`: weight norm as a parametrization."""
    stem, _, last = weight.name.rpartition(".")
    if last not in ("original0", "original1"):
        return None
    length, direction = by_name.get(f"{stem}.original0"), by_name.get(f"{stem}.original1")
    return _join_weight_norm(_without_parametrizations(stem), length, direction)


def _join_weight_norm(
    name: str, length: Weight | None, direction: Weight | None
) -> tuple[Weight, Parts] | None:
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
    return _join(name, parts, join), parts


def _match_spectral_norm(weight: Weight, by_name: ByName) -> tuple[Weight, Parts] | None:
    """`X_orig`, `X_u`, `X_v` of the old torch.nn.utils.spectral_norm: X = orig/σ, σ = uᵀ W v."""
    if not weight.name.endswith("_orig"):
        return None
    base = weight.name[: -len("_orig")]
    u, v = by_name.get(f"{base}_u"), by_name.get(f"{base}_v")
    return _join_spectral_norm(base, weight, u, v)


def _match_parametrization(weight: Weight, by_name: ByName) -> tuple[Weight, Parts] | None:
    """`parametrizations.X.original`: spectral norm where its vectors are stored beside it."""
    stem, _, last = weight.name.rpartition(".")
    if last != "original" or "parametrizations." not in f".{stem}":
        return None
    name = _without_parametrizations(stem)
    u, v = by_name.get(f"{stem}.0._u"), by_name.get(f"{stem}.0._v")
    if (match := _join_spectral_norm(name, weight, u, v)) is not None:
        return match
    note = "the file does not say how it is parametrized; the stored original was probed"
    return dataclasses.replace(weight, name=name, note=note), (weight,)


def _join_spectral_norm(
    name: str, weight: Weight, u: Weight | None, v: Weight | None
) -> tuple[Weight, Parts] | None:
    if u is None or v is None or len(u.shape) != 1 or len(v.shape) != 1:
        return None
    if math.prod(weight.shape) != u.shape[0] * v.shape[0]:
        return None
    axis = 0 if weight.shape[0] == u.shape[0] else 1

    def join(w: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return w / (left @ (w.movedim(axis, 0).flatten(1) @ right))

    parts = (weight, u, v)
    return _join(name, parts, join), parts


def _match_pruning(weight: Weight, by_name: ByName) -> tuple[Weight, Parts] | None:
    """`X_orig`, `X_mask` of torch.nn.utils.prune: X = orig · mask."""
    if not weight.name.endswith("_orig"):
        return None
    base = weight.name[: -len("_orig")]
    mask = by_name.get(f"{base}_mask")
    if mask is None or mask.shape != weight.shape:
        return None
    parts = (weight, mask)
    pruned = _join(base, parts, torch.mul, parameters=math.prod(weight.shape))
    return pruned, parts


def _match_lora(weight: Weight, by_name: ByName) -> tuple[Weight, Parts] | None:
    """`lora_A`, `lora_B` of any adapter: one layer B·A."""
    match = _LORA.match(weight.name)
    if match is None or match["side"] not in _LORA_TWIN or len(weight.shape) < 2:
        return None
    start, end = match.span("side")
    other = by_name.get(weight.name[:start] + _LORA_TWIN[match["side"]] + weight.name[end:])
    if other is None or len(other.shape) < 2 or math.prod(other.shape[1:]) != weight.shape[0]:
        return None
    shape = (other.shape[0], math.prod(weight.shape[1:]))
    name = ".".join(filter(None, (match["base"], "lora" + (match["adapter"] or ""))))
    parts = (weight, other)
    return _join(name, parts, _multiply_factors, shape=shape, kind="lora"), parts


def _multiply_factors(a: Tensor, b: Tensor) -> Tensor:
    """Return a small matrix with the singular values of B·A, from the QR of both factors."""
    right = torch.linalg.qr(a.flatten(1).T, mode="r").R
    left = torch.linalg.qr(b.flatten(1), mode="r").R
    return left @ right.T


def _without_parametrizations(stem: str) -> str:
    return ".".join(step for step in stem.split(".") if step != "parametrizations")


def split_stacks(weights: Iterable[Weight]) -> list[Weight]:
    """Split recurrent layers into their gates, and stacked attention projections into q, k, v."""
    weights = list(weights)
    by_name = {weight.name: weight for weight in weights}
    return [piece for weight in weights for piece in _split_stack(weight, by_name)]


def _split_stack(weight: Weight, by_name: ByName) -> list[Weight]:
    axis, letters = _find_stack(weight, by_name)
    if not letters or weight.obstacle:
        return [weight]
    size = weight.shape[axis] // len(letters)
    shape = tuple(size if i == axis else side for i, side in enumerate(weight.shape))

    def piece(i: int, letter: str) -> Weight:
        return dataclasses.replace(
            weight,
            name=f"{weight.name}[{letter}]",
            shape=shape,
            load=lambda: weight.load().narrow(axis, i * size, size),
            identity=(weight.identity, letter) if weight.identity else None,
        )

    return [piece(i, letter) for i, letter in enumerate(letters)]


def _find_stack(weight: Weight, by_name: ByName) -> tuple[int, str]:
    """Return the axis along which a weight is stacked, and one letter for each block."""
    if len(weight.shape) != 2:
        return 0, ""
    rows, columns = weight.shape
    if _FUSED.search(weight.name):
        axis = 0 if rows == 3 * columns else 1
        return axis, "qkv" if weight.shape[axis] == 3 * weight.shape[1 - axis] else ""
    if match := _RECURRENT.match(weight.name):
        hidden = _find_hidden_size(match["head"], match["tail"], by_name)
        return 0, _GATES.get(rows // hidden, "") if hidden and rows % hidden == 0 else ""
    return 0, ""


def _find_hidden_size(head: str, tail: str, by_name: ByName) -> int:
    """Return a recurrent layer's width: `weight_hr`'s columns where the output is projected."""
    for sibling in ("hr", "hh"):
        weight = by_name.get(f"{head}{sibling}{tail}")
        if weight is not None and len(weight.shape) == 2:
            return weight.shape[1]
    return 0


def mark_ties(weights: Iterable[Weight]) -> list[Weight]:
    """Mark every tensor that shares its memory with an earlier one that is to be probed."""
    first: dict[Hashable, str] = {}
    rows = []
    for weight in weights:
        if weight.identity is None or weight.obstacle is not None:
            rows.append(weight)
        elif weight.identity in first:
            obstacle = (Status.TIED, f"tied to {first[weight.identity]}")
            rows.append(dataclasses.replace(weight, obstacle=obstacle))
        else:
            first[weight.identity] = weight.name
            rows.append(weight)
    return rows
