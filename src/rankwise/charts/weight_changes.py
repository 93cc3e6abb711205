"""How far the weights of every layer moved from a base, and how much of that is of low rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import altair as alt

from rankwise._text import format_count
from rankwise.charts.axes import METRICS, get_metric_title
from rankwise.charts.blocks import (
    MANY,
    arrange_blocks,
    arrange_lines,
    compute_least_width,
    draw_cells,
)
from rankwise.charts.layers import (
    compute_height,
    encode_cells,
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

CHANGE_METRICS = ("change", "change_rank", "low_rank_share")


class WeightChangeRow(TypedDict):
    """A matrix that both networks have, or a group of experts."""

    layer: str
    depth: int  # its number, from 1; tables have it too
    shape: str
    change: float | None  # ‖ΔW‖/‖W‖; None where the base is all zeros
    change_rank: float  # n' of ΔW
    low_rank_share: float | None  # of ‖ΔW‖²; None where nothing changed
    adapter_parameters: int  # of a LoRA of that rank


def draw_weight_changes(rows: Sequence[WeightChangeRow], metric: str) -> alt.LayerChart:
    """Draw one of `CHANGE_METRICS` of every layer: bars, or of many layers a map.

    Example:
        >>> draw_weight_changes([], "change").to_dict()["description"]
        'change ‖ΔW‖/‖W‖ of 0 layers.'
    """
    title = get_metric_title(metric, CHANGE_METRICS)
    fields = label_rows(rows)
    cells = arrange_blocks([row["layer"] for row in rows])
    if cells is None and len(rows) > MANY:
        cells = arrange_lines(len(rows))
    base, least_width = start_chart("weight changes"), 0
    if cells is None:
        chart = _draw_bars(base.properties(height=compute_height(len(rows))), fields, metric)
    else:
        fields = [{**row, **cell} for row, cell in zip(fields, cells, strict=True)]
        colour, is_light = encode_cells(fields, metric)
        tooltip, least_width = _list_tooltips(), compute_least_width(fields)
        chart = draw_cells(
            base, fields, metric, colour, tooltip=tooltip, sign="''", is_light=is_light
        )
    description = f"{title} of {format_count(len(rows), 'layer')}."
    return finish_chart(chart, fields, description, least_width=least_width)


def _draw_bars(base: alt.Chart, rows: Sequence[Mapping[str, Any]], metric: str) -> alt.LayerChart:
    x = make_metric_axis(metric, metric, [row[metric] for row in rows])
    y = make_layer_axis(len(rows))
    bar = base.mark_bar(height=alt.RelativeBandSize(band=0.72), color=CATEGORIES[0]).encode(
        x,
        y,
        opacity=alt.condition(IS_SELECTED_OR_NONE, alt.value(1), alt.value(0.3)),
        tooltip=_list_tooltips(),
    )
    selected = base.transform_filter(IS_SELECTED).mark_rule(color=INK, opacity=0.5).encode(y)
    return alt.LayerChart(layer=[selected, bar])


def _list_tooltips() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("depth:Q", title="#"),
        alt.Tooltip("layer:N", title="layer"),
        alt.Tooltip("shape:N", title="shape"),
        *(
            alt.Tooltip(f"{metric}:Q", title=METRICS[metric][0], format=METRICS[metric][1])
            for metric in CHANGE_METRICS
        ),
        alt.Tooltip("adapter_parameters:Q", title="parameters of a LoRA", format=",d"),
    ]
