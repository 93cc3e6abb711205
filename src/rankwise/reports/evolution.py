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
from rankwise.reports.changes import change_table, q_sentences, wholes_page
from rankwise.reports.checkpoint import USE_OF_Q, caveats, reading
from rankwise.reports.page import Fact, Page, Picture, Section, Words

if TYPE_CHECKING:
    from rankwise.probes.diff import ProbeDiff
    from rankwise.probes.results import Probe

__all__ = ["evolution_page"]

STEP = "checkpoint"
SHOWN = ("quality", "stable_rank", "condition", "noise_fraction")
CELLS = (
    "Each row is a layer, the first on top; each column a checkpoint. A grey cell is a layer that "
    "was not probed there."
)


def evolution_page(probes: Sequence[Probe], labels: Sequence[str]) -> Page:
    """The page of several checkpoints of one network, in the order given.

    Layers are matched with those of the last. Networks that have no layer in common are compared
    as wholes.

    Args:
        probes: Two or more.
        labels: What to call them; numbers in them that grow are taken for epochs.

    Example:
        >>> import torch, rankwise
        >>> found = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> page = evolution_page([found] * 3, ["e1.pt", "e2.pt", "e9.pt"])
        >>> page.verdict[0]
        '3 checkpoints, from e1.pt to e9.pt.'
    """
    last = probes[-1]
    try:
        diffs = [probe.diff(last) for probe in probes]
    except ProbeMismatchError as error:
        return wholes_page(probes, labels, str(error))
    named = [sanitize(label) for label in labels]
    epochs = _epochs(named)
    sections = (
        *_quality(probes, epochs),
        *_heat_maps(_rows(diffs, epochs)),
        *_first_and_last(diffs[0], f"{named[0]} → {named[-1]}"),
        _columns(epochs, named),
    )
    return Page(
        title=f"{named[0]} … {named[-1]}",
        verdict=tuple(_verdict(probes, diffs[0], named)),
        facts=tuple(_facts(probes)),
        sections=sections,
        layers=tuple(_names(diffs)),
        source=", ".join(named),
    )


def _epochs(labels: Sequence[str]) -> list[int]:
    """The numbers in the labels that grow from one to the next, the last such; or 1, 2, 3, …."""
    numbers = [[int(digits) for digits in re.findall(r"[0-9]{1,9}", label)] for label in labels]
    if len({len(found) for found in numbers}) == 1:
        for column in reversed(list(zip(*numbers, strict=True))):
            if all(before < after for before, after in pairwise(column)):
                return list(column)
    return list(range(1, len(labels) + 1))


def _names(diffs: Sequence[ProbeDiff]) -> list[str]:
    """The layers that were probed in one of the checkpoints or more, in the last one's order."""
    last = diffs[-1].changes
    probed = {c.name for diff in diffs for c in diff.changes if c.before.is_probed}
    return [sanitize(change.name) for change in last if change.name in probed]


def _rows(diffs: Sequence[ProbeDiff], epochs: Sequence[int]) -> list[dict[str, Any]]:
    depths = {name: depth for depth, name in enumerate(_names(diffs), start=1)}
    return [
        {
            "epoch": epoch,
            "layer": sanitize(change.name),
            "depth": depths[sanitize(change.name)],
            **{metric: getattr(change.before, metric) for metric in SHOWN},
        }
        for epoch, diff in zip(epochs, diffs, strict=True)
        for change in diff.changes
        if sanitize(change.name) in depths
    ]


def _verdict(probes: Sequence[Probe], diff: ProbeDiff, labels: Sequence[str]) -> Iterator[str]:
    yield f"{len(probes)} checkpoints, from {labels[0]} to {labels[-1]}."
    yield from q_sentences(probes[0], probes[-1])
    known = [(p.quality, label) for p, label in zip(probes, labels, strict=True) if p.quality]
    most = max(known, default=(0.0, ""))
    if most[0] > max(probes[0].quality or 0.0, probes[-1].quality or 0.0):
        yield f"Q was highest in {most[1]} ({format_metric(most[0])})."
    yield "From the first to the last:"
    yield from format_changes(diff, width=None).split("\n")
    yield USE_OF_Q


def _facts(probes: Sequence[Probe]) -> Iterator[Fact]:
    first, last = probes[0], probes[-1]
    yield Fact("Checkpoints", str(len(probes)))
    yield Fact(
        "Network quality Q", format_metric(last.quality), f"first: {format_metric(first.quality)}"
    )
    held = [sum(not layer.is_empty for layer in probe.probed) for probe in (first, last)]
    remark = f"of {len(last.probed)} probed; first: {held[0]}"
    yield Fact("Layers with structure", str(held[1]), remark)


def _quality(probes: Sequence[Probe], epochs: Sequence[int]) -> Iterator[Section]:
    rows = [
        {"epoch": epoch, "quality": probe.quality}
        for epoch, probe in zip(epochs, probes, strict=True)
        if probe.quality is not None
    ]
    if rows:
        words = reading("network_quality")
        picture = Picture("Network quality Q", draw_quality(rows, step=STEP), words, wide=True)
        yield Section("The network as a whole", (picture,))


def _first_and_last(diff: ProbeDiff, caption: str) -> Iterator[Section]:
    table = change_table(diff.changes, caption)
    if table.rows:
        yield Section("First and last", (table,))


def _heat_maps(rows: list[dict[str, Any]]) -> Iterator[Section]:
    if not rows:
        return
    pictures = (
        Picture(
            METRICS[metric][0].capitalize(), draw_heat_map(rows, metric, step=STEP), reading(metric)
        )
        for metric in SHOWN
    )
    yield Section("Layer by layer", (Words((CELLS,)), *pictures, caveats(SHOWN)))


def _columns(epochs: Sequence[int], labels: Sequence[str]) -> Section:
    lines = (f"{epoch}: {label}" for epoch, label in zip(epochs, labels, strict=True))
    return Section("Columns", (Words(tuple(lines), summary="Which column is which checkpoint"),))
