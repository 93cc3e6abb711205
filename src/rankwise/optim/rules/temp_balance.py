"""TempBalance (Zhou et al., NeurIPS 2023; METHOD §8): heavy tails get low rates, once an epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rankwise._text import list_globs
from rankwise.optim.rules.rule import LayerReading, NoState, RateRule
from rankwise.optim.rules.tails import check_range, map_exponents, matches

_KINDS = ("linear", "conv2d", "depthwise2d")


@dataclass(frozen=True)
class TempBalance(RateRule[NoState]):
    """TempBalance: multipliers by Hill exponent, linearly from `lowest` to `highest`.

    After every epoch the layer with the lowest Hill exponent gets `lowest`, the one with the
    highest gets `highest`. It sets Linear and Conv2d layers but the first and the last of them; all
    others, embeddings among them, keep the global rate. The global rate is to follow a schedule of
    its own; in the paper, a cosine. A norm moves with the weight before it.

    Attributes:
        lowest: The multiplier of the layer with the heaviest tail.
        highest: The multiplier of the layer with the lightest tail.
        dropped: Glob or globs: layers whose name or kind matches one keep the global rate, instead
            of the first and the last. `()` drops none.

    Raises:
        ArgumentError: If an option is out of range.

    Example:
        >>> import rankwise
        >>> rule = rankwise.TempBalance()
        >>> alphas = {"stem": 2.0, "conv1": 2.0, "conv2": 2.5, "conv3": 3.0, "fc": 9.0}
        >>> layers = [rankwise.LayerReading(name, value=alpha) for name, alpha in alphas.items()]
        >>> chosen = rule.select(layers)
        >>> rule.update(rule.start(), [r for r in layers if r.name in chosen])[1]
        {'conv1': 0.5, 'conv2': 1.0, 'conv3': 1.5}
    """

    measures = "hill_exponent"

    lowest: float = 0.5
    highest: float = 1.5
    dropped: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_range(self.lowest, self.highest)

    def start(self) -> NoState:
        """Return the empty state."""
        return NoState()

    def select(self, layers: Sequence[LayerReading]) -> Collection[str]:
        """Return the Linear and Conv2d layers without those that are dropped."""
        tuned = [layer for layer in layers if layer.kind in _KINDS]
        globs = list_globs(self.dropped)
        if globs is None:
            return [layer.name for layer in tuned[1:-1]]
        return [layer.name for layer in tuned if not matches(layer, globs)]

    def update(
        self, state: NoState, readings: Sequence[LayerReading]
    ) -> tuple[NoState, Mapping[str, float]]:
        """Return the multipliers after an epoch."""
        return state, map_exponents(readings, self.lowest, self.highest)
