"""A probe and what a check found → the page of a checkpoint: what is wrong, and every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from rankwise._table import Style
from rankwise._text import format_count, format_percent, sanitize
from rankwise.charts.axes import METRICS
from rankwise.charts.layers import describe_marks, draw_layers
from rankwise.charts.spectrum import draw_spectrum, list_sides, make_spectrum_rows
from rankwise.probes.chart_rows import make_rows, make_spectra
from rankwise.probes.explain import EXPLANATIONS
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.text import (
    find_bar_scale,
    format_metric,
    format_ranks,
    format_shape,
    format_skipped,
    list_names,
)
from rankwise.reports.findings import find_severities, list_findings
from rankwise.reports.network import PAPER, describe_paper_quality, list_network_facts
from rankwise.reports.page import (
    Cell,
    ChartPanel,
    Page,
    Section,
    Table,
    Text,
    capitalize,
    format_number_cell,
    make_columns,
)
from rankwise.weights.tensor import Status

if TYPE_CHECKING:
    from rankwise.charts.layers import LayerRow
    from rankwise.checks import Findings
    from rankwise.probes.results import Probe

MOST_SKIPPED = 500  # rows in the table of what was not probed
CHARTED = ("prominence", "stable_rank", "noise_fraction")
PAPER_METRICS = ("condition", "quality")
NO_FINDINGS = (
    "This page has no findings: these need all weights, not a saved probe or some of the layers. "
    "To find out whether something is wrong, run: rankwise check FILE"
)
NUMBERED = "Layers have the numbers of the table below; click one to select it in every chart."
PROMINENCE = (
    "How far the strongest direction of a layer stands out from its noise: at 0 it is as strong as "
    "noise gets, at 1 it is 2.7 times as strong. It tells a layer from random weights; it does not "
    "say how good the layer is."
)
SPECTRUM = (
    "The singular values of the selected layer, or of the layer of highest rank while none is "
    "selected. Blue dots exceed the noise threshold and were kept; diamonds are the same after "
    "shrinkage, from which s, κ and q are computed; grey dots are taken for noise. The dashed line "
    "is a random matrix of the same shape and norm."
)
THINNED = "Long spectra are thinned; values near the threshold and the ends are always drawn."
UNFOLDINGS = {"output": "by output channels, or the matrix itself", "input": "by input channels"}
NO_SPECTRA = (
    "This probe holds no singular values, so there is no spectrum to show. To see it, give the "
    "weights themselves, or save the probe with: rankwise probe PATH --spectra --json probe.json"
)
COLUMNS = (
    *("#", "layer", "s", "rank", "share", "noise", "prominence", "against random", "κ", "q"),
    *("kind", "shape", "parameters"),
)
HINTS = {
    "#": "The number of the layer in all charts.",
    "rank": "n'/n: " + EXPLANATIONS["rank"].formula,
    "share": EXPLANATIONS["rank_fraction"].meaning,
    "s": EXPLANATIONS["stable_rank"].formula,
    "κ": EXPLANATIONS["condition"].formula,
    "q": EXPLANATIONS["quality"].formula + "; * where rank 1 inflates it",
    "noise": EXPLANATIONS["noise_fraction"].meaning,
    "prominence": PROMINENCE,
    "against random": "Whether the weights differ from independent random numbers.",
}


def make_checkpoint_page(
    probe: Probe, random: Probe, *, source: str, findings: Findings | None = None
) -> Page:
    """Return the page of one checkpoint.

    Args:
        probe: Its layers.
        random: `probe.at_random()`.
        source: Where it comes from, for people.
        findings: What `rankwise.check` found; None where weights were not checked.

    Example:
        >>> import torch, rankwise
        >>> result = rankwise.probe({"fc.weight": torch.eye(40) + 9}, spectra=True)
        >>> page = make_checkpoint_page(result, result.at_random(), source="model.pt")
        >>> page.title, page.layers
        ('state dict', ('fc.weight',))
    """
    sections = [*_list_skipped(probe), *_list_notes(probe)]
    if probe.probed:
        severities = {} if findings is None else find_severities(findings)
        rows = make_rows(probe, random, severities)
        sections = [
            _draw_layers(rows, probe),
            _draw_spectra(probe, random),
            _make_table(probe),
            _describe_paper(rows, probe),
            *sections,
        ]
    names = [layer.name for layer in probe.probed]
    return Page(
        title=sanitize(PurePath(probe.source).name or probe.source or "A network"),
        findings=None if findings is None else list_findings(findings, names),
        summary=() if findings is not None else tuple(_summarize(probe)),
        facts=tuple(list_network_facts(probe)) if probe.probed else (),
        sections=tuple(sections),
        layers=tuple(map(sanitize, names)),
        source=sanitize(source),
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


def make_layer_cell(name: str, style: Style = "") -> Cell:
    """Return a cell that names a layer and selects it."""
    return Cell(sanitize(name), style, layer=sanitize(name))


def compute_mean(layers: Sequence[LayerMetrics], metric: str) -> float | None:
    """Return the mean of a metric over layers, None where there are none."""
    values = [getattr(layer, metric) for layer in layers]
    return sum(values) / len(values) if values else None


def describe_order(probe: Probe) -> str:
    """Return how the layers of a probe are ordered, as the end of a title."""
    return "in network order" if probe.order == "network" else "by name"


def _summarize(probe: Probe) -> Iterator[str]:
    """What a saved probe shows; of weights, findings say more."""
    if not probe.layers:
        yield "The model holds no tensors."
        return
    broken = [layer for layer in probe.layers if layer.status is Status.NOT_FINITE]
    if broken:
        verb = "holds" if len(broken) == 1 else "hold"
        count = format_count(len(broken), "layer")
        yield f"Warning: {count} {verb} NaN or Inf: {list_names(broken)}."
    flat = [layer for layer in probe.probed if layer.is_empty]
    if not probe.probed:
        yield "No layer was probed."
    elif flat:
        count = format_count(len(probe.probed), "layer")
        yield f"No direction stands out from noise in {len(flat)} of {count}: {list_names(flat)}."
    yield NO_FINDINGS


def _draw_layers(rows: list[LayerRow], probe: Probe) -> Section:
    # Probes that an earlier version saved have no prominence.
    has_prominence = any(row["prominence"] is not None for row in rows)
    charted = [metric for metric in CHARTED if metric != "prominence" or has_prominence]
    panels = _draw_metrics(rows, charted)
    text = Text((f"{NUMBERED} {describe_marks(rows)}",))
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


def _draw_spectra(probe: Probe, random: Probe) -> Section:
    spectra = make_spectra(probe, random)
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
    if len(rows) < sum(len(spectrum.values) for spectrum in spectra):
        paragraphs.append(THINNED)
    return Section("Singular values: kept and noise", (Text(tuple(paragraphs)), *panels))


def _make_table(probe: Probe) -> Section:
    most = find_bar_scale(probe.probed, "stable_rank")
    table = Table(
        make_columns(COLUMNS, left=("against random", "kind"), name_column=1),
        tuple(_make_row(number, layer, most) for number, layer in enumerate(probe.probed, 1)),
        f"The probed layers, {describe_order(probe)}; click a name to select the layer.",
        has_filter=True,
        name_column=1,
        hints=HINTS,
        name="layers",
    )
    return Section("All layers", (table,))


def _make_row(number: int, layer: LayerMetrics, most: float) -> tuple[Cell, ...]:
    style: Style = "dim" if layer.is_empty else ""
    s, q, size = layer.stable_rank or 0.0, layer.quality or 0.0, float(layer.parameters)
    fraction, noise = layer.rank_fraction, layer.noise_fraction
    return (
        Cell(str(number), "dim", float(number)),
        make_layer_cell(layer.name, style),
        Cell(format_metric(s), style, s, min(s / most, 1.0)),
        Cell(format_ranks(layer), style, layer.rank),
        Cell(format_percent(fraction), style, fraction, fraction),
        Cell(format_percent(noise), style, noise, noise),
        format_number_cell(layer.prominence, ".2f", style=style),
        Cell("–" if layer.verdict is None else layer.verdict.value, style, wraps=True),
        Cell(format_metric(layer.condition), style, layer.condition),
        Cell(format_metric(q) + "*" * layer.has_inflated_quality, style, q),
        Cell(sanitize(layer.kind), style),
        Cell(format_shape(layer.shape), style, size),
        Cell(f"{layer.parameters:,}", style, size),
    )


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
            Cell(sanitize(layer.name)),
            Cell(format_shape(layer.shape), value=float(layer.parameters)),
            Cell(str(layer.status), "bad" if layer.status is Status.NOT_FINITE else ""),
            Cell(sanitize(layer.reason)),
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
    lines += [f"{list_names(group)}: {sanitize(reason)}." for reason, group in groups.items()]
    if lines:
        yield Section("Notes", (Text(tuple(lines)),))
