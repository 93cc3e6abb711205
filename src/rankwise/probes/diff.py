"""Two probes compared: layers matched by name, and how each layer's metrics changed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankwise._table import join_cells
from rankwise._text import quote
from rankwise.errors import MissingExtraError, ProbeMismatchError
from rankwise.probes.diff_text import align_changes, format_changes
from rankwise.probes.html import format_diff_html
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.one_line import describe_change, describe_diff

if TYPE_CHECKING:
    import pandas as pd

    from rankwise.charts.style import Chart

_METRICS = ("rank", "stable_rank", "condition", "quality")


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer before and after; each metric is after − before, None where either has none.

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

    def __repr__(self) -> str:
        return describe_change(self)

    @property
    def rank(self) -> float | None:
        """The change of n'."""
        return _subtract(self.before.rank, self.after.rank)

    @property
    def stable_rank(self) -> float | None:
        """The change of s."""
        return _subtract(self.before.stable_rank, self.after.stable_rank)

    @property
    def condition(self) -> float | None:
        """The change of κ."""
        return _subtract(self.before.condition, self.after.condition)

    @property
    def quality(self) -> float | None:
        """The change of q."""
        return _subtract(self.before.quality, self.after.quality)

    @property
    def is_reshaped(self) -> bool:
        """Whether the layer has another shape now."""
        return self.before.shape != self.after.shape

    @property
    def is_comparable(self) -> bool:
        """Whether both sides were probed."""
        return self.before.is_probed and self.after.is_probed

    def to_dict(self) -> dict[str, Any]:
        """Return the change as plain types: each metric's change, its value before and after."""
        row: dict[str, Any] = {"name": self.name, "name_before": self.before.name}
        for side, layer in (("before", self.before), ("after", self.after)):
            row[f"status_{side}"] = layer.status.value
            row[f"shape_{side}"] = list(layer.shape)
        for metric in _METRICS:
            row[metric] = getattr(self, metric)
            row[f"{metric}_before"] = getattr(self.before, metric)
            row[f"{metric}_after"] = getattr(self.after, metric)
        return row


def _subtract(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


@dataclass(frozen=True)
class ProbeDiff:
    """What changed between two probes.

    Attributes:
        changes: Every tensor that both have, in the order of the second.
        added: Rows that only the second has.
        removed: Rows that only the first has.
        renamed_prefix: "+model." where the second's names have an additional prefix, "-model."
            where they lack it, "" where names are the same.

    Example:
        >>> import torch, rankwise
        >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> print(old.diff(old))
        No layer changed: the 1 that both have is the same.
    """

    changes: tuple[LayerChange, ...]
    added: tuple[LayerMetrics, ...]
    removed: tuple[LayerMetrics, ...]
    renamed_prefix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the changes, and the rows that only one side has, as plain types."""
        return {
            "renamed_prefix": self.renamed_prefix,
            "changes": [change.to_dict() for change in self.changes],
            "added": [layer.to_dict() for layer in self.added],
            "removed": [layer.to_dict() for layer in self.removed],
        }

    def to_json(self, indent: int | None = None) -> str:
        """Return the same as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_frame(self) -> pd.DataFrame:
        """Return the changes as a pandas DataFrame, one per row.

        Raises:
            MissingExtraError: Without pandas.
        """
        return make_frame([change.to_dict() for change in self.changes])

    def table(
        self, *, sort: str | None = None, top: int | None = None, width: int | None = 80
    ) -> str:
        """Return the changed layers as a plain table, and a summary below it.

        Args:
            sort: "stable_rank", "condition", "quality", "rank" (by change, ascending) or "name";
                "-" in front reverses; None for the order of the second.
            top: How many rows to show.
            width: In terminal columns; None for as wide as needed.

        Raises:
            ArgumentError: If `sort` or `top` is none of these.
        """
        table = join_cells(align_changes(self, sort=sort, top=top, width=width))
        summary = format_changes(self, width=width)
        return "\n\n".join(part for part in (table, summary) if part)

    def plot(self, metric: str = "stable_rank") -> Chart:
        """Plot every layer's metric before and after, by number and name.

        Args:
            metric: "prominence", "stable_rank", "rank_fraction", "noise_fraction", "condition" or
                "quality".

        Returns:
            An Altair chart; `chart.save("changes.png")` writes PNG, SVG, PDF or HTML.

        Raises:
            ArgumentError: If there is no such metric.
            MissingExtraError: Without altair.

        Example:
            >>> import torch, rankwise
            >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
            >>> old.diff(old).plot("quality").to_dict()["description"]
            'quality q of 1 layer before and after.'
        """
        # Optional, and slow to import.
        from rankwise.charts.changes import draw_diff  # noqa: PLC0415
        from rankwise.probes.chart_rows import make_rows  # noqa: PLC0415

        compared = [change for change in self.changes if change.is_comparable]
        before = make_rows(change.before for change in compared)
        return draw_diff(before, make_rows(change.after for change in compared), metric)

    def __repr__(self) -> str:
        return describe_diff(self)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return format_diff_html(self)


def make_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as a pandas DataFrame."""
    try:
        import pandas as pd  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        raise MissingExtraError("pandas", "frame", "A DataFrame") from error
    return pd.DataFrame(rows)


def compare_layers(before: Sequence[LayerMetrics], after: Sequence[LayerMetrics]) -> ProbeDiff:
    """Match the layers of two probes by name and compare them.

    Where few names are equal, a prefix on one side ("model.", "module.", nested ones too) is
    ignored if a single one explains the names; between several none is guessed.

    Example:
        >>> import torch, rankwise
        >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> new = rankwise.probe({"model.fc.weight": torch.eye(4) + 9})
        >>> compare_layers(old.layers, new.layers).renamed_prefix
        '+model.'
    """
    alignment = match_names([layer.name for layer in before], [layer.name for layer in after])
    left, right = {i for i, _ in alignment.pairs}, {j for _, j in alignment.pairs}
    return ProbeDiff(
        tuple(LayerChange(after[j].name, before[i], after[j]) for i, j in alignment.pairs),
        added=tuple(layer for j, layer in enumerate(after) if j not in right),
        removed=tuple(layer for i, layer in enumerate(before) if i not in left),
        renamed_prefix=alignment.prefix,
    )


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which names of two models mean the same layer."""

    pairs: tuple[tuple[int, int], ...]  # indices before and after, in the order of those after
    prefix: str = ""  # as `ProbeDiff.renamed_prefix`
    candidates: tuple[str, ...] = ()  # the prefixes between which there was no clear choice


def match_names(before: Sequence[str], after: Sequence[str]) -> Alignment:
    """Pair names as `align_names` does.

    Raises:
        ProbeMismatchError: If no name is paired.

    Example:
        >>> match_names(["fc.weight"], ["model.fc.weight"]).prefix
        '+model.'
    """
    alignment = align_names(before, after)
    if alignment.pairs:
        return alignment
    sentence = "The two have no layer in common"
    if not alignment.candidates:
        raise ProbeMismatchError(
            f"{sentence}: no name of one is a name of the other, with or without a prefix."
        )
    prefixes = ", ".join(quote(prefix[1:]) for prefix in alignment.candidates)
    raise ProbeMismatchError(
        f"{sentence} unless one of the prefixes {prefixes} is meant; probe that part alone."
    )


def align_names(before: Sequence[str], after: Sequence[str]) -> Alignment:
    """Pair equal names; where few are, pair the rest across the one prefix that explains them.

    Example:
        >>> align_names(["fc1.weight", "fc2.weight"], ["net.fc1.weight", "net.fc2.weight"])
        Alignment(pairs=((0, 0), (1, 1)), prefix='+net.', candidates=())
    """
    exact = _pair_names(before, after, "", range(len(before)), range(len(after)))
    if 2 * len(exact) >= min(len(before), len(after)):
        return Alignment(tuple(exact))
    left = sorted(set(range(len(before))) - {i for i, _ in exact})
    right = sorted(set(range(len(after))) - {j for _, j in exact})
    candidates = _find_prefixes([before[i] for i in left], [after[j] for j in right])
    if len(candidates) != 1:
        return Alignment(tuple(exact), candidates=tuple(candidates))
    across = _pair_names(before, after, candidates[0], left, right)
    pairs = sorted([*exact, *across], key=lambda pair: pair[1])
    return Alignment(tuple(pairs), candidates[0])


def _pair_names(
    before: Sequence[str],
    after: Sequence[str],
    prefix: str,
    left: Iterable[int],
    right: Iterable[int],
) -> list[tuple[int, int]]:
    """Return index pairs of the names that are equal once the prefix is added to one of them."""
    gained = prefix[1:] if prefix.startswith("+") else ""
    lost = prefix[1:] if prefix.startswith("-") else ""
    places = {gained + before[i]: i for i in reversed(list(left))}
    pairs = [(places.pop(lost + after[j], None), j) for j in right]
    return [(i, j) for i, j in pairs if i is not None]


def _find_prefixes(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the prefix that explains most names; several if undecided, none if there is none."""
    votes = Counter("+" + prefix for prefix in _list_prefixes(before, after))
    votes.update("-" + prefix for prefix in _list_prefixes(after, before))
    best = max(votes.values(), default=0)
    if best == 0 or best < min(len(before), len(after)) / 2:
        return []
    # A runner-up with more than half the votes is a second model of the same build in there.
    return sorted(prefix for prefix, count in votes.items() if 2 * count > best)


def _list_prefixes(short: Sequence[str], long: Sequence[str]) -> Iterator[str]:
    """Yield every prefix that turns one of the short names into one of the long."""
    known = set(short)
    for name in long:
        for place, character in enumerate(name):
            if character == "." and name[place + 1 :] in known:
                yield name[: place + 1]
