"""How the layers of a network change from epoch to epoch: the paper's Fig. 1b and its kin."""

from __future__ import annotations

from typing import Any, TypeVar

import altair as alt

from rankwise.errors import ArgumentError
from rankwise.figures.style import (
    CATEGORIES,
    DEEP,
    INK,
    NEAR,
    SEQUENTIAL,
    Rows,
    chart,
    finished,
    is_chosen,
    short_labels,
)

__all__ = [
    "TITLES",
    "across_axis",
    "epoch_axis",
    "heat_map",
    "metric_lines",
    "quality_figure",
    "rate_figure",
    "trajectory_figure",
    "value_axis",
]

Drawn = TypeVar("Drawn", alt.Chart, alt.LayerChart)

TITLES = {
    "quality": "quality q",
    "stable_rank": "stable rank s",
    "condition": "condition κ",
    "rank": "rank",
    "rank_fraction": "rank fraction",
    "noise_fraction": "noise fraction",
    "rate": "learning rate",
}
WIDE = 30  # a rate that changes by more than this, about 1.5 decades, is drawn on a log scale
MANY = 1500  # lines of more rows than this have no points
# Data marks of thousands would each be announced to those who listen: the description is instead.
SILENT: dict[str, Any] = {"aria": False}


def heat_map(rows: Rows, metric: str, *, name: str = "layers") -> alt.LayerChart:
    """Layers from the input down, epochs to the right, a metric as colour: the paper's Fig. 1b.

    Args:
        rows: epoch, layer, depth and the metric. A cell without a value stays grey.
        metric: "quality", "stable_rank", "condition", "rate", ….
        name: What a page calls the rows.

    Raises:
        ArgumentError: For a metric that is not known.
    """
    rows = list(rows)
    title, layers = _title(metric), _layers(rows)
    base = chart(name, height=min(max(14 * len(layers), 60), 480))
    y = alt.Y("layer:N", title=None, scale=alt.Scale(domain=layers), axis=_layer_axis())
    colour = alt.Color(
        f"{metric}:Q",
        scale=_colours(rows, metric),
        legend=alt.Legend(title=title, gradientLength=160, format="~g", tickCount=3),
    )
    cells = _cells(base, metric, many=len(rows) > MANY).encode(epoch_axis(), y, colour)
    figure = _columns(base) + cells + _chosen_row(base, y)
    description = f"Heat map of {title} of {len(layers)} layers over epochs."
    return finished(figure, rows, description)


def rate_figure(rows: Rows, *, name: str = "layers") -> alt.LayerChart:
    """The learning rate of every layer from epoch to epoch, darker with depth.

    Args:
        rows: epoch, layer, depth and rate.
        name: What a page calls the rows.
    """
    return metric_lines(rows, "rate", name=name)


def metric_lines(rows: Rows, metric: str, *, name: str = "layers") -> alt.LayerChart:
    """A metric of every layer from epoch to epoch, darker with depth.

    Args:
        rows: epoch, layer, depth and the metric.
        metric: "quality", "stable_rank", "condition", "rate", ….
        name: What a page calls the rows.

    Raises:
        ArgumentError: For a metric that is not known.
    """
    rows = list(rows)
    title, scale, layers = _title(metric), _scale(rows, metric), _layers(rows)
    base = chart(name, height=260).encode(
        across_axis(),
        alt.Y(f"{metric}:Q", title=title, scale=scale, axis=value_axis(scale)),
        _depth_colour(layers),
        alt.Detail("layer:N"),
    )
    width = 1 if len(rows) > MANY else 2
    every = base.mark_line(point=_points(rows), strokeWidth=width, **_faded()).encode(
        tooltip=_named()
    )
    figure = every + _chosen_line(base, metric)
    description = f"Lines of {title} of {len(layers)} layers over epochs."
    return finished(figure, rows, description)


def trajectory_figure(rows: Rows, *, name: str = "layers") -> alt.LayerChart:
    """The path of every layer through stable rank s and condition κ, from epoch to epoch.

    Args:
        rows: epoch, layer, depth, stable_rank and condition.
        name: What a page calls the rows.
    """
    rows = list(rows)
    base, colour = chart(name, height=320), _depth_colour(_layers(rows))
    paths = base.encode(
        _axis("stable_rank", alt.X),
        _axis("condition", alt.Y),
        colour,
        alt.Detail("layer:N"),
        alt.Order("epoch:Q"),
    )
    every = paths.mark_line(strokeWidth=1.5, strokeJoin="round", **_faded()).encode(
        tooltip=_named()
    )
    chosen = _chosen_line(paths, "stable_rank", "condition")
    figure = every + chosen + _ends(base, colour, "first") + _ends(base, colour, "last")
    description = f"Paths of {len(_layers(rows))} layers through stable rank and condition."
    return finished(figure, rows, description)


def quality_figure(rows: Rows, *, name: str = "quality", across: str = "epoch") -> alt.Chart:
    """Network quality Q from epoch to epoch, of one run or several.

    Args:
        rows: run, epoch, seconds and quality.
        name: What a page calls the rows.
        across: "epoch" or "seconds".
    """
    rows = list(rows)
    runs = {row.get("run", "") for row in rows}
    one = len(runs) < 2
    colour: dict[str, Any] = {"color": CATEGORIES[0]} if one else {}
    lines = chart(name).mark_line(point=alt.OverlayMarkDef(size=18, **colour), **colour)
    figure = lines.encode(
        across_axis(across),
        alt.Y("quality:Q", title="network quality Q"),
        tooltip=[
            *([] if one else [alt.Tooltip("run:N", title="run")]),
            _tooltip("epoch"),
            alt.Tooltip("quality:Q", title="Q", format=".3f"),
        ],
    )
    if not one:
        figure = figure.encode(alt.Color("run:N", title=None, legend=alt.Legend(columns=1)))
    many = "" if one else f" of {len(runs)} runs"
    return finished(figure, rows, f"Network quality Q{many} by {across}.")


def epoch_axis() -> alt.X:
    """Epochs as columns side by side, whichever there are, with as many labels as there is room."""
    steps = "n > 400 ? 100 : n > 160 ? 50 : n > 70 ? 20 : n > 35 ? 10 : n > 14 ? 5 : 1"
    step = steps.replace("n ", "length(domain('x')) ")
    shown = f"datum.index === 0 || datum.value % ({step}) === 0 ? datum.label : ''"
    axis = alt.Axis(labelAngle=0, labelExpr=shown, labelOverlap="greedy", ticks=False)
    return alt.X("epoch:O", title="epoch", axis=axis)


def across_axis(across: str = "epoch") -> alt.X:
    """Epochs, or seconds of training, as a line's axis."""
    if across == "seconds":
        return alt.X("seconds:Q", title="seconds of training", axis=alt.Axis(tickCount=6))
    return alt.X(
        "epoch:Q",
        title="epoch",
        axis=alt.Axis(tickMinStep=1, format="d", grid=False),
        scale=alt.Scale(zero=False, nice=False),
    )


def value_axis(scale: alt.Scale, form: str = "~g") -> alt.Axis:
    """A few ticks; without the crowd of lines that a logarithmic scale would have."""
    return alt.Axis(tickCount=5, format=form, grid=scale.to_dict().get("type") != "log")


def _layer_axis() -> alt.Axis:
    return alt.Axis(labelExpr=short_labels(), labelOverlap=True, ticks=False, domain=False)


def _axis(metric: str, channel: Any) -> Any:  # noqa: ANN401 - alt.X or alt.Y
    scale = alt.Scale(zero=True)
    return channel(f"{metric}:Q", title=_title(metric), scale=scale, axis=value_axis(scale))


def _depth_colour(layers: list[str]) -> alt.Color:
    """From near to deep. The legend has the ends alone, which also fit beside one another."""
    ends = sorted({1, max(len(layers), 1)})
    legend = alt.Legend(title="depth", format="d", values=ends)
    return alt.Color("depth:Q", scale=alt.Scale(range=[NEAR, DEEP]), legend=legend)


def _cells(base: alt.Chart, metric: str, *, many: bool) -> alt.Chart:
    """The cells of a heat map.

    Small ones overlap a little, else the ground shines through between them; and they tell all
    their row has as it stands, since a text for each of 25,000 takes a browser as long as the rest.
    """
    size = alt.RelativeBandSize(band=1.2 if many else 1.0)
    whole_row = alt.TooltipContent(content="data") if many else alt.Undefined
    cells = base.mark_rect(width=size, height=size, clip=True, tooltip=whole_row, **SILENT)
    if many:
        return cells
    return cells.encode(tooltip=[_tooltip("layer"), _tooltip("epoch"), _tooltip(metric)])


def _columns(base: alt.Chart) -> alt.Chart:
    """A grey column for every epoch: what shows where a cell has no value."""
    columns = base.transform_aggregate(n="count()", groupby=["epoch"])
    return columns.mark_rect(color=alt.ExprRef("faint"), **SILENT).encode(epoch_axis())


def _chosen_row(base: alt.Chart, y: alt.Y) -> alt.Chart:
    """A frame around the chosen layer's row: one mark."""
    frame = base.transform_filter(is_chosen()).transform_aggregate(n="count()", groupby=["layer"])
    return frame.mark_rect(filled=False, stroke=INK, strokeWidth=2, **SILENT).encode(y)


def _chosen_line(base: alt.Chart, *metrics: str) -> alt.Chart:
    """The chosen layer's line, thick, with its points."""
    chosen = base.transform_filter(is_chosen())
    return chosen.mark_line(strokeWidth=3, point=alt.OverlayMarkDef(size=24), **SILENT).encode(
        tooltip=[*_named(), _tooltip("epoch"), *map(_tooltip, metrics)]
    )


def _ends(base: alt.Chart, colour: alt.Color, which: str) -> alt.Chart:
    """A ring where each path begins ("first"), or a dot where it ends ("last")."""
    known = "isValid(datum.stable_rank) && isValid(datum.condition)"
    pick = {"first": "argmin(epoch)", "last": "argmax(epoch)"}[which]
    ends = base.transform_filter(known).transform_aggregate(
        groupby=["layer", "depth"], **{which: pick}
    )
    x, y = f"{which}.stable_rank:Q", f"{which}.condition:Q"
    dot = which == "last"
    return ends.mark_point(filled=dot, size=50 if dot else 30, **_faded()).encode(
        alt.X(x),
        alt.Y(y),
        colour,
        tooltip=[
            *_named(),
            alt.Tooltip(f"{which}.epoch:Q", title="epoch"),
            alt.Tooltip(x, title=TITLES["stable_rank"], format=".3f"),
            alt.Tooltip(y, title=TITLES["condition"], format=".3f"),
        ],
    )


def _faded() -> dict[str, Any]:
    """Marks of all layers step back while one is chosen; one expression for all of them."""
    return {**SILENT, "opacity": alt.ExprRef("layer === '' ? 0.9 : 0.25")}


def _points(rows: list[Any]) -> alt.OverlayMarkDef | bool:
    return alt.OverlayMarkDef(size=14, **_faded()) if len(rows) <= MANY else False


def _named() -> list[alt.Tooltip]:
    return [_tooltip("layer"), _tooltip("depth")]


def _tooltip(field: str) -> alt.Tooltip:
    if field not in TITLES:
        return alt.Tooltip(field, type="nominal", title=field)
    formats = {"rate": ".3g", "rank": "~g", "rank_fraction": ".0%", "noise_fraction": ".0%"}
    return alt.Tooltip(f"{field}:Q", title=_title(field), format=formats.get(field, ".3f"))


def _title(metric: str) -> str:
    if metric not in TITLES:
        raise ArgumentError(f"metric should be one of {', '.join(TITLES)}, got {metric!r}.")
    return TITLES[metric]


def _layers(rows: list[Any]) -> list[str]:
    depths: dict[str, int] = {}
    for row in rows:
        depths.setdefault(row["layer"], row["depth"])
    return sorted(depths, key=depths.__getitem__)


def _colours(rows: list[Any], metric: str) -> alt.Scale:
    """Viridis. A layer of rank 1 has a q far above all others; roots still tell those apart."""
    if metric == "quality":
        return _scale(rows, metric, scheme=SEQUENTIAL, type="sqrt", nice=False)
    return _scale(rows, metric, scheme=SEQUENTIAL)


def _scale(rows: list[Any], metric: str, **options: Any) -> alt.Scale:  # noqa: ANN401
    """Linear from 0; logarithmic for rates that differ by orders of magnitude."""
    found = [abs(row[metric]) for row in rows if row.get(metric)]
    if metric != "rate" or not found or max(found) <= WIDE * min(found):
        return alt.Scale(zero=True, **options)
    if all(row.get(metric) is None or row[metric] > 0 for row in rows):
        return alt.Scale(type="log", **options)
    return alt.Scale(type="symlog", constant=min(found), **options)
