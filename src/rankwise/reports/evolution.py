"""Three or more probes of one network → the page of how it changed between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rankwise._text import sanitize
from rankwise.charts.axes import METRICS
from rankwise.charts.evolution import draw_heat_map
from rankwise.charts.runs import draw_figure
from rankwise.errors import ProbeMismatchError
from rankwise.probes.diff_text import format_changes
from rankwise.reports.checkpoint import (
    PAPER_METRICS,
    describe_metric,
    list_caveats,
)
from rankwise.reports.diff import make_change_table, make_overview_page
from rankwise.reports.layer_table import describe_order
from rankwise.reports.network import PAPER, list_changed_facts
from rankwise.reports.page import ChartPanel, Fact, Page, Section, Text, capitalize

if TYPE_CHECKING:
    from rankwise.probes.diff import ProbeDiff
    from rankwise.probes.results import Probe

STEP = "checkpoint"
HEAT_MAPS = ("stable_rank", "noise_fraction")
# The figures of the network that are drawn: title, axis, and how to read it.
FIGURES = {
    "stable_rank_by_width": (
        "Stable rank S, weighted by width",
        "S",
        "Σ n·s / Σ n over all layers. It grows with training time, also while a network overfits.",
    ),
    "total_rank": (
        "Total rank",
        "total rank",
        "Directions above the noise, over all layers. It grows with training time as well.",
    ),
}
CELLS = (
    "Each row is a layer, each column a checkpoint. A grey cell is a layer that was not probed "
    "there."
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
        return make_overview_page(probes, labels, str(error))
    names = [sanitize(label) for label in labels]
    epochs, layers = _number_checkpoints(names), _list_layers(diffs)
    table = make_change_table(diffs[0].changes, f"{names[0]} → {names[-1]}")
    lines = (f"{epoch}: {name}" for epoch, name in zip(epochs, names, strict=True))
    key = Text(tuple(lines), collapsed_under="Which column is which checkpoint")
    rows = _make_epoch_rows(diffs, epochs, layers)
    figures = _make_figure_rows(probes, epochs)
    sections = (
        *_draw_network(figures),
        *_draw_heat_maps(rows, describe_order(probes[-1])),
        *([Section("First and last", (table,))] if table.rows else []),
        *_describe_paper(rows, figures),
        Section("Columns", (key,)),
    )
    facts = list_changed_facts(probes[0], probes[-1], since="first")
    return Page(
        title=f"{names[0]} … {names[-1]}",
        summary=tuple(_summarize(probes, diffs[0], names)),
        facts=(Fact("Checkpoints", str(len(probes))), *facts),
        sections=sections,
        layers=tuple(layers),
        source=", ".join(names),
    )


def _summarize(probes: Sequence[Probe], diff: ProbeDiff, labels: Sequence[str]) -> Iterator[str]:
    yield f"{len(probes)} checkpoints, from {labels[0]} to {labels[-1]}."
    yield "From the first to the last:"
    yield from format_changes(diff, width=None).split("\n")


def _make_figure_rows(probes: Sequence[Probe], epochs: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "epoch": epoch,
            "quality": probe.figures.quality,
            **{name: getattr(probe.figures, name) for name in FIGURES},
        }
        for epoch, probe in zip(epochs, probes, strict=True)
    ]


def _draw_network(rows: list[dict[str, Any]]) -> Iterator[Section]:
    panels = tuple(
        ChartPanel(title, draw_figure(rows, name, title=axis, step=STEP), caption)
        for name, (title, axis, caption) in FIGURES.items()
        if any(row[name] is not None for row in rows)
    )
    if panels:
        yield Section("The network as a whole", panels)


def _draw_heat_maps(rows: list[dict[str, Any]], order: str) -> Iterator[Section]:
    if rows:
        panels = _draw_metrics(rows, HEAT_MAPS)
        yield Section(f"Layers {order}", (Text((CELLS,)), *panels, list_caveats(HEAT_MAPS)))


def _describe_paper(rows: list[dict[str, Any]], figures: list[dict[str, Any]]) -> Iterator[Section]:
    if rows:
        chart = draw_figure(figures, "quality", title="Q", step=STEP)
        panels = (ChartPanel("Q", chart, wide=True), *_draw_metrics(rows, PAPER_METRICS))
        yield Section("The paper's figures", (Text((PAPER,)), *panels))


def _draw_metrics(rows: list[dict[str, Any]], metrics: Sequence[str]) -> Iterator[ChartPanel]:
    for metric in metrics:
        chart = draw_heat_map(rows, metric, step=STEP)
        yield ChartPanel(capitalize(METRICS[metric][0]), chart, describe_metric(metric))


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
            **{metric: getattr(change.before, metric) for metric in (*HEAT_MAPS, *PAPER_METRICS)},
        }
        for epoch, diff in zip(epochs, diffs, strict=True)
        for change in diff.changes
        if sanitize(change.name) in depths
    ]
