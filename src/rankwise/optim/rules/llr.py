"""LLR (arXiv 2605.22297, ICML 2026; METHOD §8): TempBalance's map, early in training."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rankwise._text import list_globs
from rankwise.errors import ArgumentError
from rankwise.numerics.hill import count_eigenvalues
from rankwise.optim.rules.rule import LayerReading, NoState, RateRule
from rankwise.optim.rules.tails import check_range, find_head, map_exponents, matches


@dataclass(frozen=True)
class LLR(RateRule[NoState]):
    """LLR: multipliers by Hill exponent from 1 to `highest`, set in the first part of training.

    The layer with the lowest Hill exponent gets 1, the one with the highest gets `highest`; after
    the first step and then every k steps during the first 20 % of training, each time reached
    linearly over m steps; then they stay. Embeddings and the head get the maximum. Weights with
    few eigenvalues keep the global rate, and so do norms and biases where they have groups of their
    own: build the groups with `layer_groups(model, no_decay=lambda name, p: p.ndim < 2)`.

    The defaults are the published setting r = 3, k = 40, m = 20 (models of 60M to 1B); the other
    one is r = 5, k = 100, m = 50 (1B): `LLR(steps, highest=5, every=100, transition=50)`.

    Attributes:
        steps: The number of steps of the optimizer in the whole training.
        highest: r, the multiplier of the layer with the lightest tail.
        every: k, the number of steps between two updates.
        transition: m, the number of steps in which new multipliers are reached.
        share: The part of training in which they are set.
        fewest: The number of eigenvalues below which a layer keeps the global rate.
        embeddings: Glob or globs of the names or kinds of layers that get the maximum as
            embeddings; None for all of that kind.
        heads: Glob or globs of the names or kinds of heads; None for the last layer, unless it
            belongs to a block, as where the head is tied to the embedding.

    Raises:
        ArgumentError: If an option is out of range.

    Example:
        >>> import rankwise
        >>> rule = rankwise.LLR(steps=1000)
        >>> alphas = {"0.attn": 2.0, "0.mlp": 3.0, "1.attn": 4.0}
        >>> layers = [
        ...     rankwise.LayerReading("embed", "embedding", (900, 64), "skipped"),
        ...     *(rankwise.LayerReading(n, "linear", (64, 64), value=a) for n, a in alphas.items()),
        ...     rankwise.LayerReading("head", "linear", (900, 64), "skipped"),
        ... ]
        >>> rule.update(rule.start(), layers)[1]
        {'0.attn': 1.0, '0.mlp': 2.0, '1.attn': 3.0, 'embed': 3.0, 'head': 3.0}
        >>> rule.last_step
        200
    """

    measures = "hill_exponent"
    updates_first = True
    sets_vectors = False

    steps: int
    highest: float = 3.0
    every: int = 40
    transition: int = 20
    share: float = 0.2
    fewest: int = 50
    embeddings: str | Sequence[str] | None = None
    heads: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_range(1.0, self.highest)
        for name in ("steps", "every"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"Expected {name} of 1 or more, got {getattr(self, name)!r}.")
        if not 0.0 < self.share <= 1.0:
            raise ArgumentError(f"Expected share above 0 and 1 at most, got {self.share!r}.")

    @property
    def last_step(self) -> int | None:
        """The step after which the multipliers stay; the first step at least."""
        return max(1, int(self.share * self.steps))

    def start(self) -> NoState:
        """Return the empty state."""
        return NoState()

    def select(self, layers: Sequence[LayerReading]) -> Collection[str]:
        """Return the layers with enough eigenvalues that are neither embeddings nor heads."""
        at_top = self._list_top(layers)
        return [
            layer.name
            for layer in layers
            if layer.name not in at_top and count_eigenvalues(layer.shape) >= self.fewest
        ]

    def update(
        self, state: NoState, readings: Sequence[LayerReading]
    ) -> tuple[NoState, Mapping[str, float]]:
        """Return the multipliers to reach over the next steps."""
        at_top = self._list_top(readings)
        multipliers = map_exponents(
            (reading for reading in readings if reading.name not in at_top), 1.0, self.highest
        )
        most = max(multipliers.values(), default=1.0)
        return state, {**multipliers, **dict.fromkeys(at_top, most)}

    def _list_top(self, layers: Sequence[LayerReading]) -> list[str]:
        """Return the embeddings and the head."""
        embeddings = list_globs(self.embeddings)
        globs = ("embedding",) if embeddings is None else embeddings
        heads = list_globs(self.heads)
        head = find_head(layers) if heads is None else None
        return [
            layer.name
            for layer in layers
            if layer.shape
            and (matches(layer, globs) or layer.name == head or matches(layer, heads or ()))
        ]
