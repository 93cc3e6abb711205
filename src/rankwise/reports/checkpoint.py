"""A probe and what a check found → the page of a checkpoint: what is wrong, and every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from rankwise._text import format_count, format_name, sanitize
from rankwise.charts.axes import METRICS
from rankwise.charts.blocks import MANY
from rankwise.charts.layers import describe_marks, describe_places, draw_layers
from rankwise.charts.spectrum import (
    compute_most,
    count_exact,
    draw_spectrum,
    list_sides,
    make_spectrum_rows,
)
from rankwise.probes.chart_rows import get_source, make_rows, make_spectra
from rankwise.probes.explain import EXPLANATIONS
from rankwise.probes.groups import Item, LayerGroup
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.summary_text import list_warnings
from rankwise.probes.text import (
    clean_reason,
    format_shape,
    format_skipped,
    list_names,
    name_item,
)
from rankwise.reports.findings import find_severities, list_findings
from rankwise.reports.layer_table import (
    PROMINENCE,
    count_hidden,
    describe_order,
    make_layer_section,
    select_items,
)
from rankwise.reports.network import PAPER, describe_paper_quality, list_network_facts
from rankwise.reports.page import (
    Cell,
    ChartPanel,
    Page,
    Section,
    Table,
    Text,
    capitalize,
    make_columns,
)
from rankwise.weights.tensor import Status

if TYPE_CHECKING:
    from rankwise.charts.layers import LayerRow
    from rankwise.checks import Findings
    from rankwise.probes.results import Probe

MOST_SKIPPED = 500  # rows in the table of what was not probed
MOST_NOTES = 50
CHARTED = ("prominence", "stable_rank", "noise_fraction")
MAPPED = ("prominence", "stable_rank", "rank_fraction", "noise_fraction")  # of many blocks
PAPER_METRICS = ("condition", "quality")
NO_FINDINGS = (
    "This page has no findings: these need all weights, not a saved probe or some of the layers. "
    "To find out whether something is wrong, run: rankwise check FILE"
)
NUMBERED = "Layers have the numbers of the table below; click one to select it in every chart."
SPECTRUM = (
    "The singular values of the selected layer, or of the layer of highest rank while none is "
    "selected. Blue dots exceed the noise threshold and were kept; diamonds are the same after "
    "shrinkage, from which s, κ and q are computed; grey dots are taken for noise. The dashed line "
    "is a random matrix of the same shape and norm."
)
EXPERT = "Of a group of experts, the values are those of the one whose s is in the middle."
THINNED = (
    "Long spectra are thinned: the page has {most} values of each at most, with four digits. The "
    "largest {exact} kept values, those near the threshold and the ends are always among them; "
    "rankwise probe PATH --spectra --json FILE writes all."
)
UNFOLDINGS = {"output": "by output channels, or the matrix itself", "input": "by input channels"}
NO_SPECTRA = (
    "This probe holds no singular values, so there is no spectrum to show. To see it, give the "
    "weights themselves, or save the probe with: rankwise probe PATH --spectra --json probe.json"
)


def make_checkpoint_page(
    probe: Probe, random: Probe | None = None, *, source: str, findings: Findings | None = None
) -> Page:
    """Return the page of one checkpoint.

    Args:
        probe: Its layers.
        random: `probe.at_random()`; by default that of the layers which the page shows.
        source: Where it comes from, for people.
        findings: What `rankwise.check` found; None where weights were not checked.

    Example:
        >>> import torch, rankwise
        >>> result = rankwise.probe({"fc.weight": torch.eye(40) + 9}, spectra=True)
        >>> page = make_checkpoint_page(result, source="model.pt")
        >>> page.title, page.layers
        ('state dict', ('fc.weight',))
    """
    sections = [*_list_skipped(probe), *_list_notes(probe)]
    severities = {} if findings is None else find_severities(findings)
    items, hidden = select_items(probe, severities)
    if items:
        if random is None:
            random = replace(probe, layers=tuple(map(get_source, items))).at_random()
        rows = make_rows(items, random, severities)
        sections = [
            _draw_layers(rows, probe, hidden),
            _draw_spectra(items, random),
            make_layer_section(items, probe, hidden, severities),
            _describe_paper(rows, probe),
            *sections,
        ]
    return Page(
        title=format_name(PurePath(probe.source).name or probe.source or "A network"),
        findings=None if findings is None else list_findings(findings, [i.name for i in items]),
        summary=() if findings is not None else tuple(_summarize(probe)),
        facts=tuple(list_network_facts(probe)) if probe.probed else (),
        sections=tuple(sections),
        layers=tuple(map(name_item, items)),
        source=format_name(source),
    )


def describe_metric(metric: str) -> str:
    """Return how to read a chart of a metric."""
    if metric == "prominence":
        return PROMINENCE
    entry = EXPLANATIONS[metric]
    return f"{entry.meaning} From {entry.range}. {entry.reading}"


def list_caveats(metrics: Sequence[str]) -> Text:
    """Return where metrics mislead, collapsed."""
    entries = [EXPLANATIONS[metric] for metric in metrics if metric in EXPLANATIONS]
    lines = (f"{entry.symbol}: {' '.join(entry.caveats)}" for entry in entries if entry.caveats)
    return Text(tuple(lines), collapsed_under="Where these metrics mislead")


def compute_mean(layers: Sequence[LayerMetrics], metric: str) -> float | None:
    """Return the mean of a metric over layers, None where there are none."""
    values = [getattr(layer, metric) for layer in layers]
    return sum(values) / len(values) if values else None


def _summarize(probe: Probe) -> Iterator[str]:
    """What a saved probe shows; of weights, findings say more."""
    if not probe.layers:
        yield "The model holds no tensors."
        return
    yield from list_warnings(probe.layers)
    flat = [layer for layer in probe.probed if layer.is_empty]
    if not probe.probed:
        yield "No layer was probed."
    elif flat:
        count = format_count(len(probe.probed), "layer")
        yield f"No direction stands out from noise in {len(flat)} of {count}: {list_names(flat)}."
    yield NO_FINDINGS


def _draw_layers(rows: list[LayerRow], probe: Probe, hidden: int) -> Section:
    # Probes that an earlier version saved have no prominence.
    has_prominence = any(row["prominence"] is not None for row in rows)
    chosen = MAPPED if len(rows) > MANY else CHARTED
    charted = [metric for metric in chosen if metric != "prominence" or has_prominence]
    panels = _draw_metrics(rows, charted)
    texts = (NUMBERED, describe_places(rows), describe_marks(rows), count_hidden(hidden))
    text = Text((" ".join(filter(None, texts)),))
    title = f"Layers {describe_order(probe)}"
    return Section(title, (text, *panels, list_caveats(charted)))


def _describe_paper(rows: list[LayerRow], probe: Probe) -> Section:
    text = Text((PAPER, describe_paper_quality(probe)))
    return Section("The paper's figures", (text, *_draw_metrics(rows, PAPER_METRICS)))


def _draw_metrics(rows: list[LayerRow], metrics: Sequence[str]) -> Iterator[ChartPanel]:
    for place, metric in enumerate(metrics):
        yield ChartPanel(
            capitalize(METRICS[metric][0]),
            draw_layers(rows, metric),
            describe_metric(metric),
            wide=place == 0 and len(metrics) % 2 == 1,  # the others come in pairs
        )


def _draw_spectra(items: Sequence[Item], random: Probe) -> Section:
    spectra = make_spectra(items, random)
    rows = make_spectrum_rows(spectra)
    sides = list_sides(rows)
    panels = (
        ChartPanel(
            f"Singular values, {UNFOLDINGS[side]}" if len(sides) > 1 else "Singular values",
            draw_spectrum(rows, side),
            wide=len(sides) == 1,
        )
        for side in sides
    )
    paragraphs = [SPECTRUM] if rows else [NO_SPECTRA]
    if rows and any(isinstance(item, LayerGroup) for item in items):
        paragraphs.append(EXPERT)
    if len(rows) < sum(len(spectrum.values) for spectrum in spectra):
        most = compute_most(len(spectra))
        paragraphs.append(THINNED.format(most=most, exact=count_exact(most)))
    return Section("Singular values: kept and noise", (Text(tuple(paragraphs)), *panels))


def _list_skipped(probe: Probe) -> Iterator[Section]:
    skipped = [layer for layer in probe.layers if not layer.is_probed]
    if not skipped:
        return
    # Biases and norm scales come last: they are many, and nobody misses them.
    skipped.sort(key=lambda layer: layer.status is Status.VECTOR)
    shown = skipped[:MOST_SKIPPED]
    caption = "Every tensor without metrics, and why."
    if len(shown) < len(skipped):
        caption = f"The first {len(shown)} of {len(skipped)} tensors without metrics, and why."
    rows = tuple(
        (
            Cell(format_name(layer.name)),
            Cell(format_shape(layer.shape), value=float(layer.parameters)),
            Cell(str(layer.status), "bad" if layer.status is Status.NOT_FINITE else ""),
            Cell(clean_reason(layer)),
        )
        for layer in shown
    )
    columns = make_columns(("tensor", "shape", "status", "why"), left=("status", "why"))
    lines = format_skipped(probe.layers, width=None).split("\n")
    text = Text(tuple(line.strip() for line in lines))
    yield Section("What was not probed, and why", (text, Table(columns, rows, caption, True)))


def _list_notes(probe: Probe) -> Iterator[Section]:
    lines = [sanitize(note) for note in probe.notes]
    groups: dict[str, list[LayerMetrics]] = {}
    for layer in probe.probed:
        if layer.reason:
            groups.setdefault(layer.reason, []).append(layer)
    lines += [f"{list_names(group)}: {clean_reason(group[0])}." for group in groups.values()]
    if len(lines) > MOST_NOTES:
        hidden = len(lines) - MOST_NOTES
        lines = [*lines[:MOST_NOTES], f"… and {format_count(hidden, 'more note')}."]
    if lines:
        yield Section("Notes", (Text(tuple(lines)),))
