"""A metric of every layer after every epoch as a heat map: the paper's Fig. 1b."""

from __future__ import annotations

from typing import Any

import altair as alt

from rankwise.charts.axes import (
    MANY,
    SILENT,
    epoch_axis,
    layers_of,
    scale_of,
    title_of,
    tooltip_of,
)
from rankwise.charts.style import INK, SEQUENTIAL, Rows, chart, finished, is_chosen, short_labels

__all__ = ["heat_map"]


def heat_map(
    rows: Rows, metric: str, *, name: str = "layers", step: str = "epoch"
) -> alt.LayerChart:
    """Layers from the input down, epochs to the right, a metric as colour: the paper's Fig. 1b.

    Args:
        rows: epoch, layer, depth and the metric. A cell without a value stays grey.
        metric: "quality", "stable_rank", "condition", "rate", ….
        name: What a page calls the rows.
        step: What a column is, as in "checkpoint".

    Raises:
        ArgumentError: For a metric that is not known.
    """
    rows = list(rows)
    title, layers = title_of(metric), layers_of(rows)
    base = chart(name, height=min(max(14 * len(layers), 60), 480))
    y = alt.Y("layer:N", title=None, scale=alt.Scale(domain=layers), axis=_layer_axis())
    colour = alt.Color(
        f"{metric}:Q",
        scale=_colours(rows, metric),
        legend=alt.Legend(title=title, gradientLength=160, format="~g", tickCount=3),
    )
    cells = _cells(base, metric, many=len(rows) > MANY).encode(epoch_axis(step), y, colour)
    figure = _columns(base, step) + cells + _chosen_row(base, y)
    description = f"Heat map of {title} of {len(layers)} layers over {step}s."
    return finished(figure, rows, description)


def _layer_axis() -> alt.Axis:
    return alt.Axis(labelExpr=short_labels(), labelOverlap=True, ticks=False, domain=False)


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
    return cells.encode(tooltip=[tooltip_of("layer"), tooltip_of("epoch"), tooltip_of(metric)])


def _columns(base: alt.Chart, step: str) -> alt.Chart:
    """A grey column for every epoch: what shows where a cell has no value."""
    columns = base.transform_aggregate(n="count()", groupby=["epoch"])
    return columns.mark_rect(color=alt.ExprRef("faint"), **SILENT).encode(epoch_axis(step))


def _chosen_row(base: alt.Chart, y: alt.Y) -> alt.Chart:
    """A frame around the chosen layer's row: one mark."""
    frame = base.transform_filter(is_chosen()).transform_aggregate(n="count()", groupby=["layer"])
    return frame.mark_rect(filled=False, stroke=INK, strokeWidth=2, **SILENT).encode(y)


def _colours(rows: list[Any], metric: str) -> alt.Scale:
    """Viridis. A layer of rank 1 has a q far above all others; roots still tell those apart."""
    if metric == "quality":
        return scale_of(rows, metric, scheme=SEQUENTIAL, type="sqrt", nice=False)
    return scale_of(rows, metric, scheme=SEQUENTIAL)
