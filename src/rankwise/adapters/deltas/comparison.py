"""Two networks compared: the metrics of every layer, and the change itself where weights are given.

This is `rankwise.diff`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise._table import join_cells
from rankwise._text import format_change, format_percent, wrap
from rankwise.adapters.deltas.change_records import NetworkChange
from rankwise.adapters.deltas.change_text import (
    align_rows,
    describe_change,
    describe_others,
    make_rows,
)
from rankwise.adapters.deltas.changes import measure_pairing
from rankwise.adapters.pair_filter import filter_pairs
from rankwise.adapters.pairs import open_pairs
from rankwise.api import Target, find_release, probe, probe_weights
from rankwise.errors import ArgumentError, ProbeMismatchError
from rankwise.probes.diff import ProbeDiff
from rankwise.probes.diff_text import align_changes, count_moves, format_changes
from rankwise.probes.html import format_lines_html
from rankwise.probes.parallel import Progress
from rankwise.probes.results import Probe, is_saved_probe
from rankwise.probes.text import MOST_ROWS, Line, format_metric, format_total_rank
from rankwise.probes.workers import Resources

if TYPE_CHECKING:
    import pandas as pd

    from rankwise.charts.style import Chart


@dataclass(frozen=True, repr=False)
class NetworkDiff:
    """What `rankwise.diff` found.

    Attributes:
        before: The probe of the first.
        after: The probe of the second.
        metrics: How the metrics of every layer changed.
        weights: The change of the weights themselves; None where one side is a saved probe, which
            has no weights.

    Example:
        >>> import torch, rankwise
        >>> base = {"fc.weight": torch.eye(40)}
        >>> rankwise.diff(base, {"fc.weight": torch.eye(40) + 1}).weights.tensors[0].rank
        1
    """

    before: Probe
    after: Probe
    metrics: ProbeDiff
    weights: NetworkChange | None = None

    def table(
        self, *, sort: str | None = None, top: int | None = None, width: int | None = 80
    ) -> str:
        """Return the results as text: sentences, the layers that changed, and all others.

        Args:
            sort: "change" (‖ΔW‖/‖W‖), "rank" or "low_rank" of the change, "stable_rank",
                "condition" or "quality" (by how they changed), or "name", ascending; "-" in front
                reverses; None for the order of the second network. Of saved probes, which have no
                weights, "rank" is by how it changed, and there is no "change" or "low_rank".
            top: How many rows to show.
            width: In terminal columns; None for as wide as needed.

        Raises:
            ArgumentError: If `sort` or `top` is none of these.
        """
        parts = (
            "\n".join(wrap(sentence, width) for sentence in self.describe()),
            join_cells(self.align_rows(sort=sort, top=top, width=width)),
            "\n".join(wrap(sentence, width) for sentence in self.describe_others()),
        )
        return "\n\n".join(part for part in parts if part)

    def describe(self) -> list[str]:
        """Return what changed, in sentences."""
        if self.weights is None:
            return []
        return describe_change(self.weights)

    def align_rows(
        self, *, sort: str | None = None, top: int | None = None, width: int | None = 80
    ) -> list[Line]:
        """Return the lines of the table, as cells with their styles."""
        if self.weights is None:
            return align_changes(self.metrics, sort=sort, top=top, width=width)
        rows = make_rows(self.weights, self.metrics)
        return align_rows(rows, sort=sort, top=top, width=width)

    def describe_others(self) -> list[str]:
        """Return what stands below the table: other tensors, and figures of the whole."""
        if self.weights is None:
            sentences = format_changes(self.metrics, width=None).split("\n")
        else:
            sentences = describe_others(self.weights)
            if self.weights.changed:
                sentences.append(count_moves(self.metrics.changes))
        return [*sentences, self._format_figures()]

    def _format_figures(self) -> str:
        def compare(name: str, format_value: Callable[[float | None], str]) -> str:
            sides = (self.before.figures, self.after.figures)
            return " → ".join(format_value(getattr(side, name)) for side in sides)

        return (
            f"Signal energy {compare('signal_energy', format_percent)}; stable rank by width S "
            f"{compare('stable_rank_by_width', format_metric)}; total rank "
            f"{compare('total_rank', format_total_rank)}; the paper's Q "
            f"{compare('quality', format_metric)}."
        )

    def plot(self, metric: str | None = None) -> Chart:
        """Plot every layer's change by number and name.

        Args:
            metric: "change" (the default), "change_rank" or "low_rank_share"; for how the metrics
                of the layers changed, what `ProbeDiff.plot` takes.

        Returns:
            An Altair chart; `chart.save("changes.png")` writes PNG, SVG, PDF or HTML.

        Raises:
            ArgumentError: If there is no such metric.
            MissingExtraError: Without altair.

        Example:
            >>> import torch, rankwise
            >>> result = rankwise.diff({"fc.weight": torch.eye(4)}, {"fc.weight": torch.ones(4, 4)})
            >>> result.plot().to_dict()["description"]
            'change ‖ΔW‖/‖W‖ of 1 layer.'
        """
        # Optional, and slow to import.
        from rankwise.charts.weight_changes import (  # noqa: PLC0415
            CHANGE_METRICS,
            draw_weight_changes,
        )

        if self.weights is None or (metric is not None and metric not in CHANGE_METRICS):
            return self.metrics.plot(metric or "stable_rank")
        rows = make_rows(self.weights)
        chart_rows = [row.make_chart_row(number) for number, row in enumerate(rows, 1)]
        return draw_weight_changes(chart_rows, metric or "change")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain types."""
        weights = None if self.weights is None else self.weights.to_dict()
        return {**self.metrics.to_dict(), "weights": weights}

    def to_json(self, indent: int | None = None) -> str:
        """Return the same as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame: a row for each tensor's change, or that of its metrics.

        Raises:
            MissingExtraError: Without pandas.
        """
        return self.metrics.to_frame() if self.weights is None else self.weights.to_frame()

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        lines = self.align_rows(top=MOST_ROWS, width=None)
        return format_lines_html(
            "\n".join(self.describe()), lines, "\n".join(self.describe_others())
        )

    def __repr__(self) -> str:
        if self.weights is None:
            return f"<NetworkDiff: the metrics of {len(self.metrics.changes)} tensors, no weights>"
        compared = sum(tensor.norm is not None for tensor in self.weights.tensors)
        share = format_percent(self.weights.low_rank_share)
        return (
            f"<NetworkDiff: {len(self.weights.changed)} of {compared} tensors changed, by "
            f"{format_change(self.weights.relative)}; {share} of that is of low rank>"
        )


def diff(
    before: Target | Probe,
    after: Target | Probe,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    resources: Resources | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> NetworkDiff:
    """Compare two networks, as a base and what was tuned from it, layer by layer.

    Where both hold weights, the change ΔW itself is measured: its rank by EVBMF, ‖ΔW‖/‖W‖, and how
    much of it an adapter of that rank would hold. Layers are matched by name, across a prefix that
    one side has; files are read tensor by tensor.

    Args:
        before: A module, a state dict, a checkpoint's path; or a probe, or the path of a saved one.
        after: Another one to compare with it.
        include: Glob or globs; only tensors whose names match one are compared.
        exclude: Glob or globs; tensors whose names match one are not compared.
        resources: How many layers to measure at once, and in how much memory.
        progress: Called after each layer.

    Raises:
        ArgumentError: If globs are given for a saved probe, match no tensor, or leave none.
        CheckpointError: If one of them can't be read, or is an adapter instead of a network.
        ProbeMismatchError: If they have no layer in common, or were probed with different p.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> base = {"fc.weight": torch.randn(64, 32), "head.weight": torch.randn(8, 64)}
        >>> lora = torch.randn(64, 3) @ torch.randn(3, 32)
        >>> rankwise.diff(base, base | {"fc.weight": base["fc.weight"] + lora})
        <NetworkDiff: 1 of 2 tensors changed, by 140 %; >99 % of that is of low rank>
    """
    sides = [_load_probe(side) for side in (before, after)]
    saved = [side for side in sides if isinstance(side, Probe)]
    if saved and (include is not None or exclude is not None):
        raise ArgumentError(
            f"{saved[0].source} is a saved probe, which include and exclude can't change. Give the "
            "checkpoint instead."
        )
    if len({side.p for side in saved}) > 1:
        raise ProbeMismatchError(
            f"Expected probes with the same exponent, got p = {saved[0].p:g} and p = "
            f"{saved[1].p:g}. Probe both with the same p."
        )
    targets = [side for side in sides if not isinstance(side, Probe)]
    phases = _split_progress(progress, 3 if len(targets) == 2 else len(targets))
    if len(targets) == 2:
        pairing = filter_pairs(open_pairs(*targets), include, exclude)
        release = find_release(*targets)
        weights = measure_pairing(
            pairing, resources=resources, progress=next(phases), release=release
        )
        probes = [
            probe_weights(side, resources=resources, progress=next(phases), release=release)
            for side in (pairing.base, pairing.tuned)
        ]
        return NetworkDiff(probes[0], probes[1], probes[0].diff(probes[1]), weights)
    probes = [
        side
        if isinstance(side, Probe)
        else probe(side, p=saved[0].p, resources=resources, progress=next(phases))
        for side in sides
    ]
    return NetworkDiff(probes[0], probes[1], probes[0].diff(probes[1]))


def _load_probe(side: Target | Probe) -> Target | Probe:
    """Return the probe that a path leads to; everything else unchanged."""
    if isinstance(side, str | os.PathLike) and is_saved_probe(Path(side)):
        return Probe.load(side)
    return side


def _split_progress(
    progress: Callable[[Progress], None] | None, count: int
) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a function for each of several jobs that make one progress together."""
    cached = [0] * count

    def report(now: Progress, place: int) -> None:
        cached[place] = now.cached
        done = place + now.done / (now.total or 1.0)
        if progress is not None:
            progress(Progress(done, float(count), now.name, sum(cached)))

    for place in range(count):
        yield None if progress is None else partial(report, place=place)
