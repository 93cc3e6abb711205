"""The paper's rule (METHOD §4): a layer's rate follows its gain in stable rank."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from rankwise.errors import ArgumentError
from rankwise.optim.rules.rule import LayerReading, RateRule

Variant = Literal["paper", "annealed"]
_VARIANTS: tuple[Variant, ...] = get_args(Variant)

# The defaults, the paper's but for the floor, for which it has no number.
RATE = 0.03  # η(0)
ZETA = 1.0  # ζ
POWER = 2.0  # p in the stable rank
FLOOR = 0.01  # the lowest rate, as a share of η(0)
BETA, _EPOCHS = 0.98, 250  # β, and the number of epochs it is for


class LayerRate(NamedTuple):
    """The rate of a layer between updates: η for RMSGD, η/η(0) for other optimizers."""

    initial: float  # η(0)
    rate: float  # η(t), without what others, such as a warm-up, multiply it by
    epoch: int = 0  # t


class StableRankState(NamedTuple):
    """By layer: the multiplier, and the number of updates so far."""

    multipliers: dict[str, float]
    epochs: dict[str, int]


class GainRule(RateRule[StableRankState]):
    """A rule by which the rate of a layer follows its gain in stable rank."""

    measures = "stable_rank"
    others_follow = True

    def start(self) -> StableRankState:
        """Return multipliers of 1."""
        return StableRankState({}, {})

    def update(
        self, state: StableRankState, readings: Sequence[LayerReading]
    ) -> tuple[StableRankState, Mapping[str, float]]:
        """Return the state after an epoch, and the multiplier of every layer with a weight."""
        multipliers, epochs = dict(state.multipliers), dict(state.epochs)
        given: dict[str, float] = {}
        for reading in readings:
            name = reading.name
            has_weight = reading.shape or reading.outcome == "measured" or name in multipliers
            if reading.outcome == "skipped" or not has_weight:
                continue
            layer = LayerRate(1.0, multipliers.get(name, 1.0), epochs.get(name, 0))
            layer = next_layer(layer, reading, self)
            multipliers[name], epochs[name] = layer.rate, layer.epoch
            given[name] = layer.rate
        return StableRankState(multipliers, epochs), given

    @abstractmethod
    def next_rate(self, layer: LayerRate, gain: float) -> float:
        """Return the rate after an epoch in which the stable rank grew by `gain`."""

    @abstractmethod
    def keep_rate(self, layer: LayerRate) -> LayerRate:
        """Return the rate of a layer that was not measured."""


@dataclass(frozen=True)
class StableRank(GainRule):
    """The paper's rule, relative to a layer's first rate: m ← max(βm + (ζ/η_ref)·Δs, floor).

    Δs is the gain in the stable rank of the layer's weight since the epoch before, m the
    multiplier of the layer's first rate. Layers without a weight to measure follow the mean of the
    others.

    Attributes:
        beta: β, the share of the rate that an epoch without gain leaves. None for
            `beta_for(epochs)`; without `epochs` the paper's 0.98, which is for about 250 epochs.
        zeta: ζ, the weight of a gain in stable rank.
        floor: The lowest multiplier.
        reference: η_ref, the first rate at which this is the paper's rule.
        epochs: The number of epochs to train, which sets β.
        p: The power in the stable rank.

    Raises:
        ArgumentError: If an option is out of range.

    Example:
        >>> import rankwise
        >>> rule = rankwise.StableRank(beta=0.9)
        >>> reading = rankwise.LayerReading("fc1", value=0.13, previous=0.1)
        >>> state, multipliers = rule.update(rule.start(), [reading])
        >>> {name: round(m, 6) for name, m in multipliers.items()}  # 0.9 + 0.03/0.03
        {'fc1': 1.9}
    """

    beta: float | None = None
    zeta: float = ZETA
    floor: float = FLOOR
    reference: float = RATE
    epochs: int | None = None
    p: float = POWER

    def __post_init__(self) -> None:
        check_options({**vars(self), "variant": "paper"})

    def next_rate(self, layer: LayerRate, gain: float) -> float:
        """η(t) = max(β·η(t−1) + ζ·[s(t) − s(t−1)], floor)  (Eq. 4)."""
        beta = resolve_beta(self.beta, self.epochs, "paper")
        return max(beta * layer.rate + self.zeta / self.reference * gain, self.floor)

    def keep_rate(self, layer: LayerRate) -> LayerRate:
        """Return the rate as it is."""
        return layer


def next_rates(
    layers: Sequence[LayerRate], readings: Sequence[LayerReading], rules: Sequence[GainRule]
) -> list[LayerRate]:
    """Return the rates of layers after an epoch; those without a weight follow the mean."""
    new = [next_layer(*triple) for triple in zip(layers, readings, rules, strict=True)]
    multipliers = [
        layer.rate / layer.initial
        for layer, reading in zip(new, readings, strict=True)
        if reading.outcome == "measured" and layer.initial
    ]
    if not multipliers:
        return new
    total, count = math.fsum(multipliers), len(multipliers)
    return [
        layer._replace(rate=layer.initial * total / count)
        if reading.outcome == "skipped"
        else layer
        for layer, reading in zip(new, readings, strict=True)
    ]


def next_layer(layer: LayerRate, reading: LayerReading, rule: GainRule) -> LayerRate:
    """Return the rate of one layer after an epoch; a layer without a weight keeps its own."""
    if layer.initial == 0.0 or reading.outcome == "skipped":
        return layer
    if reading.value is None:
        return rule.keep_rate(layer)
    gain = 0.0 if reading.previous is None else reading.value - reading.previous
    return layer._replace(rate=rule.next_rate(layer, gain), epoch=layer.epoch + 1)


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
        return float(BETA ** (_EPOCHS / epochs))
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
    return BETA if epochs is None or variant == "annealed" else beta_for(epochs)


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of the paper's rule and of its annealed variant."""
    if options["variant"] not in _VARIANTS:
        expected = " or ".join(map(repr, _VARIANTS))
        raise ArgumentError(f"Expected variant {expected}, got {options['variant']!r}.")
    beta = options["beta"]
    if beta is not None and not 0.0 <= beta <= 1.0:
        raise ArgumentError(f"Expected beta between 0 and 1, got {beta!r}.")
    for name in ("zeta", "floor"):
        if not 0.0 <= (options[name] or 0.0) < math.inf:
            raise ArgumentError(f"Expected {name} ≥ 0, got {options[name]!r}.")
    for name in ("p", "reference"):
        if not 0.0 < options.get(name, 1.0) < math.inf:
            raise ArgumentError(f"Expected {name} > 0, got {options[name]!r}.")
    if options["epochs"] is not None:
        beta_for(options["epochs"])  # checks the number
    elif options["variant"] == "annealed":
        raise ArgumentError(
            "Expected epochs for variant='annealed', whose rates end with them, got none."
        )
