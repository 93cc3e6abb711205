"""The paper's gains on top of a cosine (METHOD §4, "annealed")."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rankwise.optim.rules.stable_rank import (
    BETA,
    FLOOR,
    POWER,
    RATE,
    ZETA,
    GainRule,
    LayerRate,
    check_options,
)


@dataclass(frozen=True)
class AnnealedStableRank(GainRule):
    """Gains in stable rank on top of the first rate, under a cosine: a(t)·max(1 + m, floor).

    m ← βm + (ζ/η_ref)·Δs, and a(t) = (1 + cos(πt/epochs))/2 with t the number of updates. The
    cosine belongs to the rule: combine it with a warm-up, but with no other decay.

    Attributes:
        epochs: The number of epochs to train, the length of the cosine.
        beta: β, the share of the gains that an epoch leaves.
        zeta: ζ, the weight of a gain in stable rank.
        floor: The lowest multiplier, before the cosine.
        reference: η_ref, the first rate at which the gains count as the paper's.
        p: The power in the stable rank.

    Raises:
        ArgumentError: If an option is out of range.

    Example:
        >>> import rankwise
        >>> rule = rankwise.AnnealedStableRank(epochs=2)
        >>> reading = rankwise.LayerReading("fc1", value=0.16, previous=0.1)
        >>> state, multipliers = rule.update(rule.start(), [reading])
        >>> {name: round(m, 6) for name, m in multipliers.items()}  # 0.5 · (1 + 0.06/0.03)
        {'fc1': 1.5}
    """

    epochs: int
    beta: float = BETA
    zeta: float = ZETA
    floor: float = FLOOR
    reference: float = RATE
    p: float = POWER

    def __post_init__(self) -> None:
        check_options({**vars(self), "variant": "annealed"})

    def next_rate(self, layer: LayerRate, gain: float) -> float:
        """η(t) = a(t)·max(η(0) + m(t), floor), m(t) = β·m(t−1) + ζ·[s(t) − s(t−1)]."""
        extra = layer.rate / self._cosine(layer.epoch) - layer.initial
        extra = self.beta * extra + self.zeta / self.reference * gain
        return self._cosine(layer.epoch + 1) * max(layer.initial + extra, self.floor)

    def keep_rate(self, layer: LayerRate) -> LayerRate:
        """Let the cosine go on for a layer that was not measured."""
        share = self._cosine(layer.epoch + 1) / self._cosine(layer.epoch)
        return layer._replace(rate=layer.rate * share, epoch=layer.epoch + 1)

    def _cosine(self, epoch: int) -> float:
        """a(t) = (1 + cos(π·t/N))/2; constant after the last epoch, so that no rate is ever 0."""
        return 0.5 * (1 + math.cos(math.pi * min(epoch, self.epochs - 1) / self.epochs))
