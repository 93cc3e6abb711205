"""One metric of every layer, in network order: beside random weights, or before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import altair as alt

from rankwise._text import format_count
from rankwise.charts.axes import METRICS, get_metric_title
from rankwise.charts.style import (
    CATEGORIES,
    INK,
    IS_SELECTED,
    IS_SELECTED_OR_NONE,
    WIDTH,
    finish_chart,
    start_chart,
)
from rankwise.errors import ArgumentError

LAYER_METRICS = ("quality", "stable_rank", "condition", "rank_fraction", "noise_fraction")
LOWER_IS_BETTER = {"condition", "noise_fraction"}

STRUCTURED, RANK_ONE, EMPTY = "has structure", "rank 1 (inflated q)", "noise only"
RANDOM = "random weights"
# Each state's colour and shape.
STATES: Mapping[str, tuple[str, str]] = {
    STRUCTURED: (CATEGORIES[0], "circle"),
    RANK_ONE: (CATEGORIES[1], "triangle-up"),
    EMPTY: (CATEGORIES[5], "diamond"),
    RANDOM: (CATEGORIES[6], "stroke"),
}
BETTER, WORSE, SAME = "better", "worse", "same"
COLOURS = {BETTER: CATEGORIES[0], WORSE: CATEGORIES[5], SAME: CATEGORIES[6]}
FEW = 12
CROWDED = 120  # from so many layers on marks are smaller and have no stems


class RandomMetrics(TypedDict, total=False):
    """What random weights of a layer's shape show, where known."""

    random_quality: float | None
    random_stable_rank: float | None
    random_condition: float | None
    random_rank_fraction: float | None
    random_noise_fraction: float | None


class LayerRow(RandomMetrics):
    """A probed layer."""

    layer: str
    depth: int
    kind: str
    shape: str
    ranks: str
    state: str  # STRUCTURED, RANK_ONE or EMPTY
    quality: float | None
    stable_rank: float | None
    condition: float | None
    rank_fraction: float | None
    noise_fraction: float | None


def draw_layers(rows: Iterable[LayerRow], metric: str) -> alt.LayerChart:
    """Draw one of `LAYER_METRICS` of every layer, in network order.

    Example:
        >>> draw_layers([], "quality").to_dict()["description"]
        'quality q of 0 layers, in network order.'
    """
    title, listed = get_metric_title(metric, LAYER_METRICS), list(rows)
    chart = _draw_metric(start_chart("layers", height=190), listed, metric)
    count = format_count(len(listed), "layer")
    return finish_chart(chart, listed, f"{title} of {count}, in network order.")


def draw_all_metrics(rows: Iterable[LayerRow]) -> alt.VConcatChart:
    """Draw all metrics of every layer, one chart below the other: for notebooks and image files."""
    listed = list(rows)
    if not listed:
        raise ArgumentError("No layer was probed, so there is nothing to draw.")
    base = alt.Chart(width=WIDTH, height=110)
    charts = [_draw_metric(base, listed, metric) for metric in LAYER_METRICS]
    stacked = alt.vconcat(*charts, data=start_chart("layers").data)
    titles = ", ".join(METRICS[metric][0] for metric in LAYER_METRICS)
    count = format_count(len(listed), "layer")
    return finish_chart(stacked, listed, f"{titles} of {count}, in network order.")


def draw_diff(before: Iterable[LayerRow], after: Iterable[LayerRow], metric: str) -> alt.LayerChart:
    """Draw a line from each layer's value before to its value after.

    Both sides have the same layers in the same order.

    Example:
        >>> draw_diff([], [], "stable_rank").to_dict()["description"]
        'stable rank s of 0 layers before and after, in network order.'
    """
    title = get_metric_title(metric, LAYER_METRICS)
    rows = [_pair(*sides) for sides in zip(before, after, strict=True)]
    count = format_count(len(rows), "layer")
    chart = _draw_changes(start_chart("changes", height=200), rows, metric)
    return finish_chart(chart, rows, f"{title} of {count} before and after, in network order.")


def _draw_metric(base: alt.Chart, rows: Sequence[LayerRow], metric: str) -> alt.LayerChart:
    fields: Sequence[Mapping[str, Any]] = rows
    random = [row[f"random_{metric}"] for row in fields if f"random_{metric}" in row]
    values = [row[metric] for row in fields if metric != "quality" or row["state"] != RANK_ONE]
    y = _metric_axis(metric, metric, values + (random if metric != "quality" else []))
    x, crowded = _depth_axis(len(rows)), len(rows) >= CROWDED
    states = {row["state"] for row in rows} | ({RANDOM} if random else set())
    colours, shapes = _state_scales([state for state in STATES if state in states], STATES)
    opacity = alt.condition(IS_SELECTED_OR_NONE, alt.value(1), alt.value(0.3))
    point = base.mark_point(filled=True, size=18 if crowded else 60, opacity=1).encode(
        x,
        y,
        opacity=opacity,
        fill=alt.Fill("state:N", scale=colours, title=None),
        stroke=alt.Stroke("state:N", scale=colours, title=None),
        shape=alt.Shape("state:N", scale=shapes, title=None),
        tooltip=_layer_tooltip(metric, random=bool(random)),
    )
    stems = _random_stems(base, x, y, metric, crowded=crowded) if random else []
    return alt.LayerChart(layer=[_selected_rule(base, x), *stems, point])


def _draw_changes(base: alt.Chart, rows: Sequence[dict[str, Any]], metric: str) -> alt.LayerChart:
    plain = [row for row in rows if metric != "quality" or not row["rank_one"]]
    values = [row[f"{metric}_{side}"] for row in plain for side in ("before", "after")]
    x, after = _depth_axis(len(rows)), _metric_axis(f"{metric}_after", metric, values)
    before, crowded = f"{metric}_before:Q", len(rows) >= CROWDED
    # Better and worse by colour, up and down by shape; the legend names those there are.
    up, down = "triangle-up", "triangle-down"
    better, worse = (down, up) if metric in LOWER_IS_BETTER else (up, down)
    shapes = {BETTER: better, WORSE: worse, SAME: "circle"}
    seen = {row[f"{metric}_change"] for row in rows}
    looks = {change: (COLOURS[change], shapes[change]) for change in shapes if change in seen}
    colour_scale, shape_scale = _state_scales(list(looks), looks)
    colour = alt.Color(f"{metric}_change:N", scale=colour_scale, title=None)
    shape = alt.Shape(f"{metric}_change:N", scale=shape_scale, title=None)
    opacity = alt.condition(IS_SELECTED_OR_NONE, alt.value(1), alt.value(0.25))
    line = base.mark_rule(strokeWidth=1 if crowded else 2, aria=False)
    start = base.mark_tick(orient="horizontal", width=3 if crowded else 10, thickness=2)
    end = base.mark_point(filled=True, size=16 if crowded else 70, opacity=1)
    title, form = METRICS[metric]
    tooltip = [
        alt.Tooltip("layer:N", title="layer"),
        alt.Tooltip("shape:N", title="shape"),
        alt.Tooltip(f"{metric}_before:Q", title=f"{title} before", format=form),
        alt.Tooltip(f"{metric}_after:Q", title=f"{title} after", format=form),
        alt.Tooltip(f"{metric}_change:N", title="change"),
    ]
    marks = [
        _selected_rule(base, x),
        line.encode(x, after, y2=alt.Y2(before), color=colour, opacity=opacity),
        start.encode(x, y=alt.Y(before), color=colour, opacity=opacity),
        end.encode(x, after, color=colour, shape=shape, opacity=opacity, tooltip=tooltip),
    ]
    return alt.LayerChart(layer=marks)


def _pair(before: LayerRow, after: LayerRow) -> dict[str, Any]:
    row: dict[str, Any] = {
        "layer": after["layer"],
        "depth": after["depth"],
        "shape": after["shape"],
        "rank_one": RANK_ONE in (before["state"], after["state"]),
    }
    sides: tuple[Mapping[str, Any], Mapping[str, Any]] = (before, after)
    for metric in LAYER_METRICS:
        old, new = (side[metric] for side in sides)
        gain = (new - old) * (-1 if metric in LOWER_IS_BETTER else 1)
        change = BETTER if gain > 0 else WORSE if gain < 0 else SAME
        row |= {f"{metric}_before": old, f"{metric}_after": new, f"{metric}_change": change}
    return row


def _depth_axis(count: int) -> alt.X:
    """The layers' places from the first to the last, with a little room at both ends."""
    # Of a few places Vega would make its own ticks between them.
    few: dict[str, Any] = {"values": list(range(1, count + 1))} if count <= FEW else {}
    axis = alt.Axis(tickMinStep=1, format="d", grid=False, **few)
    scale = alt.Scale(domain=[0.5, max(count, 1) + 0.5], nice=False)
    return alt.X("depth:Q", title="layer, in network order", axis=axis, scale=scale)


def _metric_axis(field: str, metric: str, values: Sequence[float]) -> alt.Y:
    """The axis of a metric that spans the values given; others are drawn on its edge.

    Where rank 1 raises q to its maximum by definition, the values of the other layers would be
    pressed flat below; so the axis is made for these alone.
    """
    title, form = METRICS[metric]
    axis = alt.Axis(format="%" if "%" in form else "~g", tickCount=5)
    if metric == "noise_fraction":
        scale = alt.Scale(domain=[0, 1])
    else:
        top, bottom = max(values, default=0.0) or 1.0, 0.0
        if metric == "condition":
            top, bottom = 1.0, min(values, default=0.0)
            bottom = max(0.0, bottom - 0.05 * (1.0 - bottom))
        if metric == "rank_fraction":
            top = min(top, 1.0)
        domain = [bottom, top] if bottom < top else [0, 1]
        scale = alt.Scale(domain=domain, clamp=True, nice=True)
    return alt.Y(f"{field}:Q", title=title, axis=axis, scale=scale)


def _random_stems(
    base: alt.Chart, x: alt.X, y: alt.Y, metric: str, *, crowded: bool
) -> list[alt.Chart]:
    """What random weights would show, and how far the layer is from it."""
    grey = alt.value(CATEGORIES[6])
    tick = base.mark_tick(orient="horizontal", thickness=2, width=2 if crowded else 9)
    ticks = tick.encode(x, y, color=grey).encode(y=alt.Y(f"random_{metric}:Q"))
    if crowded:
        return [ticks]
    stem = base.mark_rule(opacity=0.6).encode(x, y, color=grey)
    return [stem.encode(y2=alt.Y2(f"random_{metric}:Q")), ticks]


def _selected_rule(base: alt.Chart, x: alt.X) -> alt.Chart:
    return base.transform_filter(IS_SELECTED).mark_rule(color=INK, opacity=0.5).encode(x)


def _state_scales(
    domain: list[str], looks: Mapping[str, tuple[str, str]]
) -> tuple[alt.Scale, alt.Scale]:
    """Scales of colour and of shape; the legend names the states that there are."""
    colours, shapes = ([looks[state][i] for state in domain] for i in (0, 1))
    return alt.Scale(domain=domain, range=colours), alt.Scale(domain=domain, range=shapes)


def _layer_tooltip(metric: str, *, random: bool) -> list[alt.Tooltip]:
    names = {"layer": "layer", "kind": "kind", "shape": "shape", "ranks": "rank", "state": "state"}
    tooltip = [alt.Tooltip(f"{field}:N", title=title) for field, title in names.items()]
    for name in LAYER_METRICS:
        title, form = METRICS[name]
        tooltip.append(alt.Tooltip(f"{name}:Q", title=title, format=form))
    if random:
        title, form = METRICS[metric]
        tooltip.append(
            alt.Tooltip(f"random_{metric}:Q", title=f"{title}, random weights", format=form)
        )
    return tooltip
