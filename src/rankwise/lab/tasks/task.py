"""What the training loop asks of a task: batches, a step, a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from rankwise.lab.data.dataset import Batch
from rankwise.lab.optimizers import Method

__all__ = ["Methods", "Place", "Sums", "Task"]

Methods = Mapping[str, Method]  # by the part of the network that each one trains
Sums = dict[str, Tensor]  # over the samples of some batches; "count" is how many


class Place(NamedTuple):
    """Where in a run a batch is."""

    epoch: int
    batch: int


class Task(Protocol):
    """A network, its data, and how the one learns from the other.

    Attributes:
        parts: The networks that have an optimizer each, by their place in the whole.
        per_epoch: How many batches make an epoch.
        fingerprint: What tells this data from other data of the same name.
    """

    parts: dict[str, nn.Module]
    per_epoch: int
    fingerprint: dict[str, Any]

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """This process's share of an epoch's batches, from a batch on."""

    def step(self, batch: Batch, methods: Methods, place: Place) -> Sums:
        """Learn from a batch; what to sum up over the epoch."""

    def scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Sums over an epoch → the figures to record."""

    def evaluate(self) -> dict[str, float]:
        """The figures on the test set."""

    def carried(self) -> dict[str, Any]:
        """What goes from one batch to the next beside weights and optimizer; all processes'."""

    def carry(self, what: Mapping[str, Any]) -> None:
        """Go on with what `carried` gave; empty at an epoch's start."""
