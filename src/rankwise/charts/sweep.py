"""What an option does to the score: a line where one option varies, a map where two do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from rankwise.charts import series
from rankwise.charts.scales import score_format, score_name, score_y
from rankwise.charts.style import SEQUENTIAL, Rows, chart, finished

__all__ = ["OPTIONS", "score_by_option", "score_map"]

# What options are called on an axis, and whether their values are told apart by their ratio.
OPTIONS = {
    "lr": ("learning rate", True),
    "weight_decay": ("weight decay", True),
    "momentum": ("momentum", False),
    "beta": ("β", False),
    "batch_size": ("batch size", True),
}


def score_by_option(
    rows: Rows,
    series_names: Sequence[str],
    *,
    option: str,
    score: str = "accuracy",
    name: str = "sweep",
) -> alt.LayerChart:
    """The score against an option, mean and standard deviation over trials.

    Args:
        rows: With "series", "value" (of the option), "mean", "low", "high" and "n".
        series_names: The series, the best first: runs that differ in this option and seed only.
        option: Which option it is, one of `OPTIONS`.
        score: Which score it is.
        name: What a page calls the rows.

    Example:
        >>> row = {"series": "sgd", "value": 0.1, "mean": 0.5, "low": 0.4, "high": 0.6, "n": 3}
        >>> score_by_option([row], ["sgd"], option="lr").save("rates.png")  # doctest: +SKIP
    """
    rows = list(rows)
    title, ratio = OPTIONS[option]
    values = sorted({row["value"] for row in rows})
    axis = alt.Axis(values=values, format="~g", grid=False, labelOverlap=True, labelAngle=0)
    if ratio and values and values[0] <= 0:
        # Ratios to 0 are none: the values stand side by side.
        x = alt.X("value:O", title=title, scale=alt.Scale(padding=0.2), axis=axis)
    else:
        kind: dict[str, Any] = {"type": "log"} if ratio else {"zero": False}
        scale = alt.Scale(nice=False, padding=12, **kind)
        x = alt.X("value:Q", title=title, scale=scale, axis=axis)
    tip = alt.Tooltip("value:Q", title=title, format="~g")
    base = chart(name, height=260)
    figure = _lines(base, x, tip, series_names, score)
    said = f"{score_name(score)} against {title}, for {len(series_names)} series"
    return finished(figure, series.placed(rows, series_names, "series"), said)


def _lines(
    base: alt.Chart, x: alt.X, tip: alt.Tooltip, names: Sequence[str], score: str
) -> alt.LayerChart:
    y, named = score_y("mean", score), list(names[: series.NAMED])
    colour, picked = series.colour(named, "series", lines=True), series.picked("series")
    seen = alt.condition(picked, alt.value(1), alt.value(0.15))
    form = score_format(score)
    tooltip = [
        alt.Tooltip("series:N", title="setting"),
        tip,
        *(alt.Tooltip(f"{field}:Q", format=form) for field in ("mean", "low", "high")),
        alt.Tooltip("n:Q"),
    ]
    shown, others = series.parted(base, names)
    marks = [
        shown.mark_rule(strokeWidth=1.5).encode(
            x=x, y=score_y("low", score), y2="high:Q", color=colour, opacity=seen
        ),
        shown.mark_line(strokeWidth=2)
        .encode(x=x, y=y, color=colour, strokeDash=series.dash(named, "series"), opacity=seen)
        .add_params(picked),
        shown.mark_point(filled=True, size=50).encode(
            x=x, y=y, color=colour, opacity=seen, tooltip=tooltip
        ),
    ]
    if others is not None:
        grey = others.mark_line(color=series.ORDINARY, strokeWidth=1)
        marks.insert(0, grey.encode(x=x, y=y, detail="series:N"))
    return alt.LayerChart(layer=marks)


def score_map(
    rows: Rows,
    *,
    across: str,
    up: str,
    score: str = "accuracy",
    falling: bool = False,
    name: str = "map",
) -> alt.LayerChart:
    """The score where two options vary, as a map with the number in each cell.

    Args:
        rows: With "across", "up" (the options' values), "mean", "spread", "n" and "share": 0 for
            the worst cell, 1 for the best.
        across: The option that varies from left to right, one of `OPTIONS`.
        up: The other.
        score: Which score it is.
        falling: Whether less is better.
        name: What a page calls the rows.

    Example:
        >>> row = {"across": 0.1, "up": 0.0, "mean": 0.5, "spread": None, "n": 1, "share": 1.0}
        >>> score_map([row], across="lr", up="weight_decay").save("grid.png")  # doctest: +SKIP
    """
    rows = list(rows)
    axis = alt.Axis(format="~g", labelAngle=0, labelOverlap=True)
    height = 40 + 34 * len({row["up"] for row in rows})
    form = score_format(score)
    base = chart(name, height=height).encode(
        x=alt.X("across:O", title=OPTIONS[across][0], axis=axis),
        y=alt.Y("up:O", title=OPTIONS[up][0], sort="descending", axis=axis),
        tooltip=[
            alt.Tooltip("across:Q", title=OPTIONS[across][0], format="~g"),
            alt.Tooltip("up:Q", title=OPTIONS[up][0], format="~g"),
            alt.Tooltip("mean:Q", format=form),
            alt.Tooltip("spread:Q", title="standard deviation", format=form),
            alt.Tooltip("n:Q"),
        ],
    )
    scale: dict[str, Any] = {"scheme": SEQUENTIAL, "reverse": falling}
    colour = alt.Color(
        "mean:Q",
        title=score_name(score),
        scale=alt.Scale(**scale),
        legend=alt.Legend(format="~%" if score == "accuracy" else "~g", gradientLength=180),
    )
    dark = alt.condition("datum.share > 0.45", alt.value("#111111"), alt.value("#ffffff"))
    short = ".1%" if score == "accuracy" else ".3~g"
    marks = [
        base.mark_rect().encode(color=colour),
        base.mark_text().encode(text=alt.Text("mean:Q", format=short), color=dark),
    ]
    said = f"Map of {score_name(score)} by {OPTIONS[across][0]} and {OPTIONS[up][0]}"
    return finished(alt.LayerChart(layer=marks), rows, said)
