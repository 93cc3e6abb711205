"""What is known of the layers of an optimizer at an update, before a rule sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from rankwise.optim.rules.rule import LayerReading, Outcome
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.weights.tensor import Status

NamedTensors = Sequence[tuple[str, Tensor]]

_FAILED = (Status.NOT_FINITE, Status.UNREADABLE, Status.NO_DATA)


class Tracked(NamedTuple):
    """What is known of a parameter group between updates."""

    value: float | None = None  # what was last measured of its layer
    started: bool = False  # whether that was done before its first step
    stepped: bool = False  # since the last update


class WeightReading(NamedTuple):
    """What was measured of one weight."""

    row: LayerMetrics  # its metrics, where these were measured, or why it has none
    value: float | None
    is_measured: bool  # whether the value was computed; it may still be undefined

    def to_dict(self) -> dict[str, Any]:
        """Return the reading as plain types."""
        return {**self._asdict(), "row": self.row.to_dict()}

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> WeightReading:
        """Invert `to_dict`."""
        return cls(**{**entry, "row": LayerMetrics.from_dict(entry["row"])})


class Reading(NamedTuple):
    """One layer at an update, the same on all processes that train it."""

    layer: str
    groups: tuple[int, ...]  # indices, first of the one that its rate is read from
    stepped: bool = True
    previous: float | None = None  # the value before; None if it was never measured
    weights: tuple[WeightReading, ...] = ()
    others: tuple[LayerMetrics, ...] = ()  # rows of its parameters that are not to be measured
    kind: str = ""  # of its first weight
    shape: tuple[int, ...] = ()

    @property
    def failure(self) -> LayerMetrics | None:
        """A weight that could not be measured although the layer took a step."""
        failed = (weight.row for weight in self.weights if weight.row.status in _FAILED)
        return next(failed, None) if self.stepped else None

    @property
    def value(self) -> float | None:
        """The mean over the layer's weights; None if it was not measured."""
        if not self.stepped or self.failure is not None:
            return None
        values = [weight.value for weight in self.weights if weight.value is not None]
        return math.fsum(values) / len(values) if values else None

    @property
    def outcome(self) -> Outcome:
        """What came of measuring the layer."""
        if not self.stepped:
            return "idle"
        if self.failure is not None:
            return "failed"
        if self.value is not None:
            return "measured"
        return "undefined" if any(weight.is_measured for weight in self.weights) else "skipped"

    def to_layer(self, schedule: float = 1.0) -> LayerReading:
        """Return what a rule sees of it."""
        return LayerReading(
            self.layer, self.kind, self.shape, self.outcome, self.value, self.previous, schedule
        )
