"""What a probe, a row or a change is, in a line: their `repr`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise._text import format_count, quote, sanitize, shorten

if TYPE_CHECKING:
    from rankwise.probes.diff import LayerChange, ProbeDiff
    from rankwise.probes.layer_metrics import LayerMetrics, LayerSpectrum
    from rankwise.probes.results import Probe

# The metrics that a line has, with their symbols.
_METRICS = {"rank": "rank", "stable_rank": "s", "condition": "κ", "quality": "q"}
_MAX_KIND = 30


def describe_probe(probe: Probe) -> str:
    """Return the source, how many tensors were measured, and how many of them differ from noise."""
    figures = probe.figures
    tensors = format_count(len(probe.layers), "tensor")
    return (
        f"<Probe of {quote(probe.source)}: {len(probe.probed)} of {tensors} measured; "
        f"{figures.differing} of {figures.judged} judged differ from random weights>"
    )


def describe_layer(layer: LayerMetrics) -> str:
    """Return the name, the shape, and the metrics or the status."""
    shape = "×".join(map(str, layer.shape))
    kind = shorten(sanitize(layer.kind), _MAX_KIND)
    head = f"<LayerMetrics {quote(layer.name)} ({shape} {kind})"
    if not layer.is_probed:
        return f"{head}: {layer.status}>"
    values = (f"{sign} {_format(getattr(layer, name))}" for name, sign in _METRICS.items())
    return f"{head}: {', '.join(values)}>"


def describe_spectrum(spectrum: LayerSpectrum) -> str:
    """Return how many values there are, the largest and the smallest, and how many are kept."""
    values = spectrum.values
    ends = f" from {values[0]:.4g} to {values[-1]:.4g}" if values else ""
    return f"<LayerSpectrum: {len(values)} singular values{ends}; {len(spectrum.kept)} kept>"


def describe_change(change: LayerChange) -> str:
    """Return the name, and every metric before and after."""
    values = (
        f"{sign} {_format(getattr(change.before, name))} → {_format(getattr(change.after, name))}"
        for name, sign in _METRICS.items()
    )
    return f"<LayerChange {quote(change.name)}: {', '.join(values)}>"


def describe_diff(diff: ProbeDiff) -> str:
    """Return how many layers changed, and how many only one side has."""
    changed = sum(
        any(getattr(change, name) for name in _METRICS) or change.is_reshaped
        for change in diff.changes
    )
    layers = format_count(len(diff.changes), "tensor")
    only = f"{len(diff.added)} added, {len(diff.removed)} removed"
    return f"<ProbeDiff: the metrics of {changed} of {layers} changed, {only}>"


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
