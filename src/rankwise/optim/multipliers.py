"""The multiplier of each parameter group, and how it moves to a new one: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rankwise.optim.controls import apply_mean
from rankwise.optim.readings import Reading, Tracked

_ROUNDING = 1e-6  # of rates in float32


class GroupState(NamedTuple):
    """A parameter group between updates: its multiplier, and what was measured of its layer."""

    multiplier: float = 1.0  # that its present rate contains
    origin: float = 1.0  # where the transition to the target began
    target: float = 1.0
    value: float | None = None
    started: bool = False
    stepped: bool = False

    @property
    def tracked(self) -> Tracked:
        """What measuring needs to know."""
        return Tracked(self.value, self.started, self.stepped)


def set_targets(
    states: Sequence[GroupState],
    readings: Sequence[Reading],
    multipliers: Mapping[str, float],
    *,
    others_follow: bool,
    is_set: Callable[[int], bool],
) -> list[GroupState]:
    """Return the states after an update, with the multipliers of the layers as targets.

    Layers without anything to measure follow the mean of those that were measured, if others do.
    A group that is not set keeps its target, as does one whose layer has no multiplier.
    """
    measured = {
        reading.layer: multipliers[reading.layer]
        for reading in readings
        if reading.outcome == "measured" and reading.layer in multipliers
    }
    mean = next(iter(apply_mean(measured).values()), None) if others_follow else None
    new = list(states)
    for reading in readings:
        target = multipliers.get(reading.layer, mean if reading.outcome == "skipped" else None)
        value = reading.previous if reading.value is None else reading.value
        for index in reading.groups:
            state = new[index]._replace(value=value, stepped=False)
            if target is not None and is_set(index):
                state = state._replace(origin=state.multiplier, target=target)
            new[index] = state
    return new


def move_on(states: Sequence[GroupState], part: float) -> list[GroupState]:
    """Return the states with a part of the way to their targets behind them.

    Example:
        >>> [state.multiplier for state in move_on([GroupState(1.0, 1.0, 3.0)], 0.25)]
        [1.5]
    """
    return [
        state
        if state.multiplier == state.target
        else state._replace(multiplier=(1 - part) * state.origin + part * state.target)
        for state in states
    ]


def contains(shares: Sequence[float], multipliers: Sequence[float]) -> bool:
    """Return whether rates, as shares of the first ones, already contain multipliers.

    What else sets the rates is the same for all. Where the multipliers are the same too, it can't
    be told, and they are not taken to be contained.

    Example:
        >>> contains([0.1, 0.05], [1.0, 0.5]), contains([0.1, 0.1], [1.0, 0.5])
        (True, False)
    """
    others = [share / m for share, m in zip(shares, multipliers, strict=True) if m]
    stopped = [share for share, m in zip(shares, multipliers, strict=True) if not m]
    return not _are_alike(shares) and _are_alike(others) and not any(stopped)


def _are_alike(values: Sequence[float]) -> bool:
    return max(values, default=0.0) <= (1 + _ROUNDING) * min(values, default=0.0)
