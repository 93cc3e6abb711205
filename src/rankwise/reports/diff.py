"""Two probes → the page of what changed between two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rankwise._text import format_count, format_percent, sanitize
from rankwise.charts.axes import METRICS
from rankwise.charts.layers import CROWDED, draw_diff
from rankwise.errors import ProbeMismatchError
from rankwise.probes.chart_rows import make_rows
from rankwise.probes.diff_text import format_changes, make_change_cell
from rankwise.probes.text import format_metric, format_shape
from rankwise.reports.checkpoint import (
    Q_CAVEAT,
    compute_mean,
    describe_metric,
    list_caveats,
    make_layer_cell,
)
from rankwise.reports.page import (
    Cell,
    ChartPanel,
    Fact,
    Page,
    Section,
    Table,
    Text,
    format_number_cell,
    make_columns,
)

if TYPE_CHECKING:
    from rankwise.probes.diff import LayerChange, ProbeDiff
    from rankwise.probes.layer_metrics import LayerMetrics
    from rankwise.probes.results import Probe

__all__ = [
    "describe_quality_change",
    "make_change_table",
    "make_diff_page",
    "make_overview_page",
]

VISIBLE = 5e-4  # the least change that three digits show
CHARTED = ("stable_rank", "condition", "quality")
ARROWS = (
    "Each line leads from a layer's value before, the stroke, to its value after, the triangle, "
    "which points in the direction of the change. Blue is better, vermilion is worse; for κ down "
    "is better."
)


def make_diff_page(before: Probe, after: Probe, labels: Sequence[str]) -> Page:
    """Return the page of two checkpoints: what each layer gained or lost.

    Two that have no layer in common are compared as a whole.

    Args:
        before: The first.
        after: The second.
        labels: What to call them.

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
    return Page(
        title=f"{first} → {second}",
        summary=tuple(_summarize(diff, before, after)),
        facts=tuple(_list_facts(diff, before, after)),
        sections=(*_draw_changes(diff), *_make_tables(diff, (first, second))),
        layers=tuple(sanitize(change.name) for change in diff.changes if change.is_comparable),
        source=f"{first}, {second}",
    )


def describe_quality_change(before: Probe, after: Probe) -> Iterator[str]:
    """Yield sentences on the change of Q, and whether rank-1 layers contribute to it."""
    if before.quality is None or after.quality is None:
        return
    first, second = format_metric(before.quality), format_metric(after.quality)
    if first == second:
        yield f"Network quality Q stayed at {second}."
    else:
        verb = "rose" if after.quality > before.quality else "fell"
        yield f"Network quality Q {verb} from {first} to {second}."
    old, new = (
        sum(layer.has_inflated_quality for layer in probe.probed) for probe in (before, after)
    )
    if old or new:
        yield (
            f"Caution: {format_count(new, 'layer')} of the second checkpoint and {old} of the "
            "first have rank 1 in an unfolding, which raises q and Q by definition, not by "
            "learning."
        )


def make_change_table(changes: Sequence[LayerChange], caption: str) -> Table:
    """Return a table of every layer that was probed on both sides, with what changed."""
    titles = ("layer", "shape", "rank", "s before", "s after", "Δs", "Δκ", "Δq", "q after")
    rows = tuple(_make_row(change) for change in changes if change.is_comparable)
    hints = {
        "Δκ": "Down is better.",
        "q after": "* where rank 1 inflates it: by definition, not by learning.",
    }
    return Table(make_columns(titles), rows, caption, has_filter=True, hints=hints, name="changes")


def make_overview_page(probes: Sequence[Probe], labels: Sequence[str], reason: str) -> Page:
    """Return a page that compares networks as a whole, where their layers can't be matched.

    Args:
        probes: The networks.
        labels: What to call them.
        reason: Why the layers can't be matched, in a sentence.
    """
    names = [sanitize(label) for label in labels]
    means = ("mean s", "mean κ", "mean q", "mean noise")
    titles = ("network", "Q", "layers", "with structure", "parameters", "coverage", *means)
    rows = tuple(_make_overview(name, probe) for name, probe in zip(names, probes, strict=True))
    table = Table(make_columns(titles), rows, "The networks as a whole; means are over layers.")
    return Page(
        title=" · ".join(names),
        summary=(f"Layers are not compared one by one. {sanitize(reason)}", Q_CAVEAT),
        sections=(Section("The networks as a whole", (table,)),),
        source=", ".join(names),
    )


def _make_overview(name: str, probe: Probe) -> tuple[Cell, ...]:
    structured = sum(not layer.is_empty for layer in probe.probed)
    means = [compute_mean(probe.probed, metric) for metric in CHARTED]
    noise = compute_mean(probe.probed, "noise_fraction")
    return (
        Cell(name),
        format_number_cell(probe.quality, ".3f"),
        format_number_cell(len(probe.probed), "d"),
        format_number_cell(structured, "d"),
        format_number_cell(probe.parameters, ","),
        Cell(format_percent(probe.coverage), value=probe.coverage),
        *(format_number_cell(mean, ".3f") for mean in means),
        Cell(format_percent(noise), value=noise),
    )


def _summarize(diff: ProbeDiff, before: Probe, after: Probe) -> Iterator[str]:
    yield from format_changes(diff, width=None).split("\n")
    yield from describe_quality_change(before, after)
    gains = [(c.stable_rank, c.name) for c in diff.changes if c.stable_rank is not None]
    most, least = max(gains, default=(0.0, "")), min(gains, default=(0.0, ""))
    if most[0] >= VISIBLE:
        yield f"Stable rank s grew most in {sanitize(most[1])} ({most[0]:+.3f})."
    if least[0] <= -VISIBLE:
        yield f"Stable rank s fell most in {sanitize(least[1])} ({least[0]:+.3f})."
    yield Q_CAVEAT


def _list_facts(diff: ProbeDiff, before: Probe, after: Probe) -> Iterator[Fact]:
    compared = [change for change in diff.changes if change.is_comparable]
    yield Fact(
        "Network quality Q",
        format_metric(after.quality),
        f"before: {format_metric(before.quality)}",
    )
    sides = [c.before for c in compared], [c.after for c in compared]
    s, noise = (
        [compute_mean(side, metric) for side in sides]
        for metric in ("stable_rank", "noise_fraction")
    )
    yield Fact("Mean stable rank", format_metric(s[1]), f"before: {format_metric(s[0])}")
    yield Fact("Mean noise share", format_percent(noise[1]), f"before: {format_percent(noise[0])}")
    rose, fell = (sum((c.stable_rank or 0.0) * sign > 0 for c in compared) for sign in (1, -1))
    yield Fact("Layers compared", str(len(compared)), f"s rose in {rose}, fell in {fell}")
    yield Fact("On one side only", str(len(diff.added) + len(diff.removed)), "of all tensors")


def _draw_changes(diff: ProbeDiff) -> Iterator[Section]:
    compared = [change for change in diff.changes if change.is_comparable]
    if not compared:
        return
    before = make_rows(change.before for change in compared)
    after = make_rows(change.after for change in compared)
    panels = (
        ChartPanel(
            f"{METRICS[metric][0].capitalize()} before and after",
            draw_diff(before, after, metric),
            describe_metric(metric),
            wide=len(after) >= CROWDED or metric == CHARTED[0],
        )
        for metric in CHARTED
    )
    yield Section("Layers before and after", (Text((ARROWS,)), *panels, list_caveats(CHARTED)))


def _make_tables(diff: ProbeDiff, labels: Sequence[str]) -> Iterator[Section]:
    changes = make_change_table(diff.changes, "The layers that both have, in network order.")
    if changes.rows:
        yield Section("All changes", (changes,))
    one_sided = tuple(
        _list_tensors(layers, f"{format_count(len(layers), 'tensor')} only in {label}.")
        for label, layers in zip(labels, (diff.removed, diff.added), strict=True)
        if layers
    )
    if one_sided:
        yield Section("Only on one side", one_sided)


def _make_row(change: LayerChange) -> tuple[Cell, ...]:
    before, after = change.before, change.after
    sides = format_shape(after.shape)
    if change.is_reshaped:
        sides = f"{format_shape(before.shape)} → {sides}"
    return (
        make_layer_cell(change.name),
        Cell(sides, value=float(after.parameters)),
        Cell(f"{before.rank or 0:g} → {after.rank or 0:g}", value=change.rank),
        format_number_cell(before.stable_rank, ".3f"),
        format_number_cell(after.stable_rank, ".3f"),
        _format_gain(change.stable_rank),
        _format_gain(change.condition, better=-1),
        _format_gain(change.quality),
        Cell(format_metric(after.quality) + "*" * after.has_inflated_quality, value=after.quality),
    )


def _format_gain(value: float | None, better: int = 1) -> Cell:
    cell = make_change_cell(value, better)
    return Cell(cell.text, "" if cell.style == "good" else cell.style, value)


def _list_tensors(layers: Sequence[LayerMetrics], caption: str) -> Table:
    rows = tuple(
        (
            Cell(sanitize(layer.name)),
            Cell(str(layer.status)),
            Cell(format_shape(layer.shape), value=float(layer.parameters)),
            format_number_cell(layer.stable_rank, ".3f"),
            format_number_cell(layer.quality, ".3f"),
        )
        for layer in layers
    )
    columns = make_columns(("tensor", "status", "shape", "s", "q"), left=("status",))
    return Table(columns, rows, caption, has_filter=len(rows) > 20)
