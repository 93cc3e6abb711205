"""An optimizer's layers → their rows, the work divided over the processes that train together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankwise.exchange import everyone_tells, process_count, process_number
from rankwise.measure import measure, needs_measuring
from rankwise.results import LayerMetrics
from rankwise.survey import needs, survey
from rankwise.tensors import Weight
from rankwise.weights import described

__all__ = ["Found", "Held", "measure_layers"]

Named = Sequence[tuple[str, Tensor]]
Rows = dict[str, list[LayerMetrics]]

# Replicas that drifted apart by rounding still count as replicas.
_DRIFT = 1e-5


class Held(NamedTuple):
    """What a process holds of a layer.

    Attributes:
        weights: The weights to measure, by name; none where another process has them.
        before: The layer's stable rank an epoch ago.
        stepped: Whether the layer took a step since.
    """

    weights: Named
    before: float | None = None
    stepped: bool = True


class Found(NamedTuple):
    """What is known of a layer once it was measured, the same on all processes.

    Attributes:
        rows: A row for each of its weights.
        before: Its stable rank an epoch ago, as the process found it that measured it now.
        stepped: Whether it took a step on any process.
    """

    rows: list[LayerMetrics]
    before: float | None
    stepped: bool


def measure_layers(layers: Mapping[str, Held], *, p: float, share: bool) -> dict[str, Found]:
    """Measures layers.

    Args:
        layers: Every layer, as this process holds it.
        p: The power in the stable rank.
        share: Whether the processes of `torch.distributed` divide the work. Then all of them must
            call this; what one measures, all get, also where they hold no weight of that layer.
    """
    own = {layer: [_described(w, held) for w in held.weights] for layer, held in layers.items()}
    if not share or process_count() == 1:
        rows = _measured(own, p, mine=own)
        return {layer: Found(rows[layer], *held[1:]) for layer, held in layers.items()}
    told = everyone_tells({layer: _announced(held, own[layer]) for layer, held in layers.items()})
    owners, here = _owners(told), process_number()
    rows = _measured(own, p, mine={layer for layer in own if owners.get(layer, here) == here})
    received = everyone_tells({layer: [r.to_dict() for r in some] for layer, some in rows.items()})
    for layer in own.keys() - rows.keys():
        rows[layer] = [LayerMetrics.from_dict(row) for row in received[owners[layer]][layer]]
    return {
        layer: Found(
            rows[layer],
            told[owners.get(layer, here)][layer]["before"],
            any(layer in other and other[layer]["stepped"] for other in told),
        )
        for layer in layers
    }


def _described(named: tuple[str, Tensor], held: Held) -> Weight:
    weight = described(*named)
    if held.stepped or weight.obstacle is not None:
        return weight
    return dataclasses.replace(weight, obstacle=("filtered", "it took no step in this epoch"))


def _measured(layers: Mapping[str, Sequence[Weight]], p: float, mine: Collection[str]) -> Rows:
    """The rows of some layers; sharded weights are put together one by one, on all processes."""
    found: Rows = {}
    for layer, weights in layers.items():
        if not any(weight.alone for weight in weights):
            continue
        for weight in weights:
            if layer in mine:
                found.setdefault(layer, []).append(measure(weight, p=p, modes="both"))
            elif weight.alone and needs_measuring(weight, "both"):
                weight.load()
    rest = {layer: ws for layer, ws in layers.items() if layer in mine and layer not in found}
    rows = iter(survey([w for weights in rest.values() for w in weights], p=p, modes="both"))
    return {**found, **{layer: [next(rows) for _ in weights] for layer, weights in rest.items()}}


def _announced(held: Held, weights: Sequence[Weight]) -> dict[str, Any]:
    """What tells replicas from different weights, what measuring costs, and what is known."""
    cost = sum(needs(weight, "both")[0] for weight in weights if needs_measuring(weight, "both"))
    prints = [_fingerprint(tensor) for _, tensor in held.weights]
    return {"weights": prints, "cost": cost, "before": held.before, "stepped": held.stepped}


@torch.no_grad()
def _fingerprint(tensor: Tensor) -> list[Any]:
    shape = [*tensor.shape, str(tensor.dtype)]
    if hasattr(tensor, "full_tensor") or not tensor.is_floating_point():
        return [shape, 0.0, 0.0]  # one tensor, in pieces; or one that is not measured anyway
    flat = tensor.detach().double().flatten()
    return [shape, float(flat.dot(flat)), float(flat.sum())]


def _owners(told: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Who measures which layer: the most costly first, each to the least busy of its holders.

    Layers that the processes hold in different versions, because they train different networks,
    have no common owner: each process measures its own.
    """
    holders: dict[str, list[int]] = {}
    for number, layers in enumerate(told):
        for layer, announced in layers.items():
            if announced["weights"]:
                holders.setdefault(layer, []).append(number)
    alike = [
        layer
        for layer, numbers in holders.items()
        if all(_same(told[numbers[0]][layer], told[n][layer]) for n in numbers[1:])
    ]
    busy = [0.0] * len(told)
    owners: dict[str, int] = {}
    for layer in sorted(alike, key=lambda layer: (-told[holders[layer][0]][layer]["cost"], layer)):
        owner = min(holders[layer], key=lambda number: (busy[number], number))
        busy[owner] += told[owner][layer]["cost"]
        owners[layer] = owner
    return owners


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = zip(one["weights"], other["weights"], strict=False)
    return len(one["weights"]) == len(other["weights"]) and all(_alike(a, b) for a, b in pairs)


def _alike(one: list[Any], other: list[Any]) -> bool:
    (shape, square, total), (other_shape, other_square, other_total) = one, other
    if shape != other_shape or not square < float("inf") or not other_square < float("inf"):
        return bool(shape == other_shape)  # NaN here and there: whoever looks will say so
    size = math.prod(shape[:-1])
    return bool(
        abs(square - other_square) <= _DRIFT * max(square, other_square)
        and abs(total - other_total) <= _DRIFT * (size * max(square, other_square)) ** 0.5
    )
