"""One metric of every layer, in network order, beside what random weights would show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from rankwise._text import sanitize
from rankwise.charts.style import (
    CATEGORIES,
    INK,
    WIDTH,
    Rows,
    chart,
    finished,
    is_chosen,
)
from rankwise.errors import ArgumentError
from rankwise.probes.results import LayerMetrics
from rankwise.probes.show.summary import lifted
from rankwise.probes.show.table import ranks, shape

__all__ = ["METRICS", "depth_axis", "layer_figure", "layer_rows", "layers_figure", "metric_axis"]

# Each metric's name on an axis, and its number format.
METRICS: Mapping[str, tuple[str, str]] = {
    "quality": ("quality q", ".3f"),
    "stable_rank": ("stable rank s", ".3f"),
    "condition": ("condition κ", ".3f"),
    "rank_fraction": ("rank n'/n", ".1%"),
    "noise_fraction": ("noise share", ".1%"),
}

HOLDS, LIFTED, EMPTY = "holds structure", "rank 1 lifts q", "noise only"
RANDOM = "random weights"
# What each state looks like: told apart by colour and by shape.
LOOKS: Mapping[str, tuple[str, str]] = {
    HOLDS: (CATEGORIES[0], "circle"),
    LIFTED: (CATEGORIES[1], "triangle-up"),
    EMPTY: (CATEGORIES[5], "diamond"),
    RANDOM: (CATEGORIES[6], "stroke"),
}
FEW = 12
CROWDED = 120  # from so many layers on marks are smaller and stand without stems


def layer_rows(
    layers: Iterable[LayerMetrics], random: Iterable[LayerMetrics] = ()
) -> list[dict[str, Any]]:
    """A row for every probed layer, for all figures of layers.

    Args:
        layers: Rows of a probe, or a probe.
        random: The same layers with random weights, as `Probe.at_random` gives them.

    Example:
        >>> import torch, rankwise
        >>> found = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> row = layer_rows(found, found.at_random())[0]
        >>> row["layer"], row["depth"], row["state"], row["random_stable_rank"]
        ('fc.weight', 1, 'rank 1 lifts q', 0.0)
    """
    drawn = {layer.name: layer for layer in random if layer.probed}
    probed = [layer for layer in layers if layer.probed]
    return [
        {
            "layer": sanitize(layer.name),
            "depth": depth,
            "kind": sanitize(layer.kind),
            "shape": shape(layer.shape),
            "ranks": ranks(layer),
            "state": _state(layer),
            **_figures(layer),
            **(_figures(drawn[layer.name], "random_") if layer.name in drawn else {}),
        }
        for depth, layer in enumerate(probed, start=1)
    ]


def layer_figure(rows: Rows, metric: str, *, name: str = "layers") -> alt.LayerChart:
    """One metric of every layer, in network order.

    Args:
        rows: As `layer_rows` gives them.
        metric: "quality", "stable_rank", "condition", "rank_fraction" or "noise_fraction".
        name: What a page calls the rows.

    Raises:
        ArgumentError: If there is no such metric.

    Example:
        >>> import torch, rankwise
        >>> found = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> layer_figure(layer_rows(found), "quality").to_dict()["description"]
        'quality q of 1 layer, in network order.'
    """
    rows = list(rows)
    figure = _drawn(chart(name, height=190), rows, metric)
    return finished(figure, rows, f"{METRICS[metric][0]} of {_layers(rows)}, in network order.")


def layers_figure(rows: Rows) -> alt.VConcatChart:
    """All metrics of every layer, one chart below the other: for notebooks and image files."""
    rows = list(rows)
    if not rows:
        raise ArgumentError("No layer was probed, so there is nothing to draw.")
    charts = [_drawn(alt.Chart(width=WIDTH, height=110), rows, metric) for metric in METRICS]
    stacked = alt.vconcat(*charts, data=chart("layers").data)
    titles = ", ".join(title for title, _ in METRICS.values())
    return finished(stacked, rows, f"{titles} of {_layers(rows)}, in network order.")


def depth_axis(count: int) -> alt.X:
    """The layers' places from the first to the last, with a little room at both ends."""
    # Of a few places vega would make its own ticks between them.
    few: dict[str, Any] = {"values": list(range(1, count + 1))} if count <= FEW else {}
    axis = alt.Axis(tickMinStep=1, format="d", grid=False, **few)
    scale = alt.Scale(domain=[0.5, max(count, 1) + 0.5], nice=False)
    return alt.X("depth:Q", title="layer, in network order", axis=axis, scale=scale)


def metric_axis(
    field: str, metric: str, values: Iterable[float], *, title: str | None = None
) -> alt.Y:
    """The axis of a metric that spans the values given; what lies beyond stands on its edge.

    Where rank 1 lifts q to its maximum by definition, the values of the other layers would be
    pressed flat below; so the axis is made for these alone.
    """
    text, number_format = METRICS[metric]
    axis = alt.Axis(format="%" if "%" in number_format else "~g", tickCount=5)
    return alt.Y(f"{field}:Q", title=title or text, axis=axis, scale=_scale(metric, list(values)))


def _scale(metric: str, values: Sequence[float]) -> alt.Scale:
    if metric == "noise_fraction":
        return alt.Scale(domain=[0, 1])
    top, bottom = max(values, default=0.0) or 1.0, 0.0
    if metric == "condition":
        top, bottom = 1.0, min(values, default=0.0)
        bottom = max(0.0, bottom - 0.05 * (1.0 - bottom))
    if metric == "rank_fraction":
        top = min(top, 1.0)
    return alt.Scale(domain=[bottom, top] if bottom < top else [0, 1], clamp=True, nice=True)


def _drawn(base: alt.Chart, rows: Sequence[Mapping[str, Any]], metric: str) -> alt.LayerChart:
    if metric not in METRICS:
        raise ArgumentError(f"Expected one of {', '.join(METRICS)}, got {metric!r}.")
    plain = [row[metric] for row in rows if metric != "quality" or row["state"] != LIFTED]
    drawn = [row[f"random_{metric}"] for row in rows if f"random_{metric}" in row]
    axis = metric_axis(metric, metric, plain + (drawn if metric != "quality" else []))
    x = depth_axis(len(rows))
    stems = _stems(base, x, axis, metric, crowded=len(rows) >= CROWDED) if drawn else []
    marks = [_chosen(base, x), *stems]
    point = base.mark_point(filled=True, size=60 if len(rows) < CROWDED else 18, opacity=1)
    shown = alt.condition(is_chosen(or_none=True), alt.value(1), alt.value(0.3))
    look = _look(rows, random=bool(drawn))
    marks.append(
        point.encode(x, axis, opacity=shown, **look("state:N"), tooltip=_tips(metric, drawn))
    )
    return alt.LayerChart(layer=marks)


def _stems(
    base: alt.Chart, x: alt.X, axis: alt.Y, metric: str, *, crowded: bool
) -> list[alt.Chart]:
    """What random weights would show, and how far the layer is from it."""
    grey = alt.value(CATEGORIES[6])
    tick = base.mark_tick(orient="horizontal", thickness=2, width=2 if crowded else 9)
    ticks = tick.encode(x, axis, color=grey).encode(y=alt.Y(f"random_{metric}:Q"))
    if crowded:
        return [ticks]
    stem = base.mark_rule(opacity=0.6).encode(x, axis, color=grey)
    return [stem.encode(y2=alt.Y2(f"random_{metric}:Q")), ticks]


def _chosen(base: alt.Chart, x: alt.X) -> alt.Chart:
    """A line through the chosen layer."""
    return base.transform_filter(is_chosen()).mark_rule(color=INK, opacity=0.5).encode(x)


def _look(rows: Iterable[Mapping[str, Any]], *, random: bool) -> Callable[[str], dict[str, Any]]:
    """Encodings of a state by fill, stroke and shape; the legend names the states there are."""
    seen = {row["state"] for row in rows} | ({RANDOM} if random else set())
    domain = [state for state in LOOKS if state in seen]
    colours = alt.Scale(domain=domain, range=[LOOKS[state][0] for state in domain])
    shapes = alt.Scale(domain=domain, range=[LOOKS[state][1] for state in domain])

    def encodings(field: str) -> dict[str, Any]:
        return {
            "fill": alt.Fill(field, scale=colours, title=None),
            "stroke": alt.Stroke(field, scale=colours, title=None),
            "shape": alt.Shape(field, scale=shapes, title=None),
        }

    return encodings


def _tips(metric: str, drawn: Sequence[float]) -> list[alt.Tooltip]:
    words = {"layer": "layer", "kind": "kind", "shape": "shape", "ranks": "rank", "state": "state"}
    tips = [alt.Tooltip(f"{field}:N", title=title) for field, title in words.items()]
    tips += [alt.Tooltip(f"{m}:Q", title=t, format=f) for m, (t, f) in METRICS.items()]
    if drawn:
        title, number_format = METRICS[metric]
        random = f"{title} at random"
        tips.append(alt.Tooltip(f"random_{metric}:Q", title=random, format=number_format))
    return tips


def _state(layer: LayerMetrics) -> str:
    if layer.is_empty:
        return EMPTY
    return LIFTED if lifted(layer) else HOLDS


def _figures(layer: LayerMetrics, prefix: str = "") -> dict[str, float]:
    return {f"{prefix}{metric}": getattr(layer, metric) for metric in METRICS}


def _layers(rows: Sequence[object]) -> str:
    return "1 layer" if len(rows) == 1 else f"{len(rows)} layers"
