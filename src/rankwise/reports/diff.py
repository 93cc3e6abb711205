"""Two or more probes → the page of what changed from one checkpoint to the next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rankwise._text import format_count, format_percent, sanitize
from rankwise.charts.axes import METRICS
from rankwise.charts.changes import draw_diff
from rankwise.charts.evolution import draw_heat_map
from rankwise.charts.runs import draw_quality
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

VISIBLE = 5e-4  # the least change that three digits show
CHARTED = ("stable_rank", "condition", "quality")
ARROWS = (
    "Each line leads from a layer's value before, the stroke, to its value after, the triangle, "
    "which points in the direction of the change. Blue is better, vermilion is worse; for κ down "
    "is better."
)
STEP = "checkpoint"
HEAT_MAPS = ("quality", "stable_rank", "condition", "noise_fraction")
CELLS = (
    "Each row is a layer, the first on top; each column a checkpoint. A grey cell is a layer that "
    "was not probed there."
)


def make_diff_page(before: Probe, after: Probe, labels: Sequence[str]) -> Page:
    """Return the page of two checkpoints: what each layer gained or lost.

    Two that have no layer in common are compared as a whole.

    Example:
        >>> import torch, rankwise
        >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> make_diff_page(old, old, ("old.pt", "new.pt")).title
        'old.pt → new.pt'
    """
    try:
        diff = before.diff(after)
    except ProbeMismatchError as error:
        return _make_overview_page((before, after), labels, str(error))
    first, second = map(sanitize, labels)
    return Page(
        title=f"{first} → {second}",
        summary=tuple(_summarize(diff, before, after)),
        facts=tuple(_list_facts(diff, before, after)),
        sections=(*_draw_changes(diff), *_make_tables(diff, (first, second))),
        layers=tuple(sanitize(change.name) for change in diff.changes if change.is_comparable),
        source=f"{first}, {second}",
    )


def make_evolution_page(probes: Sequence[Probe], labels: Sequence[str]) -> Page:
    """Return the page of several checkpoints of one network, in the order given.

    Layers are matched with those of the last; increasing numbers in the labels are taken for
    epochs. Networks that have no layer in common are compared as a whole.

    Example:
        >>> import torch, rankwise
        >>> result = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> page = make_evolution_page([result] * 3, ["e1.pt", "e2.pt", "e9.pt"])
        >>> page.summary[0]
        '3 checkpoints, from e1.pt to e9.pt.'
    """
    try:
        diffs = [probe.diff(probes[-1]) for probe in probes]
    except ProbeMismatchError as error:
        return _make_overview_page(probes, labels, str(error))
    names = [sanitize(label) for label in labels]
    epochs, layers = _number_checkpoints(names), _list_layers(diffs)
    table = _make_change_table(diffs[0].changes, f"{names[0]} → {names[-1]}")
    lines = (f"{epoch}: {name}" for epoch, name in zip(epochs, names, strict=True))
    key = Text(tuple(lines), collapsed_under="Which column is which checkpoint")
    sections = (
        *_draw_quality(probes, epochs),
        *_draw_heat_maps(_make_epoch_rows(diffs, epochs, layers)),
        *([Section("First and last", (table,))] if table.rows else []),
        Section("Columns", (key,)),
    )
    return Page(
        title=f"{names[0]} … {names[-1]}",
        summary=tuple(_summarize_evolution(probes, diffs[0], names)),
        facts=tuple(_list_evolution_facts(probes)),
        sections=sections,
        layers=tuple(layers),
        source=", ".join(names),
    )


def _describe_quality_change(before: Probe, after: Probe) -> Iterator[str]:
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


def _make_change_table(changes: Sequence[LayerChange], caption: str) -> Table:
    titles = ("layer", "shape", "rank", "s before", "s after", "Δs", "Δκ", "Δq", "q after")
    rows = tuple(_make_row(change) for change in changes if change.is_comparable)
    hints = {
        "q after": "* where rank 1 inflates it: by definition, not by learning.",
    }
    return Table(make_columns(titles), rows, caption, has_filter=True, hints=hints, name="changes")


def _make_overview_page(probes: Sequence[Probe], labels: Sequence[str], reason: str) -> Page:
    """Return a page that compares networks as a whole, where their layers can't be matched."""
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
    yield from _describe_quality_change(before, after)
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
            wide=metric == CHARTED[0],
        )
        for metric in CHARTED
    )
    yield Section("Layers before and after", (Text((ARROWS,)), *panels, list_caveats(CHARTED)))


def _make_tables(diff: ProbeDiff, labels: Sequence[str]) -> Iterator[Section]:
    changes = _make_change_table(diff.changes, "The layers that both have, in network order.")
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
        _format_change(change.stable_rank),
        _format_change(change.condition),
        _format_change(change.quality),
        Cell(format_metric(after.quality) + "*" * after.has_inflated_quality, value=after.quality),
    )


def _format_change(value: float | None) -> Cell:
    return Cell(make_change_cell(value).text, "" if value else "dim", value)


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


def _number_checkpoints(labels: Sequence[str]) -> list[int]:
    """The last numbers in the labels that increase from one to the next; or 1, 2, 3, …."""
    numbers = [[int(digits) for digits in re.findall(r"[0-9]{1,9}", label)] for label in labels]
    if len({len(row) for row in numbers}) == 1:
        for column in reversed(list(zip(*numbers, strict=True))):
            if all(before < after for before, after in pairwise(column)):
                return list(column)
    return list(range(1, len(labels) + 1))


def _list_layers(diffs: Sequence[ProbeDiff]) -> list[str]:
    """The layers that were probed in one of the checkpoints or more, in the last one's order."""
    probed = {c.name for diff in diffs for c in diff.changes if c.before.is_probed}
    return [sanitize(change.name) for change in diffs[-1].changes if change.name in probed]


def _make_epoch_rows(
    diffs: Sequence[ProbeDiff], epochs: Sequence[int], layers: Sequence[str]
) -> list[dict[str, Any]]:
    depths = {name: depth for depth, name in enumerate(layers, start=1)}
    return [
        {
            "epoch": epoch,
            "layer": sanitize(change.name),
            "depth": depths[sanitize(change.name)],
            **{metric: getattr(change.before, metric) for metric in HEAT_MAPS},
        }
        for epoch, diff in zip(epochs, diffs, strict=True)
        for change in diff.changes
        if sanitize(change.name) in depths
    ]


def _summarize_evolution(
    probes: Sequence[Probe], diff: ProbeDiff, labels: Sequence[str]
) -> Iterator[str]:
    yield f"{len(probes)} checkpoints, from {labels[0]} to {labels[-1]}."
    yield from _describe_quality_change(probes[0], probes[-1])
    known = [(p.quality, label) for p, label in zip(probes, labels, strict=True) if p.quality]
    highest, label = max(known, default=(0.0, ""))
    if highest > max(probes[0].quality or 0.0, probes[-1].quality or 0.0):
        yield f"Q was highest in {label} ({format_metric(highest)})."
    yield "From the first to the last:"
    yield from format_changes(diff, width=None).split("\n")
    yield Q_CAVEAT


def _list_evolution_facts(probes: Sequence[Probe]) -> Iterator[Fact]:
    first, last = probes[0], probes[-1]
    yield Fact("Checkpoints", str(len(probes)))
    yield Fact(
        "Network quality Q", format_metric(last.quality), f"first: {format_metric(first.quality)}"
    )
    old, new = (sum(not layer.is_empty for layer in probe.probed) for probe in (first, last))
    yield Fact("Layers with structure", str(new), f"of {len(last.probed)} probed; first: {old}")


def _draw_quality(probes: Sequence[Probe], epochs: Sequence[int]) -> Iterator[Section]:
    rows = [
        {"epoch": epoch, "quality": probe.quality}
        for epoch, probe in zip(epochs, probes, strict=True)
        if probe.quality is not None
    ]
    if rows:
        chart, caption = draw_quality(rows, step=STEP), describe_metric("network_quality")
        panel = ChartPanel("Network quality Q", chart, caption, wide=True)
        yield Section("The network as a whole", (panel,))


def _draw_heat_maps(rows: list[dict[str, Any]]) -> Iterator[Section]:
    if not rows:
        return
    panels = (
        ChartPanel(
            METRICS[metric][0].capitalize(),
            draw_heat_map(rows, metric, step=STEP),
            describe_metric(metric),
        )
        for metric in HEAT_MAPS
    )
    yield Section("Layer by layer", (Text((CELLS,)), *panels, list_caveats(HEAT_MAPS)))
