"""One metric of every layer before and after, in network order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from rankwise._text import sanitize
from rankwise.charts.layers import CROWDED, METRICS, depth_axis, metric_axis
from rankwise.charts.style import CATEGORIES, INK, Rows, chart, finished, is_chosen
from rankwise.errors import ArgumentError
from rankwise.probes.changes import LayerChange
from rankwise.probes.show.summary import lifted
from rankwise.probes.show.table import shape

__all__ = ["change_figure", "change_rows"]

BETTER, WORSE, SAME = "better", "worse", "same"
COLOURS = {BETTER: CATEGORIES[0], WORSE: CATEGORIES[5], SAME: CATEGORIES[6]}
LOWER_IS_BETTER = {"condition", "noise_fraction"}


def change_rows(changes: Iterable[LayerChange]) -> list[dict[str, Any]]:
    """A row for every layer that was probed on both sides.

    Args:
        changes: Those of a diff.

    Example:
        >>> import torch, rankwise
        >>> old = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> row = change_rows(old.diff(old).changes)[0]
        >>> row["layer"], row["depth"], row["quality_way"]
        ('fc.weight', 1, 'same')
    """
    compared = [change for change in changes if change.compared]
    return [
        {
            "layer": sanitize(change.name),
            "depth": depth,
            "shape": shape(change.after.shape),
            "lifted": lifted(change.before) or lifted(change.after),
            **{key: value for metric in METRICS for key, value in _sides(change, metric).items()},
        }
        for depth, change in enumerate(compared, start=1)
    ]


def change_figure(rows: Rows, metric: str, *, name: str = "changes") -> alt.LayerChart:
    """A line from each layer's value before to its value after.

    Args:
        rows: As `change_rows` gives them.
        metric: "quality", "stable_rank", "condition", "rank_fraction" or "noise_fraction".
        name: What a page calls the rows.

    Raises:
        ArgumentError: If there is no such metric.

    Example:
        >>> change_figure([], "stable_rank").to_dict()["description"]
        'stable rank s of 0 layers before and after, in network order.'
    """
    if metric not in METRICS:
        raise ArgumentError(f"Expected one of {', '.join(METRICS)}, got {metric!r}.")
    rows = list(rows)
    layers = "1 layer" if len(rows) == 1 else f"{len(rows)} layers"
    description = f"{METRICS[metric][0]} of {layers} before and after, in network order."
    return finished(_drawn(chart(name, height=200), rows, metric), rows, description)


def _sides(change: LayerChange, metric: str) -> dict[str, Any]:
    before, after = getattr(change.before, metric), getattr(change.after, metric)
    gain = (after - before) * (-1 if metric in LOWER_IS_BETTER else 1)
    way = BETTER if gain > 0 else WORSE if gain < 0 else SAME
    return {f"{metric}_before": before, f"{metric}_after": after, f"{metric}_way": way}


def _drawn(base: alt.Chart, rows: Sequence[Mapping[str, Any]], metric: str) -> alt.LayerChart:
    plain = [row for row in rows if metric != "quality" or not row["lifted"]]
    values = [row[f"{metric}_{side}"] for row in plain for side in ("before", "after")]
    x, after = depth_axis(len(rows)), metric_axis(f"{metric}_after", metric, values)
    before = f"{metric}_before:Q"
    colour, mark = _look(rows, metric)
    shown = alt.condition(is_chosen(or_none=True), alt.value(1), alt.value(0.25))
    crowded = len(rows) >= CROWDED
    chosen = base.transform_filter(is_chosen()).mark_rule(color=INK, opacity=0.5).encode(x)
    line = base.mark_rule(strokeWidth=1 if crowded else 2, aria=False)
    start = base.mark_tick(orient="horizontal", width=3 if crowded else 10, thickness=2)
    end = base.mark_point(filled=True, size=16 if crowded else 70, opacity=1)
    marks = [
        chosen,
        line.encode(x, after, y2=alt.Y2(before), color=colour, opacity=shown),
        start.encode(x, y=alt.Y(before), color=colour, opacity=shown),
        end.encode(x, after, color=colour, shape=mark, opacity=shown, tooltip=_tips(metric)),
    ]
    return alt.LayerChart(layer=marks)


def _look(rows: Iterable[Mapping[str, Any]], metric: str) -> tuple[alt.Color, alt.Shape]:
    """Better and worse by colour, up and down by shape; the legend names those there are."""
    up, down = "triangle-up", "triangle-down"
    ways = (down, up) if metric in LOWER_IS_BETTER else (up, down)
    shapes = dict(zip((BETTER, WORSE, SAME), (*ways, "circle"), strict=True))
    seen = {row[f"{metric}_way"] for row in rows}
    domain = [way for way in shapes if way in seen]
    colours = alt.Scale(domain=domain, range=[COLOURS[way] for way in domain])
    marks = alt.Scale(domain=domain, range=[shapes[way] for way in domain])
    field = f"{metric}_way:N"
    return alt.Color(field, scale=colours, title=None), alt.Shape(field, scale=marks, title=None)


def _tips(metric: str) -> list[alt.Tooltip]:
    title, number_format = METRICS[metric]
    return [
        alt.Tooltip("layer:N", title="layer"),
        alt.Tooltip("shape:N", title="shape"),
        alt.Tooltip(f"{metric}_before:Q", title=f"{title} before", format=number_format),
        alt.Tooltip(f"{metric}_after:Q", title=f"{title} after", format=number_format),
        alt.Tooltip(f"{metric}_way:N", title="change"),
    ]
