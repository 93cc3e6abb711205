"""An update of the rates: the parameter groups of an optimizer → a reading of each layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from rankwise.optim.distributed import (
    all_gather_json,
    assign_layers,
    explain_errors,
    get_rank,
    get_world_size,
)
from rankwise.optim.misuse import warn_caller
from rankwise.optim.param_groups import Group, is_weight, list_layers, name_params, split_params
from rankwise.optim.quantities import Measurement
from rankwise.optim.readings import NamedTensors, Reading, Tracked, WeightReading
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.measure import can_measure, measure_weight
from rankwise.probes.results import Probe
from rankwise.weights.kinds import infer_kind
from rankwise.weights.module import describe_tensor
from rankwise.weights.stacks import resolve_tensors
from rankwise.weights.tensor import Status, Weight

Globs = Sequence[str] | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to measure, of which weights, and whether processes divide the work."""

    measurement: Measurement
    include: Globs
    exclude: Globs
    share: bool
    only: Collection[str] | None = None  # layers to measure; None for all


def measure_layers(
    groups: Sequence[Group], tracked: Sequence[Tracked], plan: Plan
) -> list[Reading]:
    """Measure the layers of an optimizer; warn of those that fail.

    Where processes share, all of them must call this: a layer is measured once among those that
    hold the same weights.
    """
    readings, tensors = list_readings(groups, tracked, plan)
    if plan.share and get_world_size() > 1:
        readings = _measure_shared(readings, tensors, plan.measurement)
    else:
        readings = _measure_here(readings, tensors, plan.measurement)
    failures = [f"{r.layer} ({r.failure.reason})" for r in readings if r.failure is not None]
    if failures:
        warn_caller(
            f"These layers could not be measured and keep their rates: {', '.join(failures)}."
        )
    return readings


def measure_start(
    groups: Sequence[Group], tracked: Sequence[Tracked], starting: Collection[int], plan: Plan
) -> dict[int, float | None]:
    """Return the values, by group, of the layers that are about to take their first step.

    Nothing is exchanged: a process may take its first step when others don't.
    """
    readings, tensors = list_readings(groups, tracked, plan)
    due = [r._replace(stepped=True) for r in readings if not set(r.groups).isdisjoint(starting)]
    return {
        index: reading.value
        for reading in _measure_here(due, tensors, plan.measurement)
        for index in reading.groups
    }


def make_probe(readings: Sequence[Reading], p: float) -> Probe:
    """Return a row for every parameter of all layers as a probe."""
    rows = (
        row
        for reading in readings
        for row in (*(weight.row for weight in reading.weights), *reading.others)
    )
    return Probe("optimizer", tuple(rows), p)


def list_readings(
    groups: Sequence[Group], tracked: Sequence[Tracked], plan: Plan
) -> tuple[list[Reading], dict[str, NamedTensors]]:
    """Return what is known of each layer before it is measured, and the weights to measure."""
    # The rows of other parameters cost some microseconds each, and nothing is loaded for them.
    readings: list[Reading] = []
    tensors: dict[str, NamedTensors] = {}
    for layer, members in list_layers(groups).items():
        has_weight = [any(is_weight(*named) for named in name_params(groups[i])) for i in members]
        lead = members[has_weight.index(True)] if any(has_weight) else members[0]
        ordered = (lead, *(i for i in members if i != lead))
        stepped = any(tracked[i].stepped for i in members)
        parts = [split_params(groups[i], plan.include, plan.exclude) for i in members]
        weights = [weight for weights, _ in parts for weight in weights]
        others = [named for _, others in parts for named in others]
        kind, shape = _describe_first(groups[lead], weights)
        if plan.only is not None and layer not in plan.only:
            weights, others = [], [*weights, *others]
        tensors[layer] = weights
        rows = tuple(_describe_other(*named) for named in others)
        value = tracked[lead].value
        reading = Reading(layer, ordered, stepped, value, others=rows, kind=kind, shape=shape)
        readings.append(reading)
    return readings, tensors


def _describe_first(group: Group, weights: NamedTensors) -> tuple[str, tuple[int, ...]]:
    """Return the kind and shape of a layer's first weight; empty ones if it has none."""
    if not weights:
        return "", ()
    name, param = weights[0]
    shape = tuple(param.shape)
    return str(group.get("kind") or infer_kind(name, shape)), shape


def _describe_other(name: str, param: Tensor) -> LayerMetrics:
    weight = describe_tensor(name, param)
    if is_weight(name, param):
        left_out = (Status.FILTERED, "left out by include or exclude")
        weight = dataclasses.replace(weight, obstacle=weight.obstacle or left_out)
    return measure_weight(resolve_tensors([weight])[0])


def _measure_here(
    readings: Sequence[Reading], tensors: Mapping[str, NamedTensors], measurement: Measurement
) -> list[Reading]:
    weights = _describe_all(readings, tensors, measurement)
    found = _measure_weights(weights, measurement, own=weights)
    return [reading._replace(weights=tuple(found[reading.layer])) for reading in readings]


def _measure_shared(
    readings: Sequence[Reading], tensors: Mapping[str, NamedTensors], measurement: Measurement
) -> list[Reading]:
    """Measure the layers that are this process's share, and get the others' results."""
    assigned = assign_layers(readings, tensors)
    weights = _describe_all([reading for reading, _ in assigned], tensors, measurement)
    own = {reading.layer for reading, owner in assigned if owner == get_rank()}
    found = _measure_weights(weights, measurement, own)
    others = {reading.layer: reading.others for reading in readings}
    received = all_gather_json(
        {
            layer: [[weight.to_dict() for weight in measured], _encode(others[layer])]
            for layer, measured in found.items()
        }
    )
    return [
        reading if owner is None else _complete(reading, *received[owner][reading.layer])
        for reading, owner in assigned
    ]


def _encode(rows: Iterable[LayerMetrics]) -> list[dict[str, Any]]:
    return [row.to_dict() for row in rows]


def _complete(
    reading: Reading, weights: Iterable[dict[str, Any]], others: Iterable[dict[str, Any]]
) -> Reading:
    """Add what the owner of a layer has sent: the readings of its weights, and its other rows."""
    measured = tuple(map(WeightReading.from_dict, weights))
    return reading._replace(
        weights=measured, others=(*map(LayerMetrics.from_dict, others), *reading.others)
    )


def _describe_all(
    readings: Sequence[Reading], tensors: Mapping[str, NamedTensors], measurement: Measurement
) -> dict[str, list[Weight]]:
    """Describe what is to be measured of every layer."""
    described: dict[str, list[Weight]] = {}
    for reading in readings:
        named, before = tensors[reading.layer], measurement.before.get(reading.layer)
        weights = _describe_weights(named, reading.stepped)
        if before is None or len(before) != len(named):
            described[reading.layer] = measurement.pair(weights, None)
        else:
            names = [name for name, _ in named]
            old = _describe_weights(list(zip(names, before, strict=True)), reading.stepped)
            described[reading.layer] = measurement.pair(weights, old)
    return described


def _describe_weights(tensors: NamedTensors, stepped: bool) -> list[Weight]:
    weights = resolve_tensors([describe_tensor(*named) for named in tensors])
    if stepped:
        return weights
    idle = (Status.FILTERED, "it took no step in this epoch")
    return [dataclasses.replace(weight, obstacle=weight.obstacle or idle) for weight in weights]


def _measure_weights(
    layers: Mapping[str, Sequence[Weight]], measurement: Measurement, own: Collection[str]
) -> dict[str, list[WeightReading]]:
    """Measure some layers; all processes put sharded weights together, one by one, in one order."""
    found: dict[str, list[WeightReading]] = {}
    for layer, weights in layers.items():
        if not any(weight.collective for weight in weights):
            continue
        for weight in weights:
            if layer in own:
                found.setdefault(layer, []).extend(measurement.measure([_unshard(weight)]))
            else:
                _unshard(weight)
    rest = {n: weights for n, weights in layers.items() if n in own and n not in found}
    measured = iter(measurement.measure([w for weights in rest.values() for w in weights]))
    return {**found, **{n: [next(measured) for _ in weights] for n, weights in rest.items()}}


def _unshard(weight: Weight) -> Weight:
    """Return a weight in one piece; the processes with the other pieces must call this too."""
    if not weight.collective or not can_measure(weight):
        return weight
    with explain_errors():
        tensor = weight.load()
    return dataclasses.replace(weight, load=lambda: tensor, collective=False)
