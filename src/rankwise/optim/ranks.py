"""An optimizer's layers → their rows, the work divided over the processes that train together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankwise.optim.distributed import (
    everyone_tells,
    expecting_answers,
    process_count,
    process_number,
)
from rankwise.probes.measure import measure, needs_measuring
from rankwise.probes.results import LayerMetrics
from rankwise.probes.sources import described
from rankwise.probes.survey import needs, survey
from rankwise.probes.tensor import Weight

__all__ = ["Found", "Held", "measure_layers"]

Named = Sequence[tuple[str, Tensor]]
Rows = dict[str, list[LayerMetrics]]

# Replicas that drifted apart by rounding still count as replicas.
_DRIFT = 1e-5
# A weight is told by its sums, taken block by block, and by a few of its entries.
_BLOCK = 1 << 20
_ENTRIES = 8


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


class _Team(NamedTuple):
    """Processes that have a layer in common.

    Attributes:
        layer: The layer.
        holders: Those that hold its weights, all the same ones.
        others: Those that hold no weight of it, but vectors.
        owner: The one that measures it; None where there is nothing to measure.
    """

    layer: str
    holders: list[int]
    others: list[int]
    owner: int | None = None

    @property
    def members(self) -> list[int]:
        return [*self.holders, *self.others]


def measure_layers(layers: Mapping[str, Held], *, p: float, share: bool) -> dict[str, Found]:
    """Measures layers.

    Args:
        layers: Every layer, as this process holds it.
        p: The power in the stable rank.
        share: Whether the processes of `torch.distributed` divide the work. Then all of them must
            call this; what one measures, all get that hold the same weights or none.

    Raises:
        ExchangeError: If another process does not take part.
    """
    if not share or process_count() == 1:
        own = {layer: _described(held.weights, held.stepped) for layer, held in layers.items()}
        rows = _measured(own, p, mine=own)
        return {layer: Found(rows[layer], *held[1:]) for layer, held in layers.items()}
    told = everyone_tells({layer: _announced(held) for layer, held in layers.items()})
    here = process_number()
    teams = {team.layer: team for team in _divided(told) if here in team.members}
    stepped = {layer: _stepped(team, told) for layer, team in teams.items()}
    own = {layer: _described(held.weights, stepped[layer]) for layer, held in layers.items()}
    rows = _measured(own, p, mine={layer for layer in own if teams[layer].owner == here})
    received = everyone_tells({layer: [r.to_dict() for r in some] for layer, some in rows.items()})
    found = {}
    for layer, held in layers.items():
        owner = teams[layer].owner
        if owner is None:
            found[layer] = Found([], held.before, stepped[layer])
        else:
            measured = [LayerMetrics.from_dict(row) for row in received[owner][layer]]
            found[layer] = Found(measured, told[owner][layer]["before"], stepped[layer])
    return found


def _described(weights: Named, stepped: bool) -> list[Weight]:
    idle = ("filtered", "it took no step in this epoch")
    known = [described(*named) for named in weights]
    if stepped:
        return known
    return [dataclasses.replace(weight, obstacle=weight.obstacle or idle) for weight in known]


def _measured(layers: Mapping[str, Sequence[Weight]], p: float, mine: Collection[str]) -> Rows:
    """The rows of some layers; sharded weights are put together one by one, on all processes."""
    found: Rows = {}
    for layer, weights in layers.items():
        if not any(weight.alone for weight in weights):
            continue
        for weight in weights:
            if layer in mine:
                row = measure(_whole(weight), p=p, modes="both")
                found.setdefault(layer, []).append(row)
            else:
                _whole(weight)
    rest = {layer: ws for layer, ws in layers.items() if layer in mine and layer not in found}
    rows = iter(survey([w for weights in rest.values() for w in weights], p=p, modes="both"))
    return {**found, **{layer: [next(rows) for _ in weights] for layer, weights in rest.items()}}


def _whole(weight: Weight) -> Weight:
    """A weight that is in one piece here; those that hold the other pieces must call this too."""
    if not weight.alone or not needs_measuring(weight, "both"):
        return weight
    with expecting_answers():
        tensor = weight.load()
    return dataclasses.replace(weight, load=lambda: tensor)


def _announced(held: Held) -> dict[str, Any]:
    """What tells replicas from different weights, what measuring costs, and what is known."""
    weights = _described(held.weights, stepped=True)
    cost = sum(needs(weight, "both")[0] for weight in weights if needs_measuring(weight, "both"))
    pairs = zip(weights, held.weights, strict=True)
    prints = [_fingerprint(weight, tensor) for weight, (_, tensor) in pairs]
    return {"weights": prints, "cost": cost, "before": held.before, "stepped": held.stepped}


def _fingerprint(weight: Weight, tensor: Tensor) -> list[Any]:
    """What a weight looks like, and a few figures of it where its values matter."""
    looks: list[Any] = [*weight.shape, str(weight.dtype)]
    if weight.alone:  # one tensor in pieces, which these processes hold together
        sharded: Any = tensor
        return [[*looks, *sharded.device_mesh.mesh.flatten().tolist()], []]
    return [looks, _figures(weight) if needs_measuring(weight, "both") else []]


@torch.no_grad()
def _figures(weight: Weight) -> list[float]:
    """The sum of squares, the sum, and some entries.

    The sum alone would not do: in the layer before a softmax, training leaves it as it was.
    """
    try:
        flat = weight.load().reshape(-1)
        blocks = (block.double() for block in torch.split(flat, _BLOCK))
        sums = torch.stack([torch.stack((block.dot(block), block.sum())) for block in blocks])
        entries = flat[:: max(1, len(flat) // _ENTRIES)].double()
        return [*sums.sum(0).tolist(), *entries.tolist()]
    except (RuntimeError, TypeError):  # a tensor subclass that can't: whoever measures it says so
        return []


def _divided(told: Sequence[dict[str, Any]]) -> list[_Team]:
    """Who measures what: the most costly layers first, each by the least busy of its holders."""

    def cost(team: _Team) -> float:
        announced = [told[number][team.layer] for number in team.holders[:1]]
        return sum(said["cost"] for said in announced) * _stepped(team, told)

    teams = [team for layer in _all_layers(told) for team in _teams(layer, told)]
    busy = [0.0] * len(told)
    divided = []
    for team in sorted(teams, key=lambda team: (-cost(team), team.layer)):
        owner = min(team.holders, key=lambda number: (busy[number], number), default=None)
        if owner is not None:
            busy[owner] += cost(team)
        divided.append(team._replace(owner=owner))
    return divided


def _all_layers(told: Sequence[dict[str, Any]]) -> dict[str, None]:
    return dict.fromkeys(layer for said in told for layer in said)


def _teams(layer: str, told: Sequence[dict[str, Any]]) -> list[_Team]:
    """The processes that hold a layer, by what they hold: replicas, or different networks."""
    sets: list[list[int]] = []
    others: list[int] = []
    for number, said in enumerate(told):
        weights = said.get(layer, {}).get("weights")
        if weights:
            alike = (s for s in sets if _same(told[s[0]][layer]["weights"], weights))
            home = next(alike, None)
            sets.append([number]) if home is None else home.append(number)
        elif weights is not None:
            others.append(number)
    if len(sets) <= 1:
        return [_Team(layer, [number for one in sets for number in one], others)]
    return [*(_Team(layer, one, []) for one in sets), *(_Team(layer, [], [n]) for n in others)]


def _stepped(team: _Team, told: Sequence[dict[str, Any]]) -> bool:
    return any(told[number][team.layer]["stepped"] for number in team.members)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(_alike(*one, *other) for one, other in pairs)


def _alike(
    looks: list[Any], figures: list[float], looks2: list[Any], figures2: list[float]
) -> bool:
    if looks != looks2 or len(figures) != len(figures2):
        return False
    if not figures:
        return True
    square = max(figures[0], figures2[0])
    if not math.isfinite(figures[0]) or not math.isfinite(figures2[0]):
        # Where both have NaN or infinity, whoever looks will say so.
        return math.isfinite(figures[0]) == math.isfinite(figures2[0])
    size = math.prod(n for n in looks if isinstance(n, int))
    norm = math.sqrt(square)
    bounds = (square, norm, *[norm / math.sqrt(size)] * (len(figures) - 2))
    return all(
        abs(one - other) <= _DRIFT * bound
        for one, other, bound in zip(figures, figures2, bounds, strict=True)
    )
