"""Controls (METHOD §4): the same multipliers without the rule's choice of layers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import Literal, NamedTuple

from rankwise._text import suggest_names
from rankwise.errors import ArgumentError

Control = Literal["mean", "shuffled"] | Mapping[str, float]


class ControlState(NamedTuple):
    """What a control remembers."""

    given: dict[str, float]  # the rule's last multiplier of each layer that it sets
    sources: dict[str, str]  # of "shuffled": from which layer each one takes its multiplier


def control_multipliers(
    control: Control | None, state: ControlState, multipliers: Mapping[str, float], seed: int
) -> tuple[ControlState, Mapping[str, float]]:
    """Return the next state, and the multipliers that take the place of the rule's."""
    given = {**state.given, **multipliers}
    if control == "mean":
        return ControlState(given, state.sources), apply_mean(given)
    if control == "shuffled":
        sources = extend_derangement(state.sources, given, seed)
        return ControlState(given, sources), apply_shuffle(given, sources)
    return ControlState(given, state.sources), given


def apply_mean(multipliers: Mapping[str, float]) -> dict[str, float]:
    """Give every layer the mean of the multipliers.

    Example:
        >>> apply_mean({"a": 0.5, "b": 1.5})
        {'a': 1.0, 'b': 1.0}
    """
    if not multipliers:
        return {}
    return dict.fromkeys(multipliers, math.fsum(multipliers.values()) / len(multipliers))


def apply_shuffle(multipliers: Mapping[str, float], sources: Mapping[str, str]) -> dict[str, float]:
    """Give every layer the multiplier of another one.

    Example:
        >>> apply_shuffle({"a": 0.5, "b": 1.5}, {"a": "b", "b": "a"})
        {'a': 1.5, 'b': 0.5}
    """
    return {name: multipliers[sources[name]] for name in multipliers}


def extend_derangement(
    sources: Mapping[str, str], names: Iterable[str], seed: int
) -> dict[str, str]:
    """Return from which layer each one takes its multiplier; of two and more, none from itself.

    The layers form one cycle, drawn by the seed. One that comes later is put into it at a place
    of its own drawing: it takes over the source of one other layer, and becomes that one's source.

    Example:
        >>> sources = extend_derangement({}, ["a", "b", "c"], seed=0)
        >>> sorted(sources.values()) == ["a", "b", "c"], any(k == v for k, v in sources.items())
        (True, False)
    """
    new = dict(sources)
    for name in names:
        if name in new:
            continue
        before = Random(f"{seed}/{name}").choice(sorted(new)) if new else name  # noqa: S311
        new[name] = new.get(before, name)
        new[before] = name
    return new


def check_control(control: Control | None, layers: Collection[str]) -> None:
    """Raise unless a control fits an optimizer's layers."""
    if control is None or control == "mean":
        return
    if control == "shuffled":
        if len(layers) < 2:
            raise ArgumentError(
                f"Expected two layers or more for control='shuffled', got {len(layers)}."
            )
        return
    if not isinstance(control, Mapping):
        raise ArgumentError(
            f"Expected control 'mean', 'shuffled' or a table of multipliers, got {control!r}."
        )
    for name, multiplier in control.items():
        if name not in layers:
            raise ArgumentError(
                f"Expected the names of layers in control, got {name!r}."
                f"{suggest_names(name, layers)}"
            )
        check_multiplier(name, multiplier)


def check_multiplier(name: str, multiplier: float) -> None:
    """Raise unless a multiplier is a number of 0 or more."""
    if not isinstance(multiplier, int | float) or not 0.0 <= multiplier < math.inf:
        raise ArgumentError(f"Expected a multiplier ≥ 0 for {name}, got {multiplier!r}.")
