"""RelativeUpdate (METHOD §8, experimental): one multiplier for all, by the size of updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rankwise.errors import ArgumentError
from rankwise.optim.rules.rule import LayerReading, RateRule

_LEAST_SCHEDULE = 0.02  # of the first rate: below it updates say little about the rate
_LARGEST_CHANGE = 3.0  # of the multiplier in one update


class UpdateState(NamedTuple):
    """ln u, u the relative update at a multiplier of 1; None before the first. And μ."""

    log_size: float | None = None
    multiplier: float = 1.0


@dataclass(frozen=True)
class RelativeUpdate(RateRule[UpdateState]):
    """One multiplier for all layers that keeps the relative size of updates. Experimental.

    Every k steps, for each weight: r = (‖W − W'‖₂/‖W'‖₂)/(μ·c), W' the weight k steps before,
    ‖·‖₂ the spectral norm, μ the present multiplier, c the present share of the first rate by
    other schedulers (0.02 at least). log u ← ½·log u + ½·mean log r, and μ ← ρ/u, which changes
    by a factor of 3 at most. The rate is that of the other schedulers times μ.

    It keeps one copy of the measured weights, in memory and in the scheduler's state. Norms are
    estimated by 24 steps of Lanczos' method: 96 products of a weight with a vector every k steps.

    Attributes:
        target: ρ, the relative change of a weight in k steps that the multiplier aims at.
        every: k.

    Raises:
        ArgumentError: If an option is out of range.

    Example:
        >>> import rankwise
        >>> rule = rankwise.RelativeUpdate(target=0.2)
        >>> readings = [rankwise.LayerReading(n, value=0.1) for n in ("fc1", "fc2")]
        >>> state, multipliers = rule.update(rule.start(), readings)
        >>> {name: round(m, 6) for name, m in multipliers.items()}
        {'fc1': 2.0, 'fc2': 2.0}
    """

    measures = "relative_update"
    is_global = True

    target: float = 0.2
    every: int = 10

    def __post_init__(self) -> None:
        if not 0.0 < self.target < math.inf:
            raise ArgumentError(f"Expected target > 0, got {self.target!r}.")
        if self.every < 1:
            raise ArgumentError(f"Expected every of 1 or more, got {self.every!r}.")

    def start(self) -> UpdateState:
        """Return a multiplier of 1."""
        return UpdateState()

    def update(
        self, state: UpdateState, readings: Sequence[LayerReading]
    ) -> tuple[UpdateState, Mapping[str, float]]:
        """Return one multiplier for all layers."""
        mu = state.multiplier
        logs = [
            math.log(r.value / (mu * max(r.schedule, _LEAST_SCHEDULE)))
            for r in readings
            if r.value is not None and 0.0 < r.value < math.inf
        ]
        if logs:
            mean = math.fsum(logs) / len(logs)
            log_size = mean if state.log_size is None else 0.5 * state.log_size + 0.5 * mean
            wanted = math.exp(math.log(self.target) - log_size)
            mu = min(max(wanted, mu / _LARGEST_CHANGE), mu * _LARGEST_CHANGE)
            state = UpdateState(log_size, mu)
        return state, {reading.name: mu for reading in readings}
