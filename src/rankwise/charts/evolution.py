"""How layers change from epoch to epoch, as lines: rates, paths of s and κ, and Q."""

from __future__ import annotations

from typing import Any

import altair as alt

from rankwise.charts.axes import (
    MANY,
    SILENT,
    TITLES,
    across_axis,
    layers_of,
    scale_of,
    title_of,
    tooltip_of,
    value_axis,
)
from rankwise.charts.style import (
    CATEGORIES,
    DEEP,
    NEAR,
    Rows,
    chart,
    finished,
    is_chosen,
)

__all__ = ["quality_figure", "rate_figure", "trajectory_figure"]


def rate_figure(rows: Rows, *, name: str = "layers") -> alt.LayerChart:
    """The learning rate of every layer from epoch to epoch, darker with depth.

    Args:
        rows: epoch, layer, depth and rate.
        name: What a page calls the rows.
    """
    rows, metric = list(rows), "rate"
    title, scale, layers = title_of(metric), scale_of(rows, metric), layers_of(rows)
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
    base, colour = chart(name, height=320), _depth_colour(layers_of(rows))
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
    description = f"Paths of {len(layers_of(rows))} layers through stable rank and condition."
    return finished(figure, rows, description)


def quality_figure(rows: Rows, *, name: str = "quality", step: str = "epoch") -> alt.Chart:
    """Network quality Q from epoch to epoch.

    Args:
        rows: epoch and quality.
        name: What a page calls the rows.
        step: What lies between two points, as in "checkpoint".
    """
    point = alt.OverlayMarkDef(size=18, color=CATEGORIES[0])
    figure = (
        chart(name)
        .mark_line(point=point, color=CATEGORIES[0])
        .encode(
            across_axis(step),
            alt.Y("quality:Q", title="network quality Q"),
            tooltip=[tooltip_of("epoch"), alt.Tooltip("quality:Q", title="Q", format=".3f")],
        )
    )
    return finished(figure, rows, f"Network quality Q by {step}.")


def _axis(metric: str, channel: Any) -> Any:  # noqa: ANN401 - alt.X or alt.Y
    scale = alt.Scale(zero=True)
    return channel(f"{metric}:Q", title=title_of(metric), scale=scale, axis=value_axis(scale))


def _depth_colour(layers: list[str]) -> alt.Color:
    """From near to deep. The legend has the ends alone, which also fit beside one another."""
    ends = sorted({1, max(len(layers), 1)})
    legend = alt.Legend(title="depth", format="d", values=ends)
    return alt.Color("depth:Q", scale=alt.Scale(range=[NEAR, DEEP]), legend=legend)


def _chosen_line(base: alt.Chart, *metrics: str) -> alt.Chart:
    """The chosen layer's line, thick, with its points."""
    chosen = base.transform_filter(is_chosen())
    return chosen.mark_line(strokeWidth=3, point=alt.OverlayMarkDef(size=24), **SILENT).encode(
        tooltip=[*_named(), tooltip_of("epoch"), *map(tooltip_of, metrics)]
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
    return [tooltip_of("layer"), tooltip_of("depth")]
