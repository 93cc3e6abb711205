"""Two probes → the page of what changed from one checkpoint to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from rankwise._text import format_count, format_name, format_percent, sanitize
from rankwise.adapters.deltas.change_text import describe_change
from rankwise.charts.axes import METRICS
from rankwise.charts.changes import draw_diff
from rankwise.errors import ProbeMismatchError
from rankwise.probes.chart_rows import make_rows
from rankwise.probes.diff_text import format_changes, group_changes
from rankwise.probes.text import format_metric, format_shape, format_total_rank
from rankwise.reports.changes import list_change_facts, make_change_sections
from rankwise.reports.checkpoint import (
    PAPER_METRICS,
    describe_metric,
    list_caveats,
)
from rankwise.reports.layer_table import MOST_LAYERS, describe_order, make_layer_cell
from rankwise.reports.network import PAPER, list_changed_facts
from rankwise.reports.page import (
    NO_VALUE,
    Cell,
    ChartPanel,
    Fact,
    Page,
    Section,
    Table,
    Text,
    capitalize,
    format_number_cell,
    make_columns,
)

if TYPE_CHECKING:
    from rankwise.adapters.deltas.change_records import NetworkChange
    from rankwise.charts.layers import LayerRow
    from rankwise.probes.diff import LayerChange, ProbeDiff
    from rankwise.probes.layer_metrics import LayerMetrics
    from rankwise.probes.results import Probe

VISIBLE = 5e-4  # the least change that three digits show
CHARTED = ("stable_rank", "rank_fraction", "noise_fraction")
CHANGES = (
    "Layers are numbered as in the table below. An arrow leads from a layer's value before, the "
    "stroke, to its value after. In a map of blocks a cell shows the difference: ↑, blue: up; "
    "↓, orange: down. Neither direction is good or bad by itself. Experts of one role and shape "
    "are one row with their medians."
)


def make_diff_page(
    before: Probe, after: Probe, labels: Sequence[str], weights: NetworkChange | None = None
) -> Page:
    """Return the page of two checkpoints: what changed in each layer.

    Two that have no layer in common are compared as a whole.

    Args:
        before: The probe of the first.
        after: The probe of the second.
        labels: What to call them.
        weights: The change of the weights; None where these are not known.

    Example:
        >>> import torch, rankwise
        >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> make_diff_page(old, old, ("old.pt", "new.pt")).title
        'old.pt → new.pt'
    """
    try:
        diff = before.diff(after)
    except ProbeMismatchError as error:
        return make_overview_page((before, after), labels, str(error))
    first, second = map(sanitize, labels)
    compared = group_changes([change for change in diff.changes if change.is_comparable])
    compared = compared[:MOST_LAYERS]
    old, new = make_rows(c.before for c in compared), make_rows(c.after for c in compared)
    summary, facts = _summarize(diff), _list_facts(diff, before, after)
    changes: Iterator[Section] = iter(())
    if weights is not None:
        summary = iter(describe_change(weights))
        facts = chain(list_change_facts(weights), list_changed_facts(before, after, since="before"))
        changes = make_change_sections(
            weights, [change.name for change in compared], describe_order(after)
        )
    return Page(
        title=f"{first} → {second}",
        summary=tuple(summary),
        facts=tuple(facts),
        sections=(
            *changes,
            *_draw_changes(old, new, describe_order(after)),
            *_make_tables(diff, compared, (first, second), describe_order(after)),
            *_describe_paper(before, after, old, new),
        ),
        layers=tuple(format_name(change.name) for change in compared),
        source=f"{first}, {second}",
    )


def make_change_table(changes: Sequence[LayerChange], caption: str) -> Table:
    """Return a row for each layer that was probed on both sides, numbered as in charts."""
    titles = (*("#", "layer", "s before", "s after", "Δs", "rank", "Δκ", "Δq", "q after", "shape"),)
    compared = (change for change in changes if change.is_comparable)
    rows = tuple(_make_row(number, change) for number, change in enumerate(compared, 1))
    hints = {
        "#": "The number of the layer in all charts.",
        "q after": "* where rank 1 puts it at its maximum by definition.",
    }
    return Table(
        make_columns(titles, name_column=1),
        rows,
        caption,
        has_filter=True,
        name_column=1,
        hints=hints,
        name="changes",
    )


def make_overview_page(probes: Sequence[Probe], labels: Sequence[str], reason: str) -> Page:
    """Return a page that compares networks as a whole, where their layers can't be matched."""
    names = [sanitize(label) for label in labels]
    titles = (
        *("network", "differ from random", "signal energy", "S", "total rank", "parameters"),
        *("layers", "Q (the paper's)"),
    )
    rows = tuple(_make_overview(name, probe) for name, probe in zip(names, probes, strict=True))
    hints = {
        "differ from random": "Layers that differ from random, of those wide enough to tell.",
        "S": "The stable rank s, weighted by the layers' widths.",
        "Q (the paper's)": "It does not rank networks.",
    }
    caption = "The networks as a whole. None of these figures says which network is better."
    table = Table(make_columns(titles), rows, caption, hints=hints)
    return Page(
        title=" · ".join(names),
        summary=(f"Layers are not compared one by one. {sanitize(reason)}",),
        sections=(Section("The networks as a whole", (table,)),),
        source=", ".join(names),
    )


def _describe_paper(
    before: Probe, after: Probe, old: list[LayerRow], new: list[LayerRow]
) -> Iterator[Section]:
    if not new:
        return
    first, second = (format_metric(probe.figures.quality) for probe in (before, after))
    text = Text((PAPER, f"Q before: {first}; after: {second}."))
    yield Section("The paper's figures", (text, *_draw_metrics(old, new, PAPER_METRICS)))


def _summarize(diff: ProbeDiff) -> Iterator[str]:
    yield from format_changes(diff, width=None).split("\n")
    gains = [(c.stable_rank, c.name) for c in diff.changes if c.stable_rank is not None]
    most, least = max(gains, default=(0.0, "")), min(gains, default=(0.0, ""))
    if most[0] >= VISIBLE:
        yield f"Stable rank s rose most in {format_name(most[1])} ({most[0]:+.3f})."
    if least[0] <= -VISIBLE:
        yield f"Stable rank s fell most in {format_name(least[1])} ({least[0]:+.3f})."


def _list_facts(diff: ProbeDiff, before: Probe, after: Probe) -> Iterator[Fact]:
    yield from list_changed_facts(before, after, since="before")
    compared = [change for change in diff.changes if change.is_comparable]
    rose, fell = (sum((c.stable_rank or 0.0) * sign > 0 for c in compared) for sign in (1, -1))
    yield Fact("Layers compared", str(len(compared)), f"s rose in {rose}, fell in {fell}")
    yield Fact("On one side only", str(len(diff.added) + len(diff.removed)), "of all tensors")


def _draw_changes(old: list[LayerRow], new: list[LayerRow], order: str) -> Iterator[Section]:
    if new:
        panels = _draw_metrics(old, new, CHARTED)
        yield Section(
            f"Layers before and after, {order}", (Text((CHANGES,)), *panels, list_caveats(CHARTED))
        )


def _draw_metrics(
    old: list[LayerRow], new: list[LayerRow], metrics: Sequence[str]
) -> Iterator[ChartPanel]:
    for place, metric in enumerate(metrics):
        yield ChartPanel(
            f"{capitalize(METRICS[metric][0])} before and after",
            draw_diff(old, new, metric),
            describe_metric(metric),
            wide=place == 0 and len(metrics) % 2 == 1,
        )


def _make_tables(
    diff: ProbeDiff, compared: Sequence[LayerChange], labels: Sequence[str], order: str
) -> Iterator[Section]:
    changes = make_change_table(compared, f"The layers that both have, {order}.")
    if changes.rows:
        yield Section("All changes", (changes,))
    one_sided = tuple(
        _list_tensors(layers, f"{format_count(len(layers), 'tensor')} only in {label}.")
        for label, layers in zip(labels, (diff.removed, diff.added), strict=True)
        if layers
    )
    if one_sided:
        yield Section("Only on one side", one_sided)


def _make_row(number: int, change: LayerChange) -> tuple[Cell, ...]:
    before, after = change.before, change.after
    sides = format_shape(after.shape)
    if change.is_reshaped:
        sides = f"{format_shape(before.shape)} → {sides}"
    return (
        Cell(str(number), "dim", float(number)),
        make_layer_cell(change.name),
        format_number_cell(before.stable_rank, ".3f"),
        format_number_cell(after.stable_rank, ".3f"),
        _format_change(change.stable_rank),
        Cell(f"{before.rank or 0:g} → {after.rank or 0:g}", value=change.rank),
        _format_change(change.condition),
        _format_change(change.quality),
        Cell(format_metric(after.quality) + "*" * after.has_inflated_quality, value=after.quality),
        Cell(sides, value=float(after.parameters)),
    )


def _format_change(value: float | None) -> Cell:
    if value is None:
        return NO_VALUE
    return Cell("0" if abs(value) < VISIBLE else f"{value:+.3f}".replace("-", "−"), value=value)


def _make_overview(name: str, probe: Probe) -> tuple[Cell, ...]:
    figures = probe.figures
    return (
        Cell(name),
        Cell(
            f"{figures.differing} of {figures.judged}",
            value=figures.differing / max(figures.judged, 1),
        ),
        Cell(format_percent(figures.signal_energy), value=figures.signal_energy),
        format_number_cell(figures.stable_rank_by_width, ".3f"),
        Cell(format_total_rank(figures.total_rank), value=figures.total_rank),
        format_number_cell(figures.parameters, ","),
        format_number_cell(len(probe.probed), "d"),
        format_number_cell(figures.quality, ".3f"),
    )


def _list_tensors(layers: Sequence[LayerMetrics], caption: str) -> Table:
    rows = tuple(
        (
            Cell(format_name(layer.name)),
            Cell(str(layer.status)),
            Cell(format_shape(layer.shape), value=float(layer.parameters)),
            format_number_cell(layer.stable_rank, ".3f"),
            format_number_cell(layer.quality, ".3f"),
        )
        for layer in layers[:MOST_LAYERS]
    )
    columns = make_columns(("tensor", "status", "shape", "s", "q"), left=("status",))
    return Table(columns, rows, caption, has_filter=len(rows) > 20)
