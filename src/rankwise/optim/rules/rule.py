"""What a rule for rates is: a pure function `(state, readings) -> (state, multipliers)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

# What can be measured of a layer. A layer with several weights has the mean over them.
Quantity = Literal["stable_rank", "hill_exponent", "relative_update"]
Outcome = Literal["measured", "undefined", "idle", "failed", "skipped"]
Period = int | Literal["epoch"]

State = TypeVar("State", bound=tuple[Any, ...])


class LayerReading(NamedTuple):
    """One layer at an update, as a rule sees it.

    Attributes:
        name: The layer, as in `LayerwiseLR.rates()`.
        kind: Of its first weight: "linear", "conv2d", "embedding", …; "" if it has none.
        shape: Of its first weight.
        outcome: "measured"; "undefined" if the weight has no such value, as a matrix of zeros has
            no Hill exponent; "idle" if the layer took no step since the last update; "failed" if
            its weight is not finite or can't be read; "skipped" if there is nothing to measure, or
            the rule did not ask for it.
        value: What was measured; None unless the outcome is "measured".
        previous: The value of the update before; at the first one, of the moment before the
            layer's first step, for rules that compare. None if it is not known.
        schedule: The present rate as a share of the first one, without this rule's multiplier:
            what a warm-up or a global schedule does.

    Example:
        >>> import rankwise
        >>> rankwise.LayerReading("fc1", "linear", (10, 20), value=0.25).outcome
        'measured'
    """

    name: str
    kind: str = "linear"
    shape: tuple[int, ...] = ()
    outcome: Outcome = "measured"
    value: float | None = None
    previous: float | None = None
    schedule: float = 1.0


class RateRule(ABC, Generic[State]):
    """A rule for the rates of layers; subclass it to write your own for `LayerwiseLR`.

    `update` gets a reading of every layer and returns a multiplier by name for each layer that it
    sets; layers that it leaves out keep the multiplier they have, which is 1 at the start. A
    multiplier of 0 stops a layer for good, since others multiply the rate that is there.

    The state is a NamedTuple of numbers, texts, and lists and dicts of these; it is saved with the
    scheduler. A frozen dataclass suits best: its options are saved too.

    Attributes:
        measures: "stable_rank", "hill_exponent" or "relative_update": ‖W − W'‖₂/‖W'‖₂ with W' the
            weight at the update before. Nothing else is measured.
        p: The power in the stable rank.
        every: When to update: "epoch", or a number of steps of the optimizer.
        transition: In how many steps of the optimizer a new multiplier is reached, linearly.
        updates_first: Whether to update after the first step too.
        last_step: The step after which the multipliers stay as they are, and nothing is measured.
        is_global: Whether all layers have one multiplier.
        others_follow: Whether layers without anything to measure follow the mean of those that
            were measured.
        sets_vectors: Whether a parameter group without the layer's weight (biases or norms, in a
            group of their own) has its multiplier too.

    Example:
        >>> from typing import NamedTuple
        >>> import torch, rankwise
        >>> class Seen(NamedTuple):
        ...     highest: dict[str, float]  # the highest stable rank of each layer so far
        >>> class SlowDown(rankwise.RateRule[Seen]):
        ...     measures = "stable_rank"
        ...
        ...     def start(self):
        ...         return Seen({})
        ...
        ...     def update(self, state, readings):
        ...         ranks = {r.name: r.value for r in readings if r.outcome == "measured"}
        ...         highest = {n: max(s, state.highest.get(n, s)) for n, s in ranks.items()}
        ...         slow = {n: 0.5 if s < highest[n] else 1.0 for n, s in ranks.items()}
        ...         return Seen({**state.highest, **highest}), slow
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
        >>> optimizer = torch.optim.AdamW(rankwise.layer_groups(net), lr=1e-3)
        >>> scheduler = rankwise.LayerwiseLR(optimizer, SlowDown())
        >>> net(torch.randn(8, 20)).square().mean().backward()
        >>> _ = optimizer.step()
        >>> scheduler.step()
        >>> scheduler.rates()
        {'0': 0.001, '1': 0.001}
    """

    measures: ClassVar[Quantity]
    p: float = 2.0
    every: Period = "epoch"
    transition: int = 0
    updates_first: ClassVar[bool] = False
    is_global: ClassVar[bool] = False
    others_follow: ClassVar[bool] = False
    sets_vectors: ClassVar[bool] = True

    @property
    def last_step(self) -> int | None:
        """The step after which nothing changes; None if there is none."""
        return None

    @abstractmethod
    def start(self) -> State:
        """Return the state before the first update."""

    def select(self, layers: Sequence[LayerReading]) -> Collection[str]:
        """Return the names of the layers to measure, of all with a weight, in the model's order."""
        return [layer.name for layer in layers]

    @abstractmethod
    def update(
        self, state: State, readings: Sequence[LayerReading]
    ) -> tuple[State, Mapping[str, float]]:
        """Return the next state, and the multipliers of the layers that the rule sets."""


class NoState(NamedTuple):
    """The state of a rule that remembers nothing."""
