"""What charts share of their axes: metrics, scores and times, their scales, titles and tooltips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from rankwise._text import explain_unknown
from rankwise.errors import ArgumentError

# Numbers of an axis. Without its own number of digits Vega takes as many as it thinks distinguish
# the ticks, and rounds 0.12, 0.1 and 0.08 to "0.1, 0.1, 0.08".
NUMBER = ".6~g"

# Each metric's name on an axis, and its number format.
METRICS: Mapping[str, tuple[str, str]] = {
    "prominence": ("prominence", ".2f"),
    "quality": ("quality q", ".3f"),
    "stable_rank": ("stable rank s", ".3f"),
    "condition": ("condition κ", ".3f"),
    "rank": ("rank", NUMBER),
    "rank_fraction": ("rank n'/n", ".1%"),
    "noise_fraction": ("noise share", ".1%"),
    "rate": ("learning rate", ".3g"),
    "change": ("change ‖ΔW‖/‖W‖", ".3~%"),
    "change_rank": ("rank of the change", NUMBER),
    "low_rank_share": ("low-rank share of the change", ".1%"),
}
SCORES = {"frechet": "Fréchet distance"}
WIDE = 30  # a rate that changes by more than this, about 1.5 decades, is drawn on a log scale


def make_epoch_columns(title: str = "epoch") -> alt.X:
    """Return epochs as columns side by side, with as many labels as there is room for."""
    steps = "n > 400 ? 100 : n > 160 ? 50 : n > 70 ? 20 : n > 35 ? 10 : n > 14 ? 5 : 1"
    step = steps.replace("n ", "length(domain('x')) ")
    label = f"datum.index === 0 || datum.value % ({step}) === 0 ? datum.label : ''"
    axis = alt.Axis(labelAngle=0, labelExpr=label, labelOverlap="greedy", ticks=False)
    return alt.X("epoch:O", title=title, axis=axis)


def make_epoch_axis(across: str = "epoch") -> alt.X:
    """Return the axis of a line over epochs, checkpoints, or seconds of training."""
    if across == "seconds":
        return alt.X("seconds:Q", title="seconds of training", axis=alt.Axis(tickCount=6))
    # Labels at whole numbers only; of two or three epochs Vega would label halves as well.
    label = "datum.value % 1 ? '' : datum.label"
    axis = alt.Axis(tickMinStep=1, format="d", labelExpr=label, grid=False)
    return alt.X("epoch:Q", title=across, axis=axis, scale=alt.Scale(zero=False, nice=False))


def make_value_axis(scale: alt.Scale, form: str = NUMBER) -> alt.Axis:
    """Return an axis of a few ticks, without the many grid lines of a logarithmic scale."""
    return alt.Axis(tickCount=5, format=form, grid=scale.to_dict().get("type") != "log")


def make_tooltip(field: str) -> alt.Tooltip:
    """Return a field under its title, with as many digits as matter."""
    if field not in METRICS:
        return alt.Tooltip(field, type="nominal", title=field)
    title, form = METRICS[field]
    return alt.Tooltip(f"{field}:Q", title=title, format=form)


def get_metric_title(metric: str, known: Sequence[str] = tuple(METRICS)) -> str:
    """Return what a metric is called in a chart."""
    if metric not in known:
        raise ArgumentError(explain_unknown("metric to draw", metric, list(known)))
    return METRICS[metric][0]


def list_layers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the layers' names in the order of their depth."""
    depths: dict[str, int] = {}
    for row in rows:
        depths.setdefault(row["layer"], row["depth"])
    return sorted(depths, key=depths.__getitem__)


def choose_scale(rows: Sequence[Mapping[str, Any]], metric: str, **options: Any) -> alt.Scale:  # noqa: ANN401
    """Return a linear scale from 0; a logarithmic one for rates of different magnitudes."""
    values = [abs(row[metric]) for row in rows if row.get(metric)]
    if not values:  # nothing but zeros: otherwise 0 would be in the middle of the scale
        return alt.Scale(domain=[0, 1], **options)
    if metric != "rate" or max(values) <= WIDE * min(values):
        return alt.Scale(zero=True, **options)
    if all(row.get(metric) is None or row[metric] > 0 for row in rows):
        return alt.Scale(type="log", **options)
    return alt.Scale(type="symlog", constant=min(values), **options)


def get_score_name(score: str) -> str:
    """Return what a score on the test set is called.

    Example:
        >>> get_score_name("accuracy"), get_score_name("frechet")
        ('test accuracy', 'test Fréchet distance')
    """
    return f"test {SCORES.get(score, score)}"


def get_score_format(score: str) -> str:
    """Return the format of a score in a tooltip."""
    return ".2%" if score == "accuracy" else ".4~g"


def make_score_axis(field: str, score: str, **options: Any) -> alt.Y:  # noqa: ANN401
    """Return the axis of a score, accuracy in percent; it need not begin at 0."""
    axis = alt.Axis(format="~%" if score == "accuracy" else NUMBER, tickCount=6)
    begin: dict[str, Any] = {"nice": False} if "type" in options else {"zero": False}
    scale = alt.Scale(**begin, **options)
    return alt.Y(f"{field}:Q", title=get_score_name(score), axis=axis, scale=scale)


def choose_time_unit(longest: float) -> tuple[str, float]:
    """Return the unit that suits a time in seconds, and how many seconds it has.

    Example:
        >>> choose_time_unit(300.0), choose_time_unit(90000.0)
        (('min', 60.0), ('h', 3600.0))
    """
    for name, seconds in (("h", 3600.0), ("min", 60.0)):
        if longest >= 2 * seconds:
            return name, seconds
    return "s", 1.0
