"""One metric of every layer before and after: what went up, what went down, and how far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from rankwise._text import format_count
from rankwise.charts.axes import METRICS, NUMBER, get_metric_title
from rankwise.charts.blocks import (
    MANY,
    arrange_blocks,
    arrange_lines,
    compute_least_width,
    draw_cells,
)
from rankwise.charts.layers import (
    LAYER_METRICS,
    LayerRow,
    compute_height,
    label_rows,
    make_layer_axis,
    make_metric_axis,
)
from rankwise.charts.style import (
    CATEGORIES,
    INK,
    IS_SELECTED,
    IS_SELECTED_OR_NONE,
    finish_chart,
    start_chart,
)

UP, DOWN, SAME = "up", "down", "same"
# Each direction's colour and shape; neither of the colours is good or bad.
LOOKS: Mapping[str, tuple[str, str]] = {
    UP: (CATEGORIES[0], "triangle-right"),
    DOWN: (CATEGORIES[1], "triangle-left"),
    SAME: (CATEGORIES[6], "circle"),
}


def draw_diff(before: Iterable[LayerRow], after: Iterable[LayerRow], metric: str) -> alt.LayerChart:
    """Draw each layer's value before and after; of repeated blocks, a map of the differences.

    Both sides have the same layers in the same order.

    Example:
        >>> draw_diff([], [], "stable_rank").to_dict()["description"]
        'stable rank s of 0 layers before and after.'
    """
    title = get_metric_title(metric, LAYER_METRICS)
    rows = label_rows([_pair(*sides) for sides in zip(before, after, strict=True)])
    cells = arrange_blocks([row["layer"] for row in rows])
    if cells is None and len(rows) > MANY:
        cells = arrange_lines(len(rows))
    base, least_width = start_chart("changes"), 0
    if cells is None:
        chart = _draw_arrows(base.properties(height=compute_height(len(rows))), rows, metric)
    else:
        rows = [{**row, **cell} for row, cell in zip(rows, cells, strict=True)]
        chart, least_width = _draw_map(base, rows, metric), compute_least_width(rows)
    count = format_count(len(rows), "layer")
    description = f"{title} of {count} before and after."
    return finish_chart(chart, rows, description, least_width=least_width)


def _pair(before: LayerRow, after: LayerRow) -> dict[str, Any]:
    row: dict[str, Any] = {
        "layer": after["layer"],
        "depth": after["depth"],
        "shape": after["shape"],
        "rank_one": before["rank_one"] or after["rank_one"],
    }
    sides: tuple[Mapping[str, Any], Mapping[str, Any]] = (before, after)
    for metric in LAYER_METRICS:
        old, new = (side[metric] for side in sides)
        delta = None if old is None or new is None else new - old
        direction = UP if (delta or 0) > 0 else DOWN if (delta or 0) < 0 else SAME
        row |= {f"{metric}_before": old, f"{metric}_after": new}
        row |= {f"{metric}_change": direction, f"{metric}_delta": delta}
    return row


def _draw_arrows(base: alt.Chart, rows: Sequence[Mapping[str, Any]], metric: str) -> alt.LayerChart:
    plain = [row for row in rows if not (metric == "quality" and row["rank_one"])]
    values = [row[f"{metric}_{side}"] for row in plain for side in ("before", "after")]
    x, y = make_metric_axis(f"{metric}_after", metric, values), make_layer_axis(len(rows))
    seen = {row[f"{metric}_change"] for row in rows}
    names = [direction for direction in LOOKS if direction in seen]
    colours, shapes = ([LOOKS[name][i] for name in names] for i in (0, 1))
    legend = alt.Legend(orient="top", title=None, columns=3, symbolOpacity=1)
    field = f"{metric}_change:N"
    colour = alt.Color(field, scale=alt.Scale(domain=names, range=colours), legend=legend)
    shape = alt.Shape(field, scale=alt.Scale(domain=names, range=shapes), legend=legend)
    opacity = alt.condition(IS_SELECTED_OR_NONE, alt.value(1), alt.value(0.25))
    line = base.mark_rule(strokeWidth=2, aria=False)
    start = base.mark_tick(orient="vertical", thickness=2)
    end = base.mark_point(filled=True, size=55, opacity=1)
    old, tooltip = f"{metric}_before:Q", _list_tooltips(metric)
    selected = base.transform_filter(IS_SELECTED).mark_rule(color=INK, opacity=0.5)
    return alt.LayerChart(
        layer=[
            selected.encode(y),
            line.encode(x, y, x2=alt.X2(old), color=colour, opacity=opacity),
            start.encode(y, x=alt.X(old), color=colour, opacity=opacity),
            end.encode(x, y, color=colour, shape=shape, opacity=opacity, tooltip=tooltip),
        ]
    )


def _draw_map(base: alt.Chart, rows: Sequence[Mapping[str, Any]], metric: str) -> alt.LayerChart:
    title, form = METRICS[metric]
    inner = [
        row for row in rows if not (row["outside"] or (metric == "quality" and row["rank_one"]))
    ]
    largest = max((abs(row[f"{metric}_delta"] or 0.0) for row in inner), default=0.0) or 1.0
    most = float(f"{1.05 * largest:.1g}")  # an end of the scale that is easy to read
    colour = alt.Color(
        f"{metric}_delta:Q",
        # From orange (down) through white to blue (up).
        scale=alt.Scale(domain=[-most, 0, most], scheme="blueorange", reverse=True, clamp=True),
        legend=alt.Legend(
            title=f"change of {title}",
            gradientLength=160,
            tickCount=3,
            format="+%" if "%" in form else f"+{NUMBER}",
        ),
    )
    arrows = (
        f"datum.{metric}_change === '{UP}' ? '↑' : datum.{metric}_change === '{DOWN}' ? '↓' : ''"
    )
    is_light = f"abs(datum.{metric}_delta) < {0.7 * most}"
    return draw_cells(
        base,
        rows,
        f"{metric}_delta",
        colour,
        tooltip=_list_tooltips(metric),
        sign=arrows,
        is_light=is_light,
    )


def _list_tooltips(metric: str) -> list[alt.Tooltip]:
    title, form = METRICS[metric]
    return [
        alt.Tooltip("depth:Q", title="#"),
        alt.Tooltip("layer:N", title="layer"),
        alt.Tooltip("shape:N", title="shape"),
        alt.Tooltip(f"{metric}_before:Q", title=f"{title} before", format=form),
        alt.Tooltip(f"{metric}_after:Q", title=f"{title} after", format=form),
        alt.Tooltip(f"{metric}_delta:Q", title="change", format=f"+{form}"),
    ]
