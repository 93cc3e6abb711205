"""Stable ranks → rates (METHOD §4, Algorithm 1's Stage II): pure, `(state, metrics) -> state`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple, get_args

from rankwise.errors import ArgumentError

__all__ = [
    "GAINS",
    "VARIANTS",
    "Gain",
    "Reading",
    "Rule",
    "State",
    "Unread",
    "Variant",
    "beta_for",
    "check_rule",
    "chosen_beta",
    "chosen_power",
    "next_states",
]

Variant = Literal["paper", "annealed", "released"]
Gain = Literal["absolute", "relative"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
GAINS: tuple[Gain, ...] = get_args(Gain)

# The paper's choice: β = 0.98 for 250 epochs. With 100 epochs the rule below gives its 0.95.
_BETA, _EPOCHS = 0.98, 250
# The first rate of the paper, and what a whole stable rank is worth where gains are relative.
_REFERENCE = 0.03

# What numpy's isclose, and so the released package, takes for 0.
_ALMOST_ZERO = 1e-8


class Rule(NamedTuple):
    """What a layer's rate follows.

    Attributes:
        beta: How much of the rate an epoch without gain leaves.
        zeta: What a gain in stable rank is worth.
        floor: The least rate.
        variant: "paper" for Algorithm 1, "annealed" for its gains on top of η(0) and under a
            cosine, "released" for what rmsgd 1.0.2 does.
        gain: "absolute" for s(t) − s(t−1), "relative" for its share of the larger of the two.
        epochs: How many the cosine of "annealed" is spread over.
    """

    beta: float
    zeta: float
    floor: float
    variant: Variant = "paper"
    gain: Gain = "absolute"
    epochs: int = 1


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


def beta_for(epochs: int, *, left: float | None = None) -> float:
    """The β for a number of epochs: one that leaves as much of the first rate as the paper's does.

    β^epochs = 0.98^250, which is 0.6 %. It is 0.98 for 250 epochs and 0.95 for 100, as the paper
    has them, and 0.78 for 20, where 0.98 would end at two thirds of the first rate.

    Args:
        epochs: How many epochs will be trained, 1 or more.
        left: The share of the first rate that is left where nothing is gained, instead of the
            paper's. For 6 to 30 epochs 0.05 was a little better (docs/results.md).

    Raises:
        ArgumentError: If there are no epochs, or `left` is not above 0 and at most 1.

    Example:
        >>> import rankwise
        >>> [round(rankwise.beta_for(epochs), 2) for epochs in (250, 100, 20)]
        [0.98, 0.95, 0.78]
        >>> round(rankwise.beta_for(20, left=0.05), 2)
        0.86
    """
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ArgumentError(f"Expected epochs of 1 or more, a whole number, got {epochs!r}.")
    if left is None:
        return float(_BETA ** (_EPOCHS / epochs))
    if isinstance(left, bool) or not isinstance(left, int | float) or not 0 < left <= 1:
        raise ArgumentError(f"Expected left above 0 and 1 at most, got {left!r}.")
    return float(left ** (1 / epochs))


def chosen_beta(beta: float | None, epochs: int | None, variant: str) -> float:
    """β as it was given, or the one for the epochs, or the paper's.

    Where a cosine ends the rates β need not, and gains are better kept: the paper's for any length.
    """
    if beta is not None:
        return beta
    return _BETA if epochs is None or variant == "annealed" else beta_for(epochs)


def chosen_power(p: float | None, variant: str) -> float:
    """The power in the stable rank as it was given, or a variant's own (METHOD §3 and §4)."""
    if p is not None:
        return p
    return 1.0 if variant == "released" else 2.0


def check_rule(options: Mapping[str, Any]) -> None:
    """See that the options of a rule make sense.

    Args:
        options: beta, zeta, floor (or None), variant, gain, epochs (or None) and p.

    Raises:
        ArgumentError: If one does not.
    """
    for name, allowed in (("variant", VARIANTS), ("gain", GAINS)):
        if options[name] not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise ArgumentError(f"Expected {name} to be {expected}, got {options[name]!r}.")
    if not 0.0 <= options["beta"] <= 1.0:
        raise ArgumentError(f"Expected beta between 0 and 1, got {options['beta']!r}.")
    for name in ("zeta", "floor"):
        if not 0.0 <= (options[name] or 0.0) < math.inf:
            raise ArgumentError(f"Expected {name} ≥ 0, got {options[name]!r}.")
    if not 0.0 < options["p"] < math.inf:
        raise ArgumentError(f"Expected p > 0, got {options['p']!r}.")
    if options["epochs"] is not None:
        beta_for(options["epochs"])  # sees that there are some
    elif options["variant"] == "annealed":
        raise ArgumentError(
            "Expected epochs for variant='annealed', whose rates end with them, got none."
        )


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
    if state.initial == 0.0 or reading is Unread.UNPROBED:
        return state
    if isinstance(reading, Unread):
        return _waited(state, rule)
    if rule.variant == "released":
        rate = _released(state, reading, rule, held=held)
    elif rule.variant == "annealed":
        rate = _annealed(state, reading, rule)
    else:
        rate = _paper(state, reading, rule)
    return State(state.initial, rate, reading, state.epoch + 1, asleep)


def _paper(state: State, s: float, rule: Rule) -> float:
    """η(t) = max(β·η(t−1) + ζ·[s(t) − s(t−1)], floor)."""
    return max(rule.beta * state.rate + rule.zeta * _gain(state, s, rule), rule.floor)


def _annealed(state: State, s: float, rule: Rule) -> float:
    """η(t) = a(t)·max(η(0) + m(t), floor), m(t) = β·m(t−1) + ζ·[s(t) − s(t−1)], a(t) a cosine."""
    extra = state.rate / _cosine(state.epoch, rule) - state.initial
    extra = rule.beta * extra + rule.zeta * _gain(state, s, rule)
    return _cosine(state.epoch + 1, rule) * max(state.initial + extra, rule.floor)


def _cosine(epoch: int, rule: Rule) -> float:
    """a(t) = (1 + cos(π·t/N))/2; after the last epoch it stays, so that no rate is ever 0."""
    return 0.5 * (1 + math.cos(math.pi * min(epoch, rule.epochs - 1) / rule.epochs))


def _gain(state: State, s: float, rule: Rule) -> float:
    if state.stable_rank is None:
        return 0.0
    difference = s - state.stable_rank
    if rule.gain == "absolute" or difference == 0.0:
        return difference
    return _REFERENCE * difference / max(s, state.stable_rank)


def _waited(state: State, rule: Rule) -> State:
    """A layer that has no new stable rank keeps its rate; the cosine goes on for all."""
    if rule.variant != "annealed":
        return state
    share = _cosine(state.epoch + 1, rule) / _cosine(state.epoch, rule)
    return state._replace(rate=state.rate * share, epoch=state.epoch + 1)


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
        elif reading is Unread.UNPROBED and rule.variant != "released" and paces:
            rate = state.initial * math.fsum(paces) / len(paces)
        result.append(state._replace(rate=rate))
    return result
