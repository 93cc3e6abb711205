"""Stage II, the rates (METHOD §4): stable ranks → rates, as a pure `(state, reading) -> state`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from rankwise.errors import ArgumentError
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.weights.tensor import Status

Variant = Literal["paper", "annealed"]
_VARIANTS: tuple[Variant, ...] = get_args(Variant)

# The defaults, the paper's but for the floor, for which it has no number.
RATE = 0.03  # η(0)
ZETA = 1.0  # ζ
POWER = 2.0  # p in the stable rank
FLOOR = 0.01  # the lowest rate, as a share of η(0)
_BETA, _EPOCHS = 0.98, 250  # β, and the number of epochs it is for

_FAILED = (Status.NOT_FINITE, Status.UNREADABLE, Status.NO_DATA)


class Rule(NamedTuple):
    """How the rate of a layer follows its stable rank; see `RMSGD`."""

    beta: float
    zeta: float
    floor: float
    variant: Variant = "paper"
    epochs: int = 1  # the length of the cosine of "annealed"


class State(NamedTuple):
    """A parameter group between epochs."""

    initial: float  # η(0)
    rate: float  # η(t), without what others, such as a warm-up, multiply it by
    stable_rank: float | None = None  # s(t) of its layer; None until it is measured
    epoch: int = 0  # t
    started: bool = False  # whether s(0) was measured, before its first step
    stepped: bool = False  # since the last epoch ended


class Reading(NamedTuple):
    """One layer at the end of an epoch, the same on all processes that train it."""

    layer: str
    groups: tuple[int, ...]  # indices, first of the one that its rate is read from
    stepped: bool = True
    previous: float | None = None  # s(t−1); None if it was never measured
    metrics: tuple[LayerMetrics, ...] = ()  # of each of its weights
    others: tuple[LayerMetrics, ...] = ()  # rows of its parameters that are not to be measured

    @property
    def failure(self) -> LayerMetrics | None:
        """A weight that could not be measured although the layer took a step."""
        failed = (row for row in self.metrics if row.status in _FAILED)
        return next(failed, None) if self.stepped else None

    @property
    def stable_rank(self) -> float | None:
        """s(t), the mean over the layer's weights; None if it was not measured."""
        if not self.stepped or self.failure is not None:
            return None
        ranks = [row.stable_rank for row in self.metrics if row.stable_rank is not None]
        return math.fsum(ranks) / len(ranks) if ranks else None

    @property
    def has_no_weight(self) -> bool:
        """Whether the layer took a step but has nothing to measure, such as a norm by itself."""
        return self.stepped and self.failure is None and self.stable_rank is None


def beta_for(epochs: int, *, left: float | None = None) -> float:
    """Return the β for a number of epochs: one that leaves the same share of the first rate.

    β^epochs = 0.98^250, which is 0.6 %. It is 0.98 for 250 epochs and 0.95 for 100, as in the
    paper, and 0.78 for 20, where 0.98 would end at two thirds of the first rate.

    Args:
        epochs: The number of epochs to train, 1 or more.
        left: The share of the first rate that is left where nothing is gained, instead of the
            paper's. For 6 to 30 epochs 0.05 was a little better (docs/results.md).

    Raises:
        ArgumentError: If `epochs` is below 1, or `left` is not above 0 and at most 1.

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


def resolve_beta(beta: float | None, epochs: int | None, variant: str) -> float:
    """Return β as given, or the one for the number of epochs, or the paper's.

    Under a cosine β need not lower the rates, and remembering gains longer is better: there the
    paper's β serves for any number of epochs.
    """
    if beta is not None:
        return beta
    return _BETA if epochs is None or variant == "annealed" else beta_for(epochs)


def check_rule(options: Mapping[str, Any]) -> None:
    """Check the options of a rule."""
    if options["variant"] not in _VARIANTS:
        expected = " or ".join(map(repr, _VARIANTS))
        raise ArgumentError(f"Expected variant {expected}, got {options['variant']!r}.")
    if not 0.0 <= options["beta"] <= 1.0:
        raise ArgumentError(f"Expected beta between 0 and 1, got {options['beta']!r}.")
    for name in ("zeta", "floor"):
        if not 0.0 <= (options[name] or 0.0) < math.inf:
            raise ArgumentError(f"Expected {name} ≥ 0, got {options[name]!r}.")
    if not 0.0 < options["p"] < math.inf:
        raise ArgumentError(f"Expected p > 0, got {options['p']!r}.")
    if options["epochs"] is not None:
        beta_for(options["epochs"])  # checks the number
    elif options["variant"] == "annealed":
        raise ArgumentError(
            "Expected epochs for variant='annealed', whose rates end with them, got none."
        )


def next_states(
    states: Sequence[State], readings: Sequence[Reading], rules: Sequence[Rule]
) -> list[State]:
    """Return the state of every parameter group after an epoch.

    A layer without a weight to measure follows the mean of the others. All groups of a layer have
    its stable rank, and rates in proportion to their first ones.
    """
    layers = []
    for reading in readings:
        state, rule = states[reading.groups[0]], rules[reading.groups[0]]
        layers.append(_next_state(state._replace(stable_rank=reading.previous), reading, rule))
    multipliers = [
        state.rate / state.initial
        for state, reading in zip(layers, readings, strict=True)
        if reading.stable_rank is not None and state.initial
    ]
    new = list(states)
    for state, reading in zip(layers, readings, strict=True):
        rate = state.rate
        if reading.has_no_weight and multipliers:
            rate = state.initial * math.fsum(multipliers) / len(multipliers)
        for index in reading.groups:
            own = states[index]
            share = own.initial / state.initial if state.initial else 0.0
            new[index] = own._replace(
                rate=rate * share, stable_rank=state.stable_rank, epoch=state.epoch, stepped=False
            )
    return new


def _next_state(state: State, reading: Reading, rule: Rule) -> State:
    if state.initial == 0.0 or reading.has_no_weight:
        return state
    s = reading.stable_rank
    if s is None:
        return _keep_rate(state, rule)
    gain = 0.0 if state.stable_rank is None else s - state.stable_rank
    next_rate = _annealed_rate if rule.variant == "annealed" else _paper_rate
    return state._replace(rate=next_rate(state, gain, rule), stable_rank=s, epoch=state.epoch + 1)


def _paper_rate(state: State, gain: float, rule: Rule) -> float:
    """η(t) = max(β·η(t−1) + ζ·[s(t) − s(t−1)], floor)  (Eq. 4)."""
    return max(rule.beta * state.rate + rule.zeta * gain, rule.floor)


def _annealed_rate(state: State, gain: float, rule: Rule) -> float:
    """η(t) = a(t)·max(η(0) + m(t), floor), m(t) = β·m(t−1) + ζ·[s(t) − s(t−1)], a(t) a cosine."""
    extra = state.rate / _cosine(state.epoch, rule) - state.initial
    extra = rule.beta * extra + rule.zeta * gain
    return _cosine(state.epoch + 1, rule) * max(state.initial + extra, rule.floor)


def _cosine(epoch: int, rule: Rule) -> float:
    """a(t) = (1 + cos(π·t/N))/2; constant after the last epoch, so that no rate is ever 0."""
    return 0.5 * (1 + math.cos(math.pi * min(epoch, rule.epochs - 1) / rule.epochs))


def _keep_rate(state: State, rule: Rule) -> State:
    """Keep the rate of a layer that was not measured; a cosine goes on for all layers."""
    if rule.variant != "annealed":
        return state
    share = _cosine(state.epoch + 1, rule) / _cosine(state.epoch, rule)
    return state._replace(rate=state.rate * share, epoch=state.epoch + 1)
