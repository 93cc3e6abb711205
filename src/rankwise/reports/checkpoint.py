"""A probe → the page of a checkpoint: what it has learned, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from rankwise._table import Style
from rankwise._text import format_count, format_percent, sanitize
from rankwise.charts.axes import METRICS
from rankwise.charts.layers import LAYER_METRICS, draw_layers
from rankwise.charts.spectrum import draw_spectrum, list_sides, make_spectrum_rows
from rankwise.probes.chart_rows import make_rows, make_spectra
from rankwise.probes.explain import EXPLANATIONS
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.summary_text import format_summary
from rankwise.probes.tensor import Status
from rankwise.probes.text import (
    MAX_QUALITY,
    find_bar_scale,
    format_metric,
    format_ranks,
    format_shape,
    format_skipped,
)
from rankwise.reports.page import (
    Cell,
    ChartPanel,
    Fact,
    Page,
    Section,
    Table,
    Text,
    capitalize,
    make_columns,
)

if TYPE_CHECKING:
    from rankwise.probes.results import Probe

MOST_SKIPPED = 500  # rows in the table of what was not probed
Q_CAVEAT = (
    "Q compares one network over time or under other settings; it does not rank different "
    "networks by accuracy, so don't choose a model by it."
)
MARKS = (
    "Each mark is a layer, the first on the left. A grey stroke shows random weights of the same "
    "shape: the further a layer is from its stroke, the more it has learned. A triangle is a layer "
    "with rank 1 in an unfolding; its q is high by definition, not by learning, and is drawn at "
    "the upper edge where it exceeds the others. Click a layer to highlight it in every chart."
)
SPECTRUM = (
    "The singular values of the selected layer, or of the layer of highest rank while none is "
    "selected. Blue dots exceed the noise threshold and were kept; diamonds are the same after "
    "shrinkage, from which s, κ and q are computed; grey dots are taken for noise. The dashed line "
    "is a random matrix of the same shape and norm: a layer that has learned nothing follows it."
)
THINNED = "Long spectra are thinned; values near the threshold and the ends are always drawn."
UNFOLDINGS = {"output": "by output channels, or the matrix itself", "input": "by input channels"}
NO_SPECTRA = (
    "This probe holds no singular values, so there is no spectrum to show. To see it, give the "
    "weights themselves, or save the probe with: rankwise probe PATH --spectra --json probe.json"
)
COLUMNS = ("layer", "kind", "shape", "parameters", "rank", "share", "s", "κ", "q", "noise")
HINTS = {
    "rank": "n'/n: " + EXPLANATIONS["rank"].formula,
    "share": EXPLANATIONS["rank_fraction"].meaning,
    "s": EXPLANATIONS["stable_rank"].formula,
    "κ": EXPLANATIONS["condition"].formula,
    "q": EXPLANATIONS["quality"].formula + "; * where rank 1 inflates it",
    "noise": EXPLANATIONS["noise_fraction"].meaning,
    "random s": "The stable rank of random weights of the same shape.",
}


def make_checkpoint_page(probe: Probe, random: Probe, *, source: str) -> Page:
    """Return the page of one checkpoint; `random` is `probe.at_random()`.

    Example:
        >>> import torch, rankwise
        >>> result = rankwise.probe({"fc.weight": torch.eye(40) + 9}, spectra=True)
        >>> page = make_checkpoint_page(result, result.at_random(), source="model.pt")
        >>> page.title, page.layers
        ('state dict', ('fc.weight',))
    """
    sections = [*_list_skipped(probe), *_list_notes(probe)]
    if probe.probed:
        sections = [
            _draw_layers(probe, random),
            _draw_spectra(probe, random),
            _make_table(probe, random),
            *sections,
        ]
    return Page(
        title=sanitize(PurePath(probe.source).name or probe.source or "A network"),
        summary=tuple(_summarize(probe, random)),
        facts=tuple(_list_facts(probe, random)),
        sections=tuple(sections),
        layers=tuple(sanitize(layer.name) for layer in probe.probed),
        source=sanitize(source),
    )


def describe_metric(metric: str) -> str:
    """Return how to read a chart of a metric."""
    entry = EXPLANATIONS[metric]
    return f"{entry.meaning} From {entry.range}. {entry.reading}"


def list_caveats(metrics: Sequence[str]) -> Text:
    """Return where metrics mislead, collapsed."""
    entries = [EXPLANATIONS[metric] for metric in metrics]
    lines = (f"{entry.symbol}: {' '.join(entry.caveats)}" for entry in entries if entry.caveats)
    return Text(tuple(lines), collapsed_under="Where these metrics mislead")


def make_layer_cell(name: str, style: Style = "") -> Cell:
    """Return a cell that names a layer and selects it."""
    return Cell(sanitize(name), style, layer=sanitize(name))


def compute_mean(layers: Sequence[LayerMetrics], metric: str) -> float | None:
    """Return the mean of a metric over layers, None where there are none."""
    values = [getattr(layer, metric) for layer in layers]
    return sum(values) / len(values) if values else None


def _summarize(probe: Probe, random: Probe) -> Iterator[str]:
    yield from format_summary(probe.layers, probe.figures, width=None).split("\n")
    if not probe.probed:
        return
    above = sum(
        layer.is_probed and (layer.rank or 0.0) > (twin.rank or 0.0)
        for layer, twin in zip(probe, random, strict=True)
    )
    yield (
        f"{above} of {format_count(len(probe.probed), 'layer')} have a higher rank than random "
        "weights of the same shape (one draw)."
    )
    structured = [
        layer for layer in probe.probed if not layer.is_empty and not layer.has_inflated_quality
    ]
    if len(structured) >= 2:
        highest = max(structured, key=lambda layer: layer.quality or 0.0)
        lowest = min(structured, key=lambda layer: layer.quality or 0.0)
        start = (
            "Ignoring rank-1 layers, the"
            if any(layer.has_inflated_quality for layer in probe.probed)
            else "The"
        )
        yield (
            f"{start} highest q is {format_metric(highest.quality)} ({sanitize(highest.name)}); "
            "the lowest of a layer with structure is "
            f"{format_metric(lowest.quality)} ({sanitize(lowest.name)})."
        )
    yield Q_CAVEAT


def _list_facts(probe: Probe, random: Probe) -> Iterator[Fact]:
    structured = sum(not layer.is_empty for layer in probe.probed)
    at_random = "" if random.quality is None else f"; random: {format_metric(random.quality)}"
    yield Fact(
        "Network quality Q", format_metric(probe.quality), f"of {MAX_QUALITY:.3f}{at_random}"
    )
    yield Fact("Layers probed", str(len(probe.probed)), f"{structured} with structure")
    yield Fact("Parameters", f"{probe.parameters:,}")
    yield Fact("Coverage", format_percent(probe.coverage), "of parameters are in probed layers")
    noise = compute_mean(probe.probed, "noise_fraction")
    yield Fact("Noise share", format_percent(noise), "mean over layers")


def _draw_layers(probe: Probe, random: Probe) -> Section:
    rows = make_rows(probe, random)
    panels = (
        ChartPanel(
            capitalize(METRICS[metric][0]),
            draw_layers(rows, metric),
            describe_metric(metric),
            wide=place == 0,  # an odd number: the others come in pairs
        )
        for place, metric in enumerate(LAYER_METRICS)
    )
    return Section(
        "Layers in network order", (Text((MARKS,)), *panels, list_caveats(LAYER_METRICS))
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


def _make_table(probe: Probe, random: Probe) -> Section:
    most_s, most_q = (
        find_bar_scale(probe.probed, "stable_rank"),
        find_bar_scale(probe.probed, "quality"),
    )
    rows = tuple(
        _make_row(layer, twin, most_s, most_q)
        for layer, twin in zip(probe, random, strict=True)
        if layer.is_probed
    )
    table = Table(
        make_columns((*COLUMNS, "random s"), left=("kind",)),
        rows,
        "The probed layers, in network order; click a name to select the layer.",
        has_filter=True,
        hints=HINTS,
        name="layers",
    )
    return Section("All layers", (table,))


def _make_row(
    layer: LayerMetrics, twin: LayerMetrics, most_s: float, most_q: float
) -> tuple[Cell, ...]:
    style: Style = "dim" if layer.is_empty else ""
    s, q, size = layer.stable_rank or 0.0, layer.quality or 0.0, float(layer.parameters)
    fraction, noise = layer.rank_fraction, layer.noise_fraction
    return (
        make_layer_cell(layer.name, style),
        Cell(sanitize(layer.kind), style),
        Cell(format_shape(layer.shape), style, size),
        Cell(f"{layer.parameters:,}", style, size),
        Cell(format_ranks(layer), style, layer.rank),
        Cell(format_percent(fraction), style, fraction, fraction),
        Cell(format_metric(s), style, s, min(s / most_s, 1.0)),
        Cell(format_metric(layer.condition), style, layer.condition),
        Cell(format_metric(q) + "*" * layer.has_inflated_quality, style, q, min(q / most_q, 1.0)),
        Cell(format_percent(noise), style, noise, noise),
        Cell(format_metric(twin.stable_rank), "dim", twin.stable_rank),
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
    noted = [layer for layer in probe.probed if layer.reason][:MOST_SKIPPED]
    lines = [sanitize(note) for note in probe.notes]
    lines += [f"{sanitize(layer.name)}: {sanitize(layer.reason)}." for layer in noted]
    if lines:
        yield Section("Notes", (Text(tuple(lines)),))
