"""Two probes side by side: what each layer gained or lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankwise._table import join_cells
from rankwise._text import quote
from rankwise.errors import MissingExtraError, ProbeMismatchError
from rankwise.probes.alignment import align_names
from rankwise.probes.changes import Changes, LayerChange
from rankwise.probes.show.changes import change_lines, format_verdict, html_rows
from rankwise.probes.show.html import fragment, paragraphs, table_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from rankwise.charts.style import Chart
    from rankwise.probes.results import LayerMetrics

__all__ = ["LayerChange", "ProbeDiff", "compare"]


@dataclass(frozen=True)
class ProbeDiff(Changes):
    """What changed between two probes, and every way to show it.

    Attributes:
        changes: Every tensor that both have, in the order of the second.
        added: Rows that only the second has.
        removed: Rows that only the first has.
        renamed_prefix: "+model." where the second's names have a prefix more, "-model." where
            they have it less, "" where names are the same.

    Example:
        >>> import torch, rankwise
        >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> print(old.diff(old))
        No layer changed: the 1 that both have is the same.
    """

    def to_json(self, indent: int | None = None) -> str:
        """The changes, and the rows that only one side has, as JSON."""
        document = {
            "renamed_prefix": self.renamed_prefix,
            "changes": [change.to_dict() for change in self.changes],
            "added": [layer.to_dict() for layer in self.added],
            "removed": [layer.to_dict() for layer in self.removed],
        }
        return json.dumps(document, indent=indent)

    def to_frame(self) -> pd.DataFrame:
        """The changes as a pandas frame, one a row.

        Raises:
            MissingExtraError: Without pandas.
        """
        try:
            import pandas as pd  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("pandas", "frame", "A data frame") from error
        frame: pd.DataFrame = pd.DataFrame([change.to_dict() for change in self.changes])
        return frame

    def table(
        self, *, sort: str | None = None, top: int | None = None, width: int | None = 80
    ) -> str:
        """The changed layers as a plain table, then in words what a table can't show.

        Args:
            sort: "quality", "stable_rank", "condition", "rank" (by change, ascending) or "name";
                "-" in front reverses; None for network order.
            top: How many rows to show.
            width: In terminal columns; None for as wide as needed.

        Raises:
            ArgumentError: If `sort` or `top` is none of these.
        """
        table = join_cells(change_lines(self, sort=sort, top=top, width=width))
        verdict = format_verdict(self, width=width)
        return "\n\n".join(part for part in (table, verdict) if part)

    def plot(self, metric: str = "stable_rank") -> Chart:
        """Every layer's metric before and after, in network order.

        Args:
            metric: "quality", "stable_rank", "condition", "rank_fraction" or "noise_fraction".

        Returns:
            An Altair chart; `chart.save("changes.png")` writes PNG, SVG, PDF or HTML.

        Raises:
            ArgumentError: If there is no such metric.
            MissingExtraError: Without altair.

        Example:
            >>> import torch, rankwise
            >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
            >>> old.diff(old).plot("quality").to_dict()["description"]
            'quality q of 1 layer before and after, in network order.'
        """
        # Optional, and slow to import.
        from rankwise.charts.layers import draw_diff  # noqa: PLC0415
        from rankwise.probes.chart_rows import make_rows  # noqa: PLC0415

        compared = [change for change in self.changes if change.compared]
        before = make_rows(change.before for change in compared)
        return draw_diff(before, make_rows(change.after for change in compared), metric)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        heads, rows = html_rows(self)
        table = table_html(heads, rows) if rows else ""
        return fragment(table + paragraphs(format_verdict(self, width=None)))


def compare(before: Sequence[LayerMetrics], after: Sequence[LayerMetrics]) -> ProbeDiff:
    """Match the layers of two probes by name and say what changed.

    Where few names are the same, one prefix on one side ("model.", "module.", nested ones too) is
    looked through, if a single one explains the names; between several none is guessed.

    Args:
        before: Rows of the first probe.
        after: Rows of the second.

    Raises:
        ProbeMismatchError: If the two have no layer in common.

    Example:
        >>> import torch, rankwise
        >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> new = rankwise.probe({"model.fc.weight": torch.eye(4) + 9})
        >>> compare(old.layers, new.layers).renamed_prefix
        '+model.'
    """
    found = align_names([layer.name for layer in before], [layer.name for layer in after])
    if not found.pairs:
        raise ProbeMismatchError(_mismatch(found.candidates))
    left, right = {i for i, _ in found.pairs}, {j for _, j in found.pairs}
    return ProbeDiff(
        tuple(LayerChange(after[j].name, before[i], after[j]) for i, j in found.pairs),
        added=tuple(layer for j, layer in enumerate(after) if j not in right),
        removed=tuple(layer for i, layer in enumerate(before) if i not in left),
        renamed_prefix=found.prefix,
    )


def _mismatch(candidates: Sequence[str]) -> str:
    sentence = "The two have no layer in common"
    if not candidates:
        return f"{sentence}: no name of one is a name of the other, with or without a prefix."
    prefixes = ", ".join(quote(prefix[1:]) for prefix in candidates)
    return f"{sentence} unless one of the prefixes {prefixes} is meant; probe that part alone."
