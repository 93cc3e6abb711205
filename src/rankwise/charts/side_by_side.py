"""Some runs in one figure: a line for each, of any figure that its epochs have."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from rankwise.charts import series
from rankwise.charts.axes import across_axis
from rankwise.charts.scales import time_unit
from rankwise.charts.style import Rows, chart, finished

__all__ = ["runs_figure"]


def runs_figure(
    rows: Rows,
    runs: Sequence[str],
    field: str,
    *,
    title: str,
    form: str,
    across: str = "epoch",
    down_to: str = "",
    name: str = "runs",
) -> alt.LayerChart:
    """A line for each run.

    Args:
        rows: With "run" (what the legend calls it), "name" (its folder), "epoch", "seconds" of
            training, and the field; where that is None there is no point.
        runs: What the legend calls them, in its order.
        field: Which of the rows' fields to draw.
        title: What it is called.
        form: Its format in a tooltip and, without its digits, on the axis.
        across: "epoch" or "seconds".
        down_to: Where given, the field that a band below the line ends at.
        name: What a page calls the rows.

    Example:
        >>> row = {"run": "A", "name": "sgd-seed0", "epoch": 1, "seconds": 30.0, "quality": 0.4}
        >>> figure = runs_figure([row], ["A"], "quality", title="Q", form=".3f")
        >>> figure.description
        'Q by epoch: a line for each of 1 runs.'
    """
    rows = list(rows)
    x, words = _across(rows, across)
    axis = alt.Axis(format="~%" if form.endswith("%") else "~g", tickCount=6)
    base = (
        chart(name, height=240)
        .transform_filter(f"isValid(datum.{field}) && isValid(datum.{across})")
        .transform_calculate(time=f"datum.seconds / {time_unit(_longest(rows))[1]}")
        .encode(
            x=x,
            y=alt.Y(f"{field}:Q", title=title, axis=axis, scale=alt.Scale(zero=False)),
            color=series.colour(runs, "run", lines=True),
        )
    )
    band = base.mark_area(opacity=0.15, aria=False).encode(y2=f"{down_to}:Q") if down_to else None
    # With round ends, a run of a single epoch is a dot and not nothing.
    line = base.mark_line(strokeCap="round", strokeWidth=2).encode(
        strokeDash=series.dash(runs, "run")
    )
    # A line has one tooltip for all its length: points that are not seen have one each.
    points = base.mark_point(opacity=0, size=80, aria=False).encode(
        tooltip=[
            alt.Tooltip("run:N", title="run"),
            alt.Tooltip("name:N", title="folder"),
            alt.Tooltip("epoch:Q", title="epoch"),
            alt.Tooltip("seconds:Q", title="seconds of training", format=".3~s"),
            alt.Tooltip(f"{field}:Q", title=title, format=form),
        ]
    )
    layers = [layer for layer in (band, line, points) if layer is not None]
    told = f"{title} by {words}: a line for each of {len(runs)} runs."
    return finished(alt.LayerChart(layer=layers), rows, told)


def _across(rows: Rows, across: str) -> tuple[alt.X, str]:
    """The axis to the right, and what it is in words."""
    if across == "epoch":
        return across_axis(), "epoch"
    unit, _ = time_unit(_longest(rows))
    words = "time spent on training"
    return alt.X("time:Q", title=f"{words} ({unit})", axis=alt.Axis(tickCount=6)), words


def _longest(rows: Rows) -> float:
    return max((row["seconds"] or 0.0 for row in rows), default=0.0)
