"""Stable ranks → rates (METHOD §4, Algorithm 1's Stage II): pure, `(state, metrics) -> state`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple

from rankwise.errors import ArgumentError

__all__ = ["Reading", "Rule", "State", "Unread", "Variant", "check_rule", "next_states"]

Variant = Literal["paper", "released"]

# What numpy's isclose, and so the released package, takes for 0.
_ALMOST_ZERO = 1e-8


class Rule(NamedTuple):
    """What a layer's rate follows.

    Attributes:
        beta: How much of the rate an epoch without gain leaves.
        zeta: What a gain in stable rank is worth.
        floor: The least rate.
        variant: "paper" for Algorithm 1, "released" for what rmsgd 1.0.2 does.
    """

    beta: float
    zeta: float
    floor: float
    variant: Variant = "paper"


class State(NamedTuple):
    """What is known of a layer between epochs.

    Attributes:
        initial: η(0).
        rate: η(t), before whatever else scales it, as a warm-up.
        stable_rank: s(t); None as long as it was not measured.
        epoch: t.
        asleep: Only for the released variant: whether the layer has been empty so far.
    """

    initial: float
    rate: float
    stable_rank: float | None = None
    epoch: int = 0
    asleep: bool = True


class Unread(Enum):
    """Why a layer has no new stable rank."""

    IDLE = "it took no step"  # it keeps its rate and its state
    FAILED = "it could not be measured"  # it keeps its rate
    UNPROBED = "it has no weight to probe"  # it moves at the others' pace


Reading = float | Unread


def check_rule(beta: float, zeta: float, floor: float) -> None:
    """See that a rule's numbers make sense.

    Raises:
        ArgumentError: If one does not.
    """
    if not 0.0 <= beta <= 1.0:
        raise ArgumentError(f"Expected beta between 0 and 1, got {beta!r}.")
    for name, value in (("zeta", zeta), ("floor", floor)):
        if not 0.0 <= value < math.inf:
            raise ArgumentError(f"Expected {name} ≥ 0, got {value!r}.")


def next_states(
    states: Sequence[State], readings: Sequence[Reading], rules: Sequence[Rule]
) -> list[State]:
    """One epoch's update of all layers, in the network's order.

    Args:
        states: Each layer's state before.
        readings: Each layer's stable rank at the end of the epoch, or why there is none.
        rules: What each layer follows.

    Returns:
        Each layer's state after; `rate` is the rate for the next epoch.
    """
    stepped = [
        _stepped(state, reading, rule, held=held, asleep=asleep)
        for state, reading, rule, (held, asleep) in zip(
            states, readings, rules, _sleepers(states, readings), strict=True
        )
    ]
    return _followed(stepped, readings, rules)


def _stepped(state: State, reading: Reading, rule: Rule, *, held: bool, asleep: bool) -> State:
    if isinstance(reading, Unread) or state.initial == 0.0:
        return state
    if rule.variant == "released":
        rate = _released(state, reading, rule, held=held)
    else:
        rate = _paper(state, reading, rule)
    return State(state.initial, rate, reading, state.epoch + 1, asleep)


def _paper(state: State, s: float, rule: Rule) -> float:
    """η(t) = max(β·η(t−1) + ζ·[s(t) − s(t−1)], floor)."""
    gain = 0.0 if state.stable_rank is None else s - state.stable_rank
    return max(rule.beta * state.rate + rule.zeta * gain, rule.floor)


def _released(state: State, s: float, rule: Rule, *, held: bool) -> float:
    """What rmsgd 1.0.2 computes: η(0) is added once, and an empty layer is held at η(0)."""
    if state.epoch == 0:
        rate = rule.beta * state.rate + state.initial
    elif held:
        rate = state.initial
    else:
        rate = rule.beta * state.rate + rule.zeta * (s - (state.stable_rank or 0.0))
    return max(rate, rule.floor)


def _sleepers(states: Sequence[State], readings: Sequence[Reading]) -> list[tuple[bool, bool]]:
    """Which layers the released rule holds at η(0), and which it takes for asleep afterwards.

    Held are those that have been empty so far. The released package takes a layer that wakes out
    of their list while it walks through it, and so passes over the next one in the list: for this
    epoch that one is neither held nor woken.
    """
    found, passed_over = [], False
    for state, reading in zip(states, readings, strict=True):
        if isinstance(reading, Unread) or not state.asleep or state.epoch == 0:
            found.append((False, state.asleep))
        elif passed_over:
            found.append((False, True))
            passed_over = False
        else:
            empty = abs(reading) <= _ALMOST_ZERO
            found.append((empty, empty))
            passed_over = not empty
    return found


def _followed(
    states: Sequence[State], readings: Sequence[Reading], rules: Sequence[Rule]
) -> list[State]:
    """Gives layers that have no weight to probe a rate: the mean pace of those that have.

    In the released package a parameter that is not probed moves at the rate of the one before it.
    """
    paces = [
        state.rate / state.initial
        for state, reading in zip(states, readings, strict=True)
        if not isinstance(reading, Unread) and state.initial
    ]
    result: list[State] = []
    for state, reading, rule in zip(states, readings, rules, strict=True):
        rate = state.rate
        if reading is Unread.UNPROBED and rule.variant == "released" and result:
            rate = result[-1].rate
        elif reading is Unread.UNPROBED and rule.variant == "paper" and paces:
            rate = state.initial * math.fsum(paces) / len(paces)
        result.append(state._replace(rate=rate))
    return result
