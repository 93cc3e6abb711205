"""Layers from epoch to epoch: heat maps (the paper's Fig. 1b), rates, and paths of s and κ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict

import altair as alt

from rankwise._text import sanitize
from rankwise.charts.axes import (
    METRICS,
    choose_scale,
    get_metric_title,
    list_layers,
    make_epoch_axis,
    make_epoch_columns,
    make_tooltip,
    make_value_axis,
)
from rankwise.charts.style import (
    DEEP,
    INK,
    IS_SELECTED,
    NEAR,
    SEQUENTIAL,
    Rows,
    finish_chart,
    start_chart,
)

MANY = 1500  # more rows than this are drawn with less for each: no points, no text of its own
# A screen reader would announce each of thousands of marks; the chart's description is enough.
SILENT: dict[str, Any] = {"aria": False}
# Marks of all layers fade while one is selected; one expression for all of them.
FADED: dict[str, Any] = {**SILENT, "opacity": alt.ExprRef("layer === '' ? 0.9 : 0.25")}
LABEL = 18  # characters of a layer's name: the end, which distinguishes layers
SHORT_LABEL = f"length(datum.label) > {LABEL} ? '…' + slice(datum.label, {1 - LABEL}) : datum.label"


class EpochLayerRow(TypedDict):
    """A layer after an epoch; its depth is its place in the network."""

    epoch: int
    layer: str
    depth: int
    stable_rank: float | None
    condition: float | None
    quality: float | None
    rank: float | None
    rate: float | None


class _LayerRecord(Protocol):
    """What is read of a layer's record."""

    @property
    def epoch(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def stable_rank(self) -> float | None: ...
    @property
    def condition(self) -> float | None: ...
    @property
    def quality(self) -> float | None: ...
    @property
    def rank(self) -> float | None: ...
    @property
    def rate(self) -> float | None: ...


class LayerValues(NamedTuple):
    """A layer after an epoch, as records have it."""

    epoch: int
    name: str
    stable_rank: float | None = None
    condition: float | None = None
    quality: float | None = None
    rank: float | None = None
    rate: float | None = None


def make_layer_rows(records: Iterable[_LayerRecord]) -> list[EpochLayerRow]:
    """Return a row for every layer of every epoch; records come in network order.

    Example:
        >>> make_layer_rows([LayerValues(1, "fc", rate=0.1)])[0]["depth"]
        1
    """
    depths: Counter[int] = Counter()
    rows: list[EpochLayerRow] = []
    for record in records:
        epoch = record.epoch
        depths[epoch] += 1
        rows.append(
            {
                "epoch": epoch,
                "layer": sanitize(record.name),
                "depth": depths[epoch],
                "stable_rank": _finite(record.stable_rank),
                "condition": _finite(record.condition),
                "quality": _finite(record.quality),
                "rank": _finite(record.rank),
                "rate": _finite(record.rate),
            }
        )
    return rows


def draw_heat_map(rows: Rows, metric: str, *, step: str = "epoch") -> alt.LayerChart:
    """Draw layers from the input down, epochs to the right, and a metric as colour.

    Rows have epoch, layer, depth and the metric; a cell without a value stays grey. `step` is what
    a column is, as in "checkpoint".
    """
    rows = list(rows)
    title, layers = get_metric_title(metric), list_layers(rows)
    base = start_chart("layers", height=min(max(14 * len(layers), 60), 480))
    axis = alt.Axis(labelExpr=SHORT_LABEL, labelOverlap=True, ticks=False, domain=False)
    y = alt.Y("layer:N", title=None, scale=alt.Scale(domain=layers), axis=axis)
    # A layer of rank 1 has a q far above all others; a root scale still distinguishes those.
    root: dict[str, Any] = {"type": "sqrt", "nice": False} if metric == "quality" else {}
    colour = alt.Color(
        f"{metric}:Q",
        scale=choose_scale(rows, metric, scheme=SEQUENTIAL, **root),
        legend=alt.Legend(title=title, gradientLength=160, format="~g", tickCount=3),
    )
    columns = base.transform_aggregate(n="count()", groupby=["epoch"])
    background = columns.mark_rect(color=alt.ExprRef("faint"), **SILENT)
    cells = _heat_cells(base, metric, many=len(rows) > MANY)
    selected = base.transform_filter(IS_SELECTED).transform_aggregate(
        n="count()", groupby=["layer"]
    )
    frame = selected.mark_rect(filled=False, stroke=INK, strokeWidth=2, **SILENT)
    x = make_epoch_columns(step)
    chart = background.encode(x) + cells.encode(x, y, colour) + frame.encode(y)
    description = f"Heat map of {title} of {len(layers)} layers over {step}s."
    return finish_chart(chart, rows, description)


def draw_rates(rows: Rows) -> alt.LayerChart:
    """Draw the learning rate of every layer from epoch to epoch, darker with depth."""
    rows = list(rows)
    scale, layers, many = choose_scale(rows, "rate"), list_layers(rows), len(rows) > MANY
    base = start_chart("layers", height=260).encode(
        make_epoch_axis(),
        alt.Y("rate:Q", title=METRICS["rate"][0], scale=scale, axis=make_value_axis(scale)),
        _encode_depth(layers),
        alt.Detail("layer:N"),
    )
    points = False if many else alt.OverlayMarkDef(size=14, **FADED)
    every = base.mark_line(point=points, strokeWidth=1 if many else 2, **FADED)
    chart = every.encode(tooltip=_name_tooltip()) + _selected_line(base, "rate")
    description = f"Lines of {METRICS['rate'][0]} of {len(layers)} layers over epochs."
    return finish_chart(chart, rows, description)


def draw_trajectories(rows: Rows) -> alt.LayerChart:
    """Draw the path of every layer through stable rank s and condition κ, epoch by epoch."""
    rows = list(rows)
    layers = list_layers(rows)
    base, colour = start_chart("layers", height=320), _encode_depth(layers)
    scale = alt.Scale(zero=True)
    axis: dict[str, Any] = {"scale": scale, "axis": make_value_axis(scale)}
    paths = base.encode(
        alt.X("stable_rank:Q", title=METRICS["stable_rank"][0], **axis),
        alt.Y("condition:Q", title=METRICS["condition"][0], **axis),
        colour,
        alt.Detail("layer:N"),
        alt.Order("epoch:Q"),
    )
    every = paths.mark_line(strokeWidth=1.5, strokeJoin="round", **FADED)
    selected = _selected_line(paths, "stable_rank", "condition")
    first, last = (_path_ends(base, colour, which) for which in ("first", "last"))
    chart = every.encode(tooltip=_name_tooltip()) + selected + first + last
    description = f"Paths of {len(layers)} layers through stable rank and condition."
    return finish_chart(chart, rows, description)


def _finite(value: float | None) -> float | None:
    """A gap for what is not a number: the rates of a running training may be NaN."""
    return value if value is not None and math.isfinite(value) else None


def _heat_cells(base: alt.Chart, metric: str, *, many: bool) -> alt.Chart:
    """The cells of a heat map.

    Small ones overlap a little, otherwise the background shines through between them; and their
    tooltip is the row as it is, since a text for each of 25,000 takes as long as all the rest.
    """
    size = alt.RelativeBandSize(band=1.2 if many else 1.0)
    whole_row = alt.TooltipContent(content="data") if many else alt.Undefined
    cells = base.mark_rect(width=size, height=size, clip=True, tooltip=whole_row, **SILENT)
    if many:
        return cells
    return cells.encode(tooltip=[make_tooltip(field) for field in ("layer", "epoch", metric)])


def _encode_depth(layers: Sequence[str]) -> alt.Color:
    """From near to deep. The legend has the two ends only, which fit beside one another."""
    ends = sorted({1, max(len(layers), 1)})
    legend = alt.Legend(title="depth", format="d", values=ends)
    return alt.Color("depth:Q", scale=alt.Scale(range=[NEAR, DEEP]), legend=legend)


def _selected_line(base: alt.Chart, *metrics: str) -> alt.Chart:
    selected = base.transform_filter(IS_SELECTED)
    line = selected.mark_line(strokeWidth=3, point=alt.OverlayMarkDef(size=24), **SILENT)
    return line.encode(tooltip=[*_name_tooltip(), *map(make_tooltip, ("epoch", *metrics))])


def _path_ends(base: alt.Chart, colour: alt.Color, which: str) -> alt.Chart:
    """A ring where each path begins ("first"), or a dot where it ends ("last")."""
    known = "isValid(datum.stable_rank) && isValid(datum.condition)"
    pick = {"first": "argmin(epoch)", "last": "argmax(epoch)"}[which]
    ends = base.transform_filter(known).transform_aggregate(
        groupby=["layer", "depth"], **{which: pick}
    )
    x, y = f"{which}.stable_rank:Q", f"{which}.condition:Q"
    is_dot = which == "last"
    return ends.mark_point(filled=is_dot, size=50 if is_dot else 30, **FADED).encode(
        alt.X(x),
        alt.Y(y),
        colour,
        tooltip=[
            *_name_tooltip(),
            alt.Tooltip(f"{which}.epoch:Q", title="epoch"),
            alt.Tooltip(x, title=METRICS["stable_rank"][0], format=".3f"),
            alt.Tooltip(y, title=METRICS["condition"][0], format=".3f"),
        ],
    )


def _name_tooltip() -> list[alt.Tooltip]:
    return [make_tooltip("layer"), make_tooltip("depth")]
