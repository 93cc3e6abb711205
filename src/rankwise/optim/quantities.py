"""What rules need measured of a weight: stable rank, Hill exponent, relative size of its update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from rankwise.errors import NotFiniteError
from rankwise.numerics.hill import hill_exponent
from rankwise.numerics.spectral_norm import estimate_spectral_norm
from rankwise.optim.readings import NamedTensors, WeightReading
from rankwise.optim.rules.rule import Quantity
from rankwise.probes.measure import can_measure, estimate_cost, make_row, measure_weight
from rankwise.probes.parallel import measure_weights
from rankwise.probes.workers import Task, run_tasks
from rankwise.weights.tensor import LOAD_ERRORS, Status, Weight

_NO_SNAPSHOT = (Status.FILTERED, "its weight of the update before is not known")


@dataclass(frozen=True)
class Measurement:
    """What to measure of every weight.

    `before` has the weights of the update before, by layer and in the order of its tensors, where
    the relative size of updates is measured.
    """

    quantity: Quantity = "stable_rank"
    p: float = 2.0
    before: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)

    def pair(self, weights: Sequence[Weight], before: Sequence[Weight] | None) -> list[Weight]:
        """Return weights that load what is to be measured: with those before, if it is an update.

        Such a pair is loaded as one tensor, [now, before].
        """
        if self.quantity != "relative_update":
            return list(weights)
        if before is None or len(before) != len(weights):
            return [replace(w, obstacle=w.obstacle or _NO_SNAPSHOT) for w in weights]
        return [_pair(*both) for both in zip(weights, before, strict=True)]

    def measure(self, weights: Sequence[Weight]) -> list[WeightReading]:
        """Measure weights in parallel; what is wrong with one becomes its status."""
        if self.quantity == "stable_rank":
            rows = measure_weights(weights, p=self.p)
            return [WeightReading(row, row.stable_rank, row.is_probed) for row in rows]
        compute = hill_exponent if self.quantity == "hill_exponent" else _measure_update
        tasks = [
            Task(partial(_measure, weight, compute), *_estimate_cost(weight), weight.collective)
            for weight in weights
        ]
        return run_tasks(tasks)


def _pair(now: Weight, before: Weight) -> Weight:
    return replace(now, load=lambda: torch.stack((now.load(), before.load())), load_rows=None)


def _estimate_cost(weight: Weight) -> tuple[float, int]:
    return estimate_cost(weight) if can_measure(weight) else (0.0, 0)


def _measure(weight: Weight, compute: Callable[[Tensor], float | None], _: int) -> WeightReading:
    if not can_measure(weight):
        return WeightReading(measure_weight(weight), None, is_measured=False)
    try:
        with torch.no_grad():
            value = compute(weight.load())
    except NotFiniteError as error:
        return WeightReading(
            make_row(weight, Status.NOT_FINITE, str(error)), None, is_measured=False
        )
    except LOAD_ERRORS as error:  # a status, never the end of a training run
        reason = " ".join(str(error).split()) or repr(error)
        return WeightReading(make_row(weight, Status.UNREADABLE, reason), None, is_measured=False)
    return WeightReading(make_row(weight, Status.FILTERED, "measured"), value, is_measured=True)


def _measure_update(pair: Tensor) -> float | None:
    """Return ‖W − W'‖₂/‖W'‖₂; None where W' is zero."""
    now, before = pair.to(torch.promote_types(pair.dtype, torch.float32)).unbind()
    size = estimate_spectral_norm(before)
    return estimate_spectral_norm(now - before) / size if size else None


def copy_weights(
    layers: Mapping[str, NamedTensors], copies: dict[str, list[Tensor]], *, only_new: bool
) -> None:
    """Copy the weights of layers, into the copies that are there already; or of new layers only."""
    for layer, named in layers.items():
        kept = copies.get(layer)
        if kept is None or len(kept) != len(named):
            copies[layer] = [weight.detach().clone() for _, weight in named]
        elif not only_new:
            for copied, (_, weight) in zip(kept, named, strict=True):
                copied.copy_(weight.detach())
