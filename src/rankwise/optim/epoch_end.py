"""The end of an epoch: the parameter groups of an optimizer → a reading of each layer."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from rankwise.optim.distributed import (
    NamedTensors,
    all_gather_json,
    assign_layers,
    explain_errors,
    get_rank,
    get_world_size,
)
from rankwise.optim.param_groups import Group, is_weight, list_layers, name_params, split_params
from rankwise.optim.rates import Reading, State
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.measure import can_measure, measure_weight
from rankwise.probes.parallel import measure_weights
from rankwise.probes.results import Probe
from rankwise.weights.module import describe_tensor
from rankwise.weights.stacks import resolve_tensors
from rankwise.weights.tensor import Status, Weight

Globs = Sequence[str] | None


def measure_layers(
    groups: Sequence[Group],
    states: Sequence[State],
    *,
    include: Globs,
    exclude: Globs,
    p: float,
    share: bool,
) -> list[Reading]:
    """Measure the layers of an optimizer at the end of an epoch; warn of those that fail.

    With `share` all processes must call this: a layer is measured once among those that hold the
    same weights.
    """
    readings, tensors = _list_readings(groups, states, include, exclude)
    if share and get_world_size() > 1:
        readings = _measure_shared(readings, tensors, p)
    else:
        readings = _measure_here(readings, tensors, p)
    failures = [f"{r.layer} ({r.failure.reason})" for r in readings if r.failure is not None]
    if failures:
        warnings.warn(
            f"These layers could not be measured and keep their rates: {', '.join(failures)}.",
            UserWarning,
            stacklevel=4,
        )
    return readings


def measure_start(
    groups: Sequence[Group],
    states: Sequence[State],
    starting: Collection[int],
    *,
    include: Globs,
    exclude: Globs,
    p: float,
) -> dict[int, State]:
    """Return new states, by index, with s(0) of the layers that are about to take their first step.

    Nothing is exchanged: a process may take its first step when others don't.
    """
    readings, tensors = _list_readings(groups, states, include, exclude)
    due = [r._replace(stepped=True) for r in readings if not set(r.groups).isdisjoint(starting)]
    return {
        index: states[index]._replace(stable_rank=reading.stable_rank, started=True)
        for reading in _measure_here(due, tensors, p)
        for index in reading.groups
    }


def make_probe(readings: Sequence[Reading], p: float) -> Probe:
    """Return a row for every parameter of all layers as a probe."""
    rows = (row for reading in readings for row in (*reading.metrics, *reading.others))
    return Probe("optimizer", tuple(rows), p)


def _list_readings(
    groups: Sequence[Group], states: Sequence[State], include: Globs, exclude: Globs
) -> tuple[list[Reading], dict[str, NamedTensors]]:
    """Return what is known of each layer before it is measured, and its weights."""
    # The rows of other parameters cost some microseconds each, and nothing is loaded for them.
    readings: list[Reading] = []
    tensors: dict[str, NamedTensors] = {}
    for layer, members in list_layers(groups).items():
        has_weight = [any(is_weight(*named) for named in name_params(groups[i])) for i in members]
        lead = members[has_weight.index(True)] if any(has_weight) else members[0]
        ordered = (lead, *(i for i in members if i != lead))
        stepped = any(states[i].stepped for i in members)
        parts = [split_params(groups[i], include, exclude) for i in members]
        tensors[layer] = [weight for weights, _ in parts for weight in weights]
        rows = tuple(_describe_other(*named) for _, others in parts for named in others)
        reading = Reading(layer, ordered, stepped, states[lead].stable_rank, others=rows)
        readings.append(reading)
    return readings, tensors


def _describe_other(name: str, param: Tensor) -> LayerMetrics:
    weight = describe_tensor(name, param)
    if is_weight(name, param):
        left_out = (Status.FILTERED, "left out by include or exclude")
        weight = dataclasses.replace(weight, obstacle=weight.obstacle or left_out)
    return measure_weight(resolve_tensors([weight])[0])


def _measure_here(
    readings: Sequence[Reading], tensors: Mapping[str, NamedTensors], p: float
) -> list[Reading]:
    weights = {r.layer: _describe_weights(tensors[r.layer], r.stepped) for r in readings}
    metrics = _measure_weights(weights, p, own=weights)
    return [reading._replace(metrics=tuple(metrics[reading.layer])) for reading in readings]


def _measure_shared(
    readings: Sequence[Reading], tensors: Mapping[str, NamedTensors], p: float
) -> list[Reading]:
    """Measure the layers that are this process's share, and get the others' results."""
    assigned = assign_layers(readings, tensors)
    weights = {r.layer: _describe_weights(tensors[r.layer], r.stepped) for r, _ in assigned}
    own = {reading.layer for reading, owner in assigned if owner == get_rank()}
    metrics = _measure_weights(weights, p, own)
    others = {reading.layer: reading.others for reading in readings}
    received = all_gather_json(
        {n: [_encode(rows), _encode(others[n])] for n, rows in metrics.items()}
    )
    return [
        reading if owner is None else _complete(reading, *received[owner][reading.layer])
        for reading, owner in assigned
    ]


def _encode(rows: Iterable[LayerMetrics]) -> list[dict[str, Any]]:
    return [row.to_dict() for row in rows]


def _complete(
    reading: Reading, metrics: Iterable[dict[str, Any]], others: Iterable[dict[str, Any]]
) -> Reading:
    """Add what the owner of a layer has sent: the rows of its weights, and its other rows."""
    rows = tuple(map(LayerMetrics.from_dict, metrics))
    return reading._replace(
        metrics=rows, others=(*map(LayerMetrics.from_dict, others), *reading.others)
    )


def _describe_weights(tensors: NamedTensors, stepped: bool) -> list[Weight]:
    weights = resolve_tensors([describe_tensor(*named) for named in tensors])
    if stepped:
        return weights
    idle = (Status.FILTERED, "it took no step in this epoch")
    return [dataclasses.replace(weight, obstacle=weight.obstacle or idle) for weight in weights]


def _measure_weights(
    layers: Mapping[str, Sequence[Weight]], p: float, own: Collection[str]
) -> dict[str, list[LayerMetrics]]:
    """Measure some layers; all processes put sharded weights together, one by one, in one order."""
    metrics: dict[str, list[LayerMetrics]] = {}
    for layer, weights in layers.items():
        if not any(weight.collective for weight in weights):
            continue
        for weight in weights:
            if layer in own:
                row = measure_weight(_unshard(weight), p=p)
                metrics.setdefault(layer, []).append(row)
            else:
                _unshard(weight)
    rest = {n: weights for n, weights in layers.items() if n in own and n not in metrics}
    rows = iter(measure_weights([w for weights in rest.values() for w in weights], p=p))
    return {**metrics, **{n: [next(rows) for _ in weights] for n, weights in rest.items()}}


def _unshard(weight: Weight) -> Weight:
    """Return a weight in one piece; the processes with the other pieces must call this too."""
    if not weight.collective or not can_measure(weight):
        return weight
    with explain_errors():
        tensor = weight.load()
    return dataclasses.replace(weight, load=lambda: tensor)
