"""Processes that train together: what they send each other, and which of them measures a layer."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from rankwise.errors import DistributedError
from rankwise.optim.readings import NamedTensors, Reading
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.measure import can_measure, estimate_cost
from rankwise.weights.module import describe_tensor
from rankwise.weights.stacks import resolve_tensors
from rankwise.weights.tensor import Weight

Announcements = Sequence[dict[str, Any]]  # by process; what it has of each layer, by name

# Replicas whose weights differ by rounding errors still count as replicas.
_DRIFT = 1e-5
# A weight's fingerprint: sums, computed block by block, and a few of its entries.
_BLOCK = 1 << 20
_ENTRIES = 8


def get_world_size() -> int:
    """Return the number of processes that train together; 1 where nothing is distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def get_rank() -> int:
    """Return the number of this process."""
    return dist.get_rank() if get_world_size() > 1 else 0


def any_process(condition: bool, *, share: bool) -> bool:
    """Return whether a condition holds here or, where processes share, on any of them."""
    return any(all_gather_json(condition)) if share and get_world_size() > 1 else condition


def all_gather_json(data: object) -> list[Any]:
    """Send plain data to all processes, as JSON, and return what each of them sent, by rank."""
    text = bytearray(json.dumps(data).encode())
    payload = torch.frombuffer(text, dtype=torch.uint8).to(_communication_device())
    with explain_errors():
        sizes = [int(n) for n in _all_gather(torch.tensor([len(text)], device=payload.device))]
        padded = payload.new_zeros(max(sizes))
        padded[: len(text)] = payload
        texts = [tensor.cpu().numpy().tobytes() for tensor in _all_gather(padded)]
    return [json.loads(text[:size]) for text, size in zip(texts, sizes, strict=True)]


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Raise a DistributedError where other processes do not take part in a communication."""
    try:
        yield
    except RuntimeError as error:  # the base of all errors of torch.distributed
        raise DistributedError(
            "The processes could not exchange what they measured. Has one of them died, or not "
            f"called epoch_step()? ({' '.join(str(error).split())})"
        ) from error


def _all_gather(tensor: Tensor) -> list[Tensor]:
    tensors = [torch.empty_like(tensor) for _ in range(get_world_size())]
    dist.all_gather(tensors, tensor)
    return tensors


def _communication_device() -> torch.device:
    """Return a device that the default process group can send from; the CPU, if it can."""
    pairs = str(dist.get_backend_config()).split(",")  # as in "cpu:gloo,cuda:nccl"
    devices = [pair.partition(":")[0] for pair in pairs]
    return torch.device("cpu" if "cpu" in devices else devices[0])


class _Team(NamedTuple):
    """Processes that train a layer together."""

    layer: str
    holders: list[int]  # of its weights, all the same ones
    others: list[int]  # those that hold only vectors of it
    owner: int | None = None  # the one that measures it

    @property
    def members(self) -> list[int]:
        return [*self.holders, *self.others]

    def has_stepped(self, announcements: Announcements) -> bool:
        return any(announcements[rank][self.layer]["stepped"] for rank in self.members)


def assign_layers(
    readings: Sequence[Reading], tensors: Mapping[str, NamedTensors]
) -> list[tuple[Reading, int | None]]:
    """Agree with the other processes, which must all call this, on who measures each layer.

    Return what all of them know of each layer, and the rank of the one that measures it. Where
    there is one, `others` has the rows of processes that hold none of the layer's weights.
    """
    announcements = all_gather_json({r.layer: _announce(r, tensors[r.layer]) for r in readings})
    here = get_rank()
    teams = {team.layer: team for team in _form_teams(announcements) if here in team.members}
    assigned = []
    for reading in readings:
        team = teams[reading.layer]
        known = reading._replace(stepped=team.has_stepped(announcements))
        if team.owner is not None:
            known = known._replace(
                previous=announcements[team.owner][reading.layer]["previous"],
                others=_list_others(team, announcements),
            )
        assigned.append((known, team.owner))
    return assigned


def _list_others(team: _Team, announcements: Announcements) -> tuple[LayerMetrics, ...]:
    """Return the rows of vectors on processes that hold nothing else of a layer.

    That is how a ZeroRedundancyOptimizer divides a layer, each vector on one process.
    """
    rows = (row for rank in team.others for row in announcements[rank][team.layer]["others"])
    return tuple(map(LayerMetrics.from_dict, rows))


def _announce(reading: Reading, tensors: NamedTensors) -> dict[str, Any]:
    """Describe a layer: what tells replicas from different weights, the cost, and what is known."""
    weights = [describe_tensor(*named) for named in tensors]
    matrices = resolve_tensors(weights)
    cost = sum(estimate_cost(weight).work for weight in matrices if can_measure(weight))
    pairs = zip(weights, tensors, strict=True)
    return {
        "weights": [_fingerprint(weight, tensor) for weight, (_, tensor) in pairs],
        "cost": cost,
        "previous": reading.previous,
        "stepped": reading.stepped,
        "others": [] if weights else [row.to_dict() for row in reading.others],
    }


def _fingerprint(weight: Weight, tensor: Tensor) -> list[Any]:
    """Return the type and shape of a weight, and a few numbers where its values matter."""
    layout: list[Any] = [*weight.shape, str(weight.dtype)]
    if weight.collective:  # one tensor in pieces, which these processes hold together
        sharded: Any = tensor
        return [[*layout, *sharded.device_mesh.mesh.flatten().tolist()], []]
    return [layout, _sample(weight) if can_measure(weight) else []]


@torch.no_grad()
def _sample(weight: Weight) -> list[float]:
    """Return the sum of squares, the sum, and some entries.

    The sum alone would not do: training leaves it unchanged in the layer before a softmax.
    """
    try:
        flat = weight.load().reshape(-1)
        blocks = (block.double() for block in torch.split(flat, _BLOCK))
        sums = torch.stack([torch.stack((block.dot(block), block.sum())) for block in blocks])
        entries = flat[:: max(1, len(flat) // _ENTRIES)].double()
        return [*sums.sum(0).tolist(), *entries.tolist()]
    except (RuntimeError, TypeError):  # an unreadable subclass: the measurement reports it
        return []


def _form_teams(announcements: Announcements) -> list[_Team]:
    """Assign an owner to every layer: the most costly first, each to its least busy holder."""

    def cost(team: _Team) -> float:
        costs = (announcements[rank][team.layer]["cost"] for rank in team.holders[:1])
        return sum(costs) * team.has_stepped(announcements)

    layers = dict.fromkeys(layer for announced in announcements for layer in announced)
    teams = [team for layer in layers for team in _find_teams(layer, announcements)]
    load = [0.0] * len(announcements)
    owned = []
    for team in sorted(teams, key=lambda team: (-cost(team), team.layer)):
        owner = min(team.holders, key=lambda rank: (load[rank], rank), default=None)
        if owner is not None:
            load[owner] += cost(team)
        owned.append(team._replace(owner=owner))
    return owned


def _find_teams(layer: str, announcements: Announcements) -> list[_Team]:
    """Group the processes that have a layer by its weights: replicas, or different networks."""
    replicas: list[list[int]] = []
    others: list[int] = []
    for rank, announced in enumerate(announcements):
        weights = announced.get(layer, {}).get("weights")
        if weights:
            same = (
                r for r in replicas if _are_same(announcements[r[0]][layer]["weights"], weights)
            )
            group = next(same, None)
            replicas.append([rank]) if group is None else group.append(rank)
        elif weights is not None:
            others.append(rank)
    if len(replicas) <= 1:
        return [_Team(layer, [rank for group in replicas for rank in group], others)]
    separate = [_Team(layer, [], [rank]) for rank in others]
    return [*(_Team(layer, group, []) for group in replicas), *separate]


def _are_same(fingerprints: Sequence[Any], others: Sequence[Any]) -> bool:
    pairs = zip(fingerprints, others, strict=False)
    return len(fingerprints) == len(others) and all(_match(*one, *other) for one, other in pairs)


def _match(
    layout: list[Any], sample: list[float], other_layout: list[Any], other: list[float]
) -> bool:
    if layout != other_layout or len(sample) != len(other):
        return False
    if not sample:
        return True
    if not math.isfinite(sample[0]) or not math.isfinite(other[0]):
        # Where both have NaN or infinity, the measurement reports it.
        return math.isfinite(sample[0]) == math.isfinite(other[0])
    square = max(sample[0], other[0])
    norm, size = math.sqrt(square), math.prod(n for n in layout if isinstance(n, int))
    bounds = (square, norm, *[norm / math.sqrt(size)] * (len(sample) - 2))
    return all(
        abs(one - another) <= _DRIFT * bound
        for one, another, bound in zip(sample, other, bounds, strict=True)
    )
