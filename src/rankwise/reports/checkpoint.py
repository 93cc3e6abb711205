"""A probe → the page of a checkpoint: what it has learned, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from rankwise._text import format_count, format_percent, sanitize
from rankwise.charts.axes import METRICS
from rankwise.charts.layers import CROWDED, LAYER_METRICS, draw_layers
from rankwise.charts.spectrum import draw_spectrum, list_sides, make_spectrum_rows
from rankwise.probes.chart_rows import make_rows, make_spectra
from rankwise.probes.explain import EXPLANATIONS
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.tensor import Status
from rankwise.probes.text import (
    MAX_QUALITY,
    find_bar_scale,
    format_metric,
    format_ranks,
    format_shape,
    format_skipped,
    format_summary,
)
from rankwise.reports.page import Cell, Fact, Page, Picture, Section, Table, Words

if TYPE_CHECKING:
    from rankwise.probes.results import Probe

__all__ = ["caveats", "checkpoint_page", "layer_name", "mean", "reading", "title_of"]

MOST_SKIPPED = 500  # rows in the table of what was not probed
USE_OF_Q = (
    "Q is for one network over time or under other settings; it does not rank different "
    "networks by accuracy, so don't choose a model by it."
)
MARKS = (
    "Each mark is a layer, the first on the left. A grey stroke is what random weights of the "
    "same shape would show: the further a layer is from its stroke, the more it has learned that "
    "noise can't show. A triangle is a layer that is rank 1 in an unfolding; there q is high by "
    "definition, not by learning, and where it is beyond the others it stands at the figure's "
    "upper edge. Choose a layer by a click to mark it in every figure."
)
SPECTRUM = (
    "The singular values of the chosen layer, or of the layer of highest rank while none is "
    "chosen. Blue dots rise above the noise threshold and were kept; diamonds are the same with "
    "the noise taken off, from which s, κ and q are computed; grey dots are taken for noise. The "
    "dashed line is a random matrix of the same shape and norm: a layer that has learned nothing "
    "follows it."
)
THINNED = "Of long spectra some values are drawn, those beside the threshold and the ends always."
UNFOLDINGS = {"output": "by output channels, or the matrix itself", "input": "by input channels"}
NO_SPECTRA = (
    "This probe holds no singular values, so there is no spectrum to show. To see it, give the "
    "weights themselves, or save the probe with: rankwise probe PATH --spectra --json probe.json"
)
HINTS = {
    "rank": "n'/n: " + EXPLANATIONS["rank"].formula,
    "share": EXPLANATIONS["rank_fraction"].meaning,
    "s": EXPLANATIONS["stable_rank"].formula,
    "κ": EXPLANATIONS["condition"].formula,
    "q": EXPLANATIONS["quality"].formula + "; * where rank 1 lifts it",
    "noise": EXPLANATIONS["noise_fraction"].meaning,
    "s at random": "The stable rank that random weights of the same shape show.",
}


def checkpoint_page(probe: Probe, random: Probe, *, source: str) -> Page:
    """The page of one checkpoint.

    Args:
        probe: What was found; with spectra, so that they can be shown.
        random: The same with random weights, as `probe.at_random()` gives it.
        source: What the page was made of.

    Example:
        >>> import torch, rankwise
        >>> found = rankwise.probe({"fc.weight": torch.eye(40) + 9}, spectra=True)
        >>> page = checkpoint_page(found, found.at_random(), source="model.pt")
        >>> page.verdict[1]
        'Network quality Q = 1.571 (of at most 1.571); 100 % of parameters were probed.'
    """
    sections = [
        *_figures(probe, random),
        *_spectra(probe, random),
        *_layers(probe, random),
        *_skipped(probe),
        *_notes(probe),
    ]
    return Page(
        title=title_of(probe),
        verdict=tuple(_verdict(probe, random)),
        facts=tuple(_facts(probe, random)),
        sections=tuple(sections),
        layers=tuple(sanitize(layer.name) for layer in probe.probed),
        source=sanitize(source),
    )


def title_of(probe: Probe) -> str:
    """What to call a probe: the last part of its path, or what it was probed from."""
    return sanitize(PurePath(probe.source).name or probe.source or "A network")


def reading(metric: str) -> str:
    """How to read a figure of a metric."""
    entry = EXPLANATIONS[metric]
    return f"{entry.meaning} From {entry.range}. Better: {_decapitalised(entry.good)}"


def caveats(metrics: Sequence[str]) -> Words:
    """Where metrics mislead, folded away."""
    entries = [EXPLANATIONS[metric] for metric in metrics]
    lines = (f"{entry.symbol}: {' '.join(entry.caveats)}" for entry in entries if entry.caveats)
    return Words(tuple(lines), summary="Where these figures mislead")


def layer_name(name: str, tone: str = "") -> Cell:
    """A cell that names a layer and chooses it."""
    return Cell(sanitize(name), layer=sanitize(name), tone=tone)


def mean(layers: Sequence[LayerMetrics], metric: str) -> float | None:
    """The mean of a metric over layers, None where there are none."""
    values = [getattr(layer, metric) for layer in layers]
    return sum(values) / len(values) if values else None


def _decapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]


def _verdict(probe: Probe, random: Probe) -> Iterator[str]:
    yield from format_summary(probe.layers, probe.quality, probe.coverage, width=None).split("\n")
    if not probe.probed:
        return
    apart = sum(_told_apart(layer, drawn) for layer, drawn in zip(probe, random, strict=True))
    yield (
        f"Against random weights of the same shapes (one draw), {apart} of "
        f"{format_count(len(probe.probed), 'layer')} can be told apart."
    )
    yield from _extremes(probe)
    yield USE_OF_Q


def _told_apart(layer: LayerMetrics, drawn: LayerMetrics) -> bool:
    """Whether a layer has more directions above the noise than random weights have."""
    return layer.is_probed and (layer.rank or 0.0) > (drawn.rank or 0.0)


def _extremes(probe: Probe) -> Iterator[str]:
    """The strongest and the weakest layer, among those whose q was not lifted by definition."""
    held = [
        layer for layer in probe.probed if not layer.is_empty and not layer.has_inflated_quality
    ]
    if len(held) < 2:
        return
    most = max(held, key=lambda layer: layer.quality or 0.0)
    least = min(held, key=lambda layer: layer.quality or 0.0)
    aside = (
        " beside those that rank 1 lifts"
        if any(layer.has_inflated_quality for layer in probe.probed)
        else ""
    )
    yield (
        f"By q{aside}, the strongest layer is {sanitize(most.name)} "
        f"({format_metric(most.quality)}) and the weakest that holds structure is "
        f"{sanitize(least.name)} ({format_metric(least.quality)})."
    )


def _facts(probe: Probe, random: Probe) -> Iterator[Fact]:
    held = sum(not layer.is_empty for layer in probe.probed)
    at_random = f"; {format_metric(random.quality)} at random" if random.quality is not None else ""
    yield Fact(
        "Network quality Q", format_metric(probe.quality), f"of {MAX_QUALITY:.3f}{at_random}"
    )
    yield Fact("Layers probed", str(len(probe.probed)), f"{held} with structure")
    yield Fact("Parameters", f"{probe.parameters:,}")
    yield Fact("Coverage", format_percent(probe.coverage), "of parameters are in probed layers")
    noise = mean(probe.probed, "noise_fraction")
    yield Fact("Noise share", format_percent(noise), "mean over layers")


def _figures(probe: Probe, random: Probe) -> Iterator[Section]:
    if not probe.probed:
        return
    rows = make_rows(probe, random)
    crowded = len(rows) >= CROWDED
    pictures = (
        Picture(
            _titled(METRICS[metric][0]),
            draw_layers(rows, metric),
            reading(metric),
            wide=crowded or place == 0,  # an odd number of them: the others stand in pairs
        )
        for place, metric in enumerate(LAYER_METRICS)
    )
    yield Section("Layers in network order", (Words((MARKS,)), *pictures, caveats(LAYER_METRICS)))


def _titled(text: str) -> str:
    return text[:1].upper() + text[1:]


def _spectra(probe: Probe, random: Probe) -> Iterator[Section]:
    if not probe.probed:
        return
    rows = make_spectrum_rows(make_spectra(probe, random))
    found = list_sides(rows)
    pictures = (
        Picture(
            f"Singular values, {UNFOLDINGS[side]}" if len(found) > 1 else "Singular values",
            draw_spectrum(rows, side),
            wide=len(found) == 1,
        )
        for side in found
    )
    words = [SPECTRUM] if rows else [NO_SPECTRA]
    if 0 < len(rows) < _values(probe):
        words.append(THINNED)
    yield Section("What was kept and what is noise", (Words(tuple(words)), *pictures))


def _values(probe: Probe) -> int:
    """How many singular values a probe holds."""
    modes = (mode for layer in probe.probed for mode in layer.modes)
    return sum(len(mode.spectrum.values) for mode in modes if mode.spectrum)


def _layers(probe: Probe, random: Probe) -> Iterator[Section]:
    if not probe.probed:
        return
    heads = ("layer", "kind", "shape", "parameters", "rank", "share", "s", "κ", "q", "noise")
    most = find_bar_scale(probe.probed, "stable_rank"), find_bar_scale(probe.probed, "quality")
    rows = [
        _row(layer, drawn, *most)
        for layer, drawn in zip(probe, random, strict=True)
        if layer.is_probed
    ]
    yield Section(
        "All layers",
        (
            Table(
                "The probed layers, in network order; choose one by its name.",
                (*heads, "s at random"),
                tuple(rows),
                numeric=tuple(range(2, len(heads) + 1)),
                filter=True,
                hints=HINTS,
                name="layers",
            ),
        ),
    )


def _row(
    layer: LayerMetrics, drawn: LayerMetrics, most_s: float, most_q: float
) -> tuple[Cell, ...]:
    tone = "dim" if layer.is_empty else ""
    s, q = layer.stable_rank or 0.0, layer.quality or 0.0
    return (
        layer_name(layer.name, tone),
        Cell(sanitize(layer.kind), tone=tone),
        Cell(format_shape(layer.shape), value=float(layer.parameters), tone=tone),
        Cell(f"{layer.parameters:,}", value=float(layer.parameters), tone=tone),
        Cell(format_ranks(layer), value=layer.rank, tone=tone),
        Cell(format_percent(layer.rank_fraction), layer.rank_fraction, tone, layer.rank_fraction),
        Cell(format_metric(s), s, tone, min(s / most_s, 1.0)),
        Cell(format_metric(layer.condition), layer.condition, tone),
        Cell(format_metric(q) + "*" * layer.has_inflated_quality, q, tone, min(q / most_q, 1.0)),
        Cell(
            format_percent(layer.noise_fraction), layer.noise_fraction, tone, layer.noise_fraction
        ),
        Cell(format_metric(drawn.stable_rank), drawn.stable_rank, "dim"),
    )


def _skipped(probe: Probe) -> Iterator[Section]:
    skipped = [layer for layer in probe.layers if not layer.is_probed]
    if not skipped:
        return
    # Biases and norm scales are the many that nobody misses.
    skipped.sort(key=lambda layer: layer.status is Status.VECTOR)
    shown = skipped[:MOST_SKIPPED]
    caption = "Every tensor without metrics, and why."
    if len(shown) < len(skipped):
        caption = f"The first {len(shown)} of {len(skipped)} tensors without metrics, and why."
    rows = tuple(
        (
            Cell(sanitize(layer.name)),
            Cell(format_shape(layer.shape), value=float(layer.parameters)),
            Cell(str(layer.status), tone="bad" if layer.status is Status.NOT_FINITE else ""),
            Cell(sanitize(layer.reason)),
        )
        for layer in shown
    )
    table = Table(caption, ("tensor", "shape", "status", "why"), rows, numeric=(1,), filter=True)
    head, *groups = format_skipped(probe.layers, width=None).split("\n")
    words = Words((head, *(group.strip() for group in groups)))
    yield Section("What was not probed, and why", (words, table))


def _notes(probe: Probe) -> Iterator[Section]:
    told = [layer for layer in probe.probed if layer.reason]
    lines = [sanitize(note) for note in probe.notes]
    lines += [f"{sanitize(layer.name)}: {sanitize(layer.reason)}." for layer in told[:MOST_SKIPPED]]
    if lines:
        yield Section("Notes", (Words(tuple(lines)),))
