"""What every layer has learned and at which rate it moves, whatever the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

import rankwise
from rankwise.lab.optimizers import Method
from rankwise.lab.records import LayerColumns

__all__ = ["look", "quality_of", "range_of_rates"]

_METRICS = ("stable_rank", "condition", "quality", "rank")


def look(parts: Mapping[str, nn.Module], methods: Mapping[str, Method]) -> LayerColumns:
    """Probe the networks; what the optimizer has just measured itself is not measured again.

    Args:
        parts: The networks, by their place in the whole.
        methods: Their optimizers.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ("name", *_METRICS, "rate")}
    for part, network in parts.items():
        method = methods[part]
        found = method.last_probe or rankwise.probe(network)
        rates = _rates(network, method)
        for layer in found.layers:
            if layer.status not in (rankwise.Status.PROBED, rankwise.Status.NOT_FINITE):
                continue
            name = layer.name.removesuffix(".weight")
            columns["name"].append(f"{part}.{name}" if part else name)
            for metric in _METRICS:
                columns[metric].append(getattr(layer, metric))
            columns["rate"].append(rates.get(layer.name))
    return LayerColumns(**columns)


def _rates(network: nn.Module, method: Method) -> dict[str, float]:
    """The rate of each parameter, by its name."""
    by_parameter = {
        id(param): float(group.get("step_size", group["lr"]))  # SLS: the step it took last
        for group in method.optimizer.param_groups
        for param in group["params"]
    }
    return {
        name: by_parameter[id(param)]
        for name, param in network.named_parameters()
        if id(param) in by_parameter
    }


def quality_of(layers: LayerColumns) -> float | None:
    """Q over all networks' layers."""
    return rankwise.network_quality(q for q in layers.quality if q is not None)


def range_of_rates(layers: LayerColumns) -> tuple[float, float] | None:
    """The least and the largest rate of a layer."""
    rates = [rate for rate in layers.rate if rate is not None]
    return (min(rates), max(rates)) if rates else None
