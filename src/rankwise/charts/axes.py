"""What the figures of epochs and layers share: axes, scales, titles and tooltips."""

from __future__ import annotations

from typing import Any

import altair as alt

from rankwise.errors import ArgumentError

__all__ = [
    "MANY",
    "SILENT",
    "TITLES",
    "across_axis",
    "epoch_axis",
    "layers_of",
    "scale_of",
    "title_of",
    "tooltip_of",
    "value_axis",
    "whole_axis",
]

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
MANY = 1500  # more rows than this are drawn with less for each: no points, no text of its own
# Data marks of thousands would each be announced to those who listen: the description is instead.
SILENT: dict[str, Any] = {"aria": False}


def epoch_axis(title: str = "epoch") -> alt.X:
    """Epochs as columns side by side, whichever there are, with as many labels as there is room."""
    steps = "n > 400 ? 100 : n > 160 ? 50 : n > 70 ? 20 : n > 35 ? 10 : n > 14 ? 5 : 1"
    step = steps.replace("n ", "length(domain('x')) ")
    shown = f"datum.index === 0 || datum.value % ({step}) === 0 ? datum.label : ''"
    axis = alt.Axis(labelAngle=0, labelExpr=shown, labelOverlap="greedy", ticks=False)
    return alt.X("epoch:O", title=title, axis=axis)


def whole_axis(**options: Any) -> alt.Axis:  # noqa: ANN401
    """Labels at whole numbers alone; of two or three epochs Vega would label halves as well."""
    whole = "datum.value % 1 ? '' : datum.label"
    return alt.Axis(tickMinStep=1, format="d", labelExpr=whole, **options)


def across_axis(across: str = "epoch") -> alt.X:
    """Epochs, checkpoints, or seconds of training, as a line's axis."""
    if across == "seconds":
        return alt.X("seconds:Q", title="seconds of training", axis=alt.Axis(tickCount=6))
    return alt.X(
        "epoch:Q",
        title=across,
        axis=whole_axis(grid=False),
        scale=alt.Scale(zero=False, nice=False),
    )


def value_axis(scale: alt.Scale, form: str = "~g") -> alt.Axis:
    """A few ticks; without the crowd of lines that a logarithmic scale would have."""
    return alt.Axis(tickCount=5, format=form, grid=scale.to_dict().get("type") != "log")


def tooltip_of(field: str) -> alt.Tooltip:
    """A field under its title, with as many digits as say something."""
    if field not in TITLES:
        return alt.Tooltip(field, type="nominal", title=field)
    formats = {"rate": ".3g", "rank": "~g", "rank_fraction": ".1%", "noise_fraction": ".1%"}
    return alt.Tooltip(f"{field}:Q", title=title_of(field), format=formats.get(field, ".3f"))


def title_of(metric: str) -> str:
    """What a metric is called in a figure.

    Raises:
        ArgumentError: For a metric that is not known.
    """
    if metric not in TITLES:
        raise ArgumentError(f"metric should be one of {', '.join(TITLES)}, got {metric!r}.")
    return TITLES[metric]


def layers_of(rows: list[Any]) -> list[str]:
    """The layers' names in the order of their depth."""
    depths: dict[str, int] = {}
    for row in rows:
        depths.setdefault(row["layer"], row["depth"])
    return sorted(depths, key=depths.__getitem__)


def scale_of(rows: list[Any], metric: str, **options: Any) -> alt.Scale:  # noqa: ANN401
    """Linear from 0; logarithmic for rates that differ by orders of magnitude."""
    found = [abs(row[metric]) for row in rows if row.get(metric)]
    if not found:  # nothing but zeros: else 0 would stand in the middle of the scale
        return alt.Scale(domain=[0, 1], **options)
    if metric != "rate" or max(found) <= WIDE * min(found):
        return alt.Scale(zero=True, **options)
    if all(row.get(metric) is None or row[metric] > 0 for row in rows):
        return alt.Scale(type="log", **options)
    return alt.Scale(type="symlog", constant=min(found), **options)
