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
    NUMBER,
    choose_scale,
    get_metric_title,
    list_layers,
    make_epoch_axis,
    make_epoch_columns,
    make_tooltip,
    make_value_axis,
)
from rankwise.charts.blocks import choose_step
from rankwise.charts.style import (
    DEEP,
    INK,
    IS_SELECTED,
    NAMED,
    NEAR,
    SEQUENTIAL,
    Rows,
    encode_colour,
    encode_dash,
    finish_chart,
    start_chart,
)

MANY = 1500  # more rows than this are drawn without points
# A screen reader would announce each of thousands of marks; the chart's description is enough.
SILENT: dict[str, Any] = {"aria": False}
# Marks of all layers fade while one is selected; one expression for all of them.
FADED: dict[str, Any] = {**SILENT, "opacity": alt.ExprRef("layer === '' ? 0.9 : 0.25")}
TALLEST = 2400  # pixels of a heat map
# Of a long name the end is shown, which distinguishes layers: 30 characters, on a phone 16.
ROOM = "(windowSize()[0] < 500 ? 16 : 30)"
SHORT_LABEL = f"length(datum.label) > {ROOM} ? '…' + slice(datum.label, 1 - {ROOM}) : datum.label"


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
    step_height = choose_step(len(layers))
    base = start_chart("layers", height=min(max(step_height * len(layers), 60), TALLEST))
    axis = alt.Axis(
        labelExpr=f"{_number_label(len(layers))} + ' ' + ({SHORT_LABEL})",
        labelOverlap=True,
        labelFontSize=9 if len(layers) > 60 else 10,
        labelLimit=260,
        ticks=False,
        domain=False,
    )
    y = alt.Y("layer:N", title=None, scale=alt.Scale(domain=layers), axis=axis)
    # A layer of rank 1 has a q far above all others; a root scale still distinguishes those.
    root: dict[str, Any] = {"type": "sqrt", "nice": False} if metric == "quality" else {}
    colour = alt.Color(
        f"{metric}:Q",
        scale=choose_scale(rows, metric, scheme=SEQUENTIAL, **root),
        legend=alt.Legend(title=title, gradientLength=160, format=NUMBER, tickCount=3),
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
    """Draw the learning rate of every layer from epoch to epoch.

    A legend names up to `NAMED` layers. More are coloured by depth, and those with the highest and
    the lowest rate in the last epoch are named at their ends, as is the one that is selected.
    """
    rows = list(rows)
    scale, layers, many = choose_scale(rows, "rate"), list_layers(rows), len(rows) > MANY
    plain = start_chart("layers", height=260)
    base = plain.encode(
        make_epoch_axis(),
        alt.Y("rate:Q", title=METRICS["rate"][0], scale=scale, axis=make_value_axis(scale)),
        _encode_layers(layers),
        *_encode_dashes(layers),
        alt.Detail("layer:N"),
    )
    points = False if many else alt.OverlayMarkDef(size=14, **FADED)
    every = base.mark_line(point=points, strokeWidth=1 if many else 2, **FADED)
    names = _name_ends(plain, "rate", every=len(layers) > NAMED)
    chart = every.encode(tooltip=_name_tooltip()) + _selected_line(base, "rate") + names
    description = f"Lines of {METRICS['rate'][0]} of {len(layers)} layers over epochs."
    return finish_chart(chart, rows, description)


def draw_trajectories(rows: Rows) -> alt.LayerChart:
    """Draw the path of every layer through stable rank s and condition κ, epoch by epoch."""
    rows = list(rows)
    layers = list_layers(rows)
    base, colour = start_chart("layers", height=320), _encode_layers(layers)
    scale = alt.Scale(zero=True)
    axis: dict[str, Any] = {"scale": scale, "axis": make_value_axis(scale)}
    paths = base.encode(
        alt.X("stable_rank:Q", title=METRICS["stable_rank"][0], **axis),
        alt.Y("condition:Q", title=METRICS["condition"][0], **axis),
        _encode_layers(layers),
        *_encode_dashes(layers),
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


def _number_label(count: int) -> str:
    """An expression for a layer's number: an axis has its place among the labels, from 0 to 1."""
    return f"(round(datum.index * {max(count - 1, 0)}) + 1)"


def _heat_cells(base: alt.Chart, metric: str, *, many: bool) -> alt.Chart:
    """The cells of a heat map; small ones overlap, or the background shines through between."""
    size = alt.RelativeBandSize(band=1.2 if many else 1.0)
    cells = base.mark_rect(width=size, height=size, clip=True, **SILENT)
    return cells.encode(tooltip=[*_name_tooltip(), *map(make_tooltip, ("epoch", metric))])


def _encode_layers(layers: Sequence[str]) -> alt.Color:
    """A colour for each layer of few, which share them with dashes; of many, from near to deep."""
    if len(layers) <= NAMED:
        return encode_colour(layers, "layer", lines=True)
    ends = [1, len(layers)]  # they fit next to each other
    legend = alt.Legend(title="layer #", format="d", values=ends)
    return alt.Color("depth:Q", scale=alt.Scale(range=[NEAR, DEEP]), legend=legend)


def _encode_dashes(layers: Sequence[str]) -> list[alt.StrokeDash]:
    return [encode_dash(layers, "layer")] if len(layers) <= NAMED else []


def _name_ends(base: alt.Chart, metric: str, *, every: bool) -> alt.Chart:
    """Names at the ends of lines: the selected layer's, and of many the highest and the lowest."""
    last = base.transform_filter(f"isValid(datum.{metric})").transform_joinaggregate(
        last="max(epoch)"
    )
    ranked = last.transform_filter("datum.epoch === datum.last").transform_window(
        place="row_number()", sort=[alt.SortField(metric, order="descending")]
    )
    counted = ranked.transform_joinaggregate(count="count()")
    extremes = "(layer === '' && (datum.place === 1 || datum.place === datum.count))"
    shown = f"{IS_SELECTED} || {extremes}" if every else IS_SELECTED
    named = counted.transform_filter(shown).transform_calculate(
        name="datum.depth + ' ' + datum.layer"
    )
    limit = alt.ExprRef("windowSize()[0] < 500 ? 90 : 200")
    text = named.mark_text(align="left", dx=5, color=INK, limit=limit, ellipsis="…", **SILENT)
    return text.encode(alt.X("epoch:Q"), alt.Y(f"{metric}:Q"), text="name:N")


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
    return [alt.Tooltip("depth:Q", title="#"), make_tooltip("layer")]
