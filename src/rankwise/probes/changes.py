"""Two rows of one layer: what it gained or lost from one probe to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rankwise.probes.results import LayerMetrics

__all__ = ["Changes", "LayerChange"]

METRICS = ("rank", "stable_rank", "condition", "quality")


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer before and after; each metric is after − before, None where either has none.

    Attributes:
        name: The layer's name after.
        before: Its row in the first probe.
        after: Its row in the second.

    Example:
        >>> import torch, rankwise
        >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> (change,) = old.diff(old).changes
        >>> change.quality
        0.0
    """

    name: str
    before: LayerMetrics
    after: LayerMetrics

    @property
    def rank(self) -> float | None:
        """The change of n'."""
        return _gain(self.before.rank, self.after.rank)

    @property
    def stable_rank(self) -> float | None:
        """The change of s."""
        return _gain(self.before.stable_rank, self.after.stable_rank)

    @property
    def condition(self) -> float | None:
        """The change of κ; a fall is for the better."""
        return _gain(self.before.condition, self.after.condition)

    @property
    def quality(self) -> float | None:
        """The change of q."""
        return _gain(self.before.quality, self.after.quality)

    @property
    def reshaped(self) -> bool:
        """Whether the layer has another shape now."""
        return self.before.shape != self.after.shape

    @property
    def compared(self) -> bool:
        """Whether both sides were probed."""
        return self.before.probed and self.after.probed

    def to_dict(self) -> dict[str, Any]:
        """The change as plain types: each metric's change, and its value before and after."""
        row: dict[str, Any] = {"name": self.name, "name_before": self.before.name}
        for side, layer in (("before", self.before), ("after", self.after)):
            row[f"status_{side}"] = layer.status.value
            row[f"shape_{side}"] = list(layer.shape)
        for metric in METRICS:
            row[metric] = getattr(self, metric)
            row[f"{metric}_before"] = getattr(self.before, metric)
            row[f"{metric}_after"] = getattr(self.after, metric)
        return row


@dataclass(frozen=True)
class Changes:
    """All that changed between two probes, as data.

    Attributes:
        changes: Every tensor that both have, in the order of the second.
        added: Rows that only the second has.
        removed: Rows that only the first has.
        renamed_prefix: "+model." where the second's names have a prefix more, "-model." where
            they have it less, "" where names are the same.
    """

    changes: tuple[LayerChange, ...]
    added: tuple[LayerMetrics, ...]
    removed: tuple[LayerMetrics, ...]
    renamed_prefix: str = ""


def _gain(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
