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
from rankwise.reports.checkpoint import USE_OF_Q, caveats, layer_name, mean, reading
from rankwise.reports.page import Cell, Fact, Page, Picture, Section, Table, Words

if TYPE_CHECKING:
    from rankwise.probes.diff import LayerChange, ProbeDiff
    from rankwise.probes.layer_metrics import LayerMetrics
    from rankwise.probes.results import Probe

__all__ = ["change_table", "changes_page", "q_sentences", "wholes_page"]

VISIBLE = 5e-4  # the least change that three digits show
SHOWN = ("stable_rank", "condition", "quality")
ARROWS = (
    "Each line leads from a layer's value before, the stroke, to its value after, the triangle, "
    "which points where it went. Blue is for the better, vermilion for the worse; for κ down is "
    "better."
)


def changes_page(before: Probe, after: Probe, labels: Sequence[str]) -> Page:
    """The page of two checkpoints: what each layer gained or lost.

    Two that have no layer in common are compared as wholes.

    Args:
        before: The first.
        after: The second.
        labels: What to call them.

    Example:
        >>> import torch, rankwise
        >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> changes_page(old, old, ("old.pt", "new.pt")).verdict[0]
        'No layer changed: the 1 that both have is the same.'
    """
    try:
        diff = before.diff(after)
    except ProbeMismatchError as error:
        return wholes_page((before, after), labels, str(error))
    first, second = map(sanitize, labels)
    return Page(
        title=f"{first} → {second}",
        verdict=tuple(_verdict(diff, before, after)),
        facts=tuple(_facts(diff, before, after)),
        sections=(*_figures(diff), *_table(diff), *_one_sided(diff, (first, second))),
        layers=tuple(sanitize(c.name) for c in diff.changes if c.is_comparable),
        source=f"{first}, {second}",
    )


def q_sentences(before: Probe, after: Probe) -> Iterator[str]:
    """Q from one to the other in words, and whether rank 1 has a part in it."""
    if before.quality is None or after.quality is None:
        return
    first, second = format_metric(before.quality), format_metric(after.quality)
    if first == second:
        yield f"Network quality Q stayed at {second}."
    else:
        verb = "rose" if after.quality > before.quality else "fell"
        yield f"Network quality Q {verb} from {first} to {second}."
    ones = [sum(layer.has_inflated_quality for layer in probe.probed) for probe in (before, after)]
    if any(ones):
        yield (
            f"Mind that {format_count(ones[1], 'layer')} of the second and {ones[0]} of the first "
            "are rank 1 in an unfolding, which lifts q and Q by definition, not by learning."
        )


def change_table(changes: Sequence[LayerChange], caption: str) -> Table:
    """Every layer that was probed on both sides, with what changed."""
    heads = ("layer", "shape", "rank", "s before", "s after", "Δs", "Δκ", "Δq", "q after")
    rows = tuple(_row(change) for change in changes if change.is_comparable)
    hints = {
        "Δκ": "Down is better.",
        "q after": "* where rank 1 lifts it: by definition, not by learning.",
    }
    return Table(caption, heads, rows, filter=True, hints=hints, name="changes")


def wholes_page(probes: Sequence[Probe], labels: Sequence[str], why: str) -> Page:
    """Networks side by side as wholes, where their layers can't be matched.

    Args:
        probes: The networks.
        labels: What to call them.
        why: The reason, in a sentence.
    """
    named = [sanitize(label) for label in labels]
    rows = tuple(_whole(name, probe) for name, probe in zip(named, probes, strict=True))
    heads = ("network", "Q", "layers", "with structure", "parameters", "coverage")
    means = ("mean s", "mean κ", "mean q", "mean noise")
    reason = f"Layers are not set side by side. {sanitize(why)}"
    table = Table("The networks as wholes; means are over layers.", (*heads, *means), rows)
    return Page(
        title=" · ".join(named),
        verdict=(reason, USE_OF_Q),
        sections=(Section("The networks as wholes", (table,)),),
        source=", ".join(named),
    )


def _whole(name: str, probe: Probe) -> tuple[Cell, ...]:
    held = sum(not layer.is_empty for layer in probe.probed)
    metrics = ("stable_rank", "condition", "quality")
    values = [mean(probe.probed, metric) for metric in metrics]
    noise = mean(probe.probed, "noise_fraction")
    return (
        Cell(name),
        Cell(format_metric(probe.quality), probe.quality),
        Cell(str(len(probe.probed)), float(len(probe.probed))),
        Cell(str(held), float(held)),
        Cell(f"{probe.parameters:,}", float(probe.parameters)),
        Cell(format_percent(probe.coverage), probe.coverage),
        *(Cell(format_metric(value), value) for value in values),
        Cell(format_percent(noise), noise),
    )


def _verdict(diff: ProbeDiff, before: Probe, after: Probe) -> Iterator[str]:
    yield from format_changes(diff, width=None).split("\n")
    yield from q_sentences(before, after)
    moves = [(c.stable_rank, c.name) for c in diff.changes if c.stable_rank is not None]
    for verb, (move, name) in (
        ("grew", max(moves, default=(0.0, ""))),
        ("fell", min(moves, default=(0.0, ""))),
    ):
        if abs(move) >= VISIBLE and (move > 0) == (verb == "grew"):
            yield f"Stable rank s {verb} most in {sanitize(name)} ({move:+.3f})."
    yield USE_OF_Q


def _facts(diff: ProbeDiff, before: Probe, after: Probe) -> Iterator[Fact]:
    compared = [change for change in diff.changes if change.is_comparable]
    yield Fact(
        "Network quality Q",
        format_metric(after.quality),
        f"before: {format_metric(before.quality)}",
    )
    sides = [c.before for c in compared], [c.after for c in compared]
    s, noise = ([mean(side, m) for side in sides] for m in ("stable_rank", "noise_fraction"))
    yield Fact("Mean stable rank", format_metric(s[1]), f"before: {format_metric(s[0])}")
    yield Fact("Mean noise share", format_percent(noise[1]), f"before: {format_percent(noise[0])}")
    rose, fell = (sum((c.stable_rank or 0.0) * sign > 0 for c in compared) for sign in (1, -1))
    yield Fact("Layers compared", str(len(compared)), f"s rose in {rose}, fell in {fell}")
    yield Fact("On one side only", str(len(diff.added) + len(diff.removed)), "of all tensors")


def _figures(diff: ProbeDiff) -> Iterator[Section]:
    compared = [change for change in diff.changes if change.is_comparable]
    if not compared:
        return
    before = make_rows(change.before for change in compared)
    after = make_rows(change.after for change in compared)
    pictures = (
        Picture(
            f"{METRICS[metric][0].capitalize()} before and after",
            draw_diff(before, after, metric),
            reading(metric),
            wide=len(after) >= CROWDED or metric == SHOWN[0],
        )
        for metric in SHOWN
    )
    yield Section("Layers before and after", (Words((ARROWS,)), *pictures, caveats(SHOWN)))


def _table(diff: ProbeDiff) -> Iterator[Section]:
    table = change_table(diff.changes, "The layers that both have, in network order.")
    if table.rows:
        yield Section("All changes", (table,))


def _row(change: LayerChange) -> tuple[Cell, ...]:
    before, after = change.before, change.after
    sides = format_shape(after.shape)
    if change.is_reshaped:
        sides = f"{format_shape(before.shape)} → {sides}"
    return (
        layer_name(change.name),
        Cell(sides, float(after.parameters)),
        Cell(f"{before.rank or 0:g} → {after.rank or 0:g}", change.rank),
        Cell(format_metric(before.stable_rank), before.stable_rank),
        Cell(format_metric(after.stable_rank), after.stable_rank),
        _gain(change.stable_rank),
        _gain(change.condition, better=-1),
        _gain(change.quality),
        Cell(format_metric(after.quality) + "*" * after.has_inflated_quality, after.quality),
    )


def _gain(value: float | None, better: int = 1) -> Cell:
    told = make_change_cell(value, better)
    return Cell(told.text, value, "" if told.style == "good" else told.style)


def _one_sided(diff: ProbeDiff, labels: Sequence[str]) -> Iterator[Section]:
    tables = [
        _tensors(layers, f"{format_count(len(layers), 'tensor')} only in {label}.")
        for label, layers in zip(labels, (diff.removed, diff.added), strict=True)
        if layers
    ]
    if tables:
        yield Section("Only on one side", tuple(tables))


def _tensors(layers: Sequence[LayerMetrics], caption: str) -> Table:
    rows = tuple(
        (
            Cell(sanitize(layer.name)),
            Cell(str(layer.status)),
            Cell(format_shape(layer.shape), float(layer.parameters)),
            Cell(format_metric(layer.stable_rank), layer.stable_rank),
            Cell(format_metric(layer.quality), layer.quality),
        )
        for layer in layers
    )
    return Table(caption, ("tensor", "status", "shape", "s", "q"), rows, filter=len(rows) > 20)
