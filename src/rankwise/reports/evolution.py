"""Three or more probes of one network → the page of how it changed from one to the next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rankwise._text import sanitize
from rankwise.charts.axes import METRICS
from rankwise.charts.evolution import draw_heat_map
from rankwise.charts.runs import draw_quality
from rankwise.errors import ProbeMismatchError
from rankwise.probes.diff_text import format_changes
from rankwise.probes.text import format_metric
from rankwise.reports.checkpoint import Q_CAVEAT, describe_metric, list_caveats
from rankwise.reports.diff import describe_quality_change, make_change_table, make_overview_page
from rankwise.reports.page import ChartPanel, Fact, Page, Section, Text

if TYPE_CHECKING:
    from rankwise.probes.diff import ProbeDiff
    from rankwise.probes.results import Probe

__all__ = ["make_evolution_page"]

STEP = "checkpoint"
CHARTED = ("quality", "stable_rank", "condition", "noise_fraction")
CELLS = (
    "Each row is a layer, the first on top; each column a checkpoint. A grey cell is a layer that "
    "was not probed there."
)


def make_evolution_page(probes: Sequence[Probe], labels: Sequence[str]) -> Page:
    """Return the page of several checkpoints of one network, in the order given.

    Layers are matched with those of the last. Networks that have no layer in common are compared
    as a whole.

    Args:
        probes: Two or more.
        labels: What to call them; increasing numbers in them are taken for epochs.

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
        return make_overview_page(probes, labels, str(error))
    names = [sanitize(label) for label in labels]
    epochs, layers = _number_checkpoints(names), _list_layers(diffs)
    table = make_change_table(diffs[0].changes, f"{names[0]} → {names[-1]}")
    lines = (f"{epoch}: {name}" for epoch, name in zip(epochs, names, strict=True))
    key = Text(tuple(lines), collapsed_under="Which column is which checkpoint")
    sections = (
        *_draw_quality(probes, epochs),
        *_draw_heat_maps(_make_rows(diffs, epochs, layers)),
        *([Section("First and last", (table,))] if table.rows else []),
        Section("Columns", (key,)),
    )
    return Page(
        title=f"{names[0]} … {names[-1]}",
        summary=tuple(_summarize(probes, diffs[0], names)),
        facts=tuple(_list_facts(probes)),
        sections=sections,
        layers=tuple(layers),
        source=", ".join(names),
    )


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


def _make_rows(
    diffs: Sequence[ProbeDiff], epochs: Sequence[int], layers: Sequence[str]
) -> list[dict[str, Any]]:
    depths = {name: depth for depth, name in enumerate(layers, start=1)}
    return [
        {
            "epoch": epoch,
            "layer": sanitize(change.name),
            "depth": depths[sanitize(change.name)],
            **{metric: getattr(change.before, metric) for metric in CHARTED},
        }
        for epoch, diff in zip(epochs, diffs, strict=True)
        for change in diff.changes
        if sanitize(change.name) in depths
    ]


def _summarize(probes: Sequence[Probe], diff: ProbeDiff, labels: Sequence[str]) -> Iterator[str]:
    yield f"{len(probes)} checkpoints, from {labels[0]} to {labels[-1]}."
    yield from describe_quality_change(probes[0], probes[-1])
    known = [(p.quality, label) for p, label in zip(probes, labels, strict=True) if p.quality]
    highest, label = max(known, default=(0.0, ""))
    if highest > max(probes[0].quality or 0.0, probes[-1].quality or 0.0):
        yield f"Q was highest in {label} ({format_metric(highest)})."
    yield "From the first to the last:"
    yield from format_changes(diff, width=None).split("\n")
    yield Q_CAVEAT


def _list_facts(probes: Sequence[Probe]) -> Iterator[Fact]:
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
        for metric in CHARTED
    )
    yield Section("Layer by layer", (Text((CELLS,)), *panels, list_caveats(CHARTED)))
