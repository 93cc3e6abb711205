"""Runs from epoch to epoch: losses, scores, figures and seconds of one, or of several together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Protocol, TypedDict

import altair as alt

from rankwise.charts.axes import (
    NUMBER,
    SCORES,
    choose_time_unit,
    make_epoch_axis,
    make_epoch_columns,
    make_value_axis,
)
from rankwise.charts.evolution import EpochLayerRow
from rankwise.charts.style import (
    CATEGORIES,
    Rows,
    encode_colour,
    encode_dash,
    finish_chart,
    start_chart,
)
from rankwise.errors import ArgumentError

PARTS = ("data", "step", "probe", "eval", "save")  # where an epoch's seconds go
SETS = ("train", "test")
SET_COLOURS = {"train": CATEGORIES[1], "test": CATEGORIES[0]}
SHARES = ("accuracy", "top5")  # shown in percent
TITLES = {**SCORES, "generator_loss": "generator's loss"}
HUGE = 100  # losses that differ by more than this factor are drawn on a log scale


class _SecondsRecord(Protocol):
    """What is read of an epoch's seconds, in addition to each of `PARTS`."""

    @property
    def trained(self) -> float: ...


class _EpochRecord(Protocol):
    """What is read of an epoch's record."""

    @property
    def epoch(self) -> int: ...
    @property
    def train(self) -> Mapping[str, float | None]: ...
    @property
    def test(self) -> Mapping[str, float | None]: ...
    @property
    def quality(self) -> float | None: ...
    @property
    def stable_rank_by_width(self) -> float | None: ...
    @property
    def seconds(self) -> _SecondsRecord: ...


class ScoreRow(TypedDict):
    """A loss or a score after an epoch, on the training or the test set."""

    epoch: int
    seconds: float
    set: str
    score: str
    value: float


class FigureRow(TypedDict):
    """Figures of the whole network after an epoch."""

    epoch: int
    stable_rank_by_width: float | None
    total_rank: float | None
    quality: float | None


class TimeRow(TypedDict):
    """The seconds that an epoch spent on one of `PARTS`."""

    epoch: int
    part: str
    seconds: float


def make_score_rows(records: Iterable[_EpochRecord]) -> list[ScoreRow]:
    """Return a row for every score of every epoch, on the training and on the test set."""
    return [
        {
            "epoch": record.epoch,
            "seconds": record.seconds.trained,
            "set": part,
            "score": score,
            "value": value,
        }
        for record in records
        for part in SETS
        for score, value in getattr(record, part).items()
        if value is not None
    ]


def make_figure_rows(
    records: Iterable[_EpochRecord], layers: Iterable[EpochLayerRow] = ()
) -> list[FigureRow]:
    """Return a row of figures for every epoch, from its record and those of its layers."""
    ranks: dict[int, list[float]] = {}
    for row in layers:
        if row["rank"] is not None:
            ranks.setdefault(row["epoch"], []).append(row["rank"])
    return [
        {
            "epoch": record.epoch,
            "stable_rank_by_width": record.stable_rank_by_width,
            "total_rank": fsum(found) if (found := ranks.get(record.epoch)) else None,
            "quality": record.quality,
        }
        for record in records
    ]


def make_time_rows(records: Iterable[_EpochRecord]) -> list[TimeRow]:
    """Return a row for every part of every epoch's time."""
    return [
        {"epoch": record.epoch, "part": part, "seconds": getattr(record.seconds, part)}
        for record in records
        for part in PARTS
    ]


def draw_progress(rows: Iterable[ScoreRow], score: str, *, across: str = "epoch") -> alt.Chart:
    """Draw a loss or a score against "epoch" or "seconds", on the training and on the test set.

    Rows of other scores are not drawn.
    """
    if across not in ("epoch", "seconds"):
        raise ArgumentError(f'across should be "epoch" or "seconds", got {across!r}.')
    listed = list(rows)
    present = {row["set"] for row in listed if row["score"] == score}
    sets = [part for part in SETS if part in present]
    colours = alt.Scale(domain=sets, range=[SET_COLOURS[part] for part in sets])
    title, is_share = TITLES.get(score, score), score in SHARES
    scale = choose_score_scale(listed, score)
    chart = (
        start_chart("epochs", height=240)
        .transform_filter(alt.FieldEqualPredicate(field="score", equal=score))
        .mark_line(point=alt.OverlayMarkDef(size=14))
        .encode(
            make_epoch_axis(across),
            alt.Y(
                "value:Q",
                title=title,
                scale=scale,
                axis=make_value_axis(scale, "%" if is_share else NUMBER),
            ),
            alt.Color("set:N", title=None, scale=colours),
            tooltip=[
                alt.Tooltip("set:N", title="set"),
                alt.Tooltip("epoch:O", title="epoch"),
                alt.Tooltip("seconds:Q", title="seconds of training", format=".3~s"),
                alt.Tooltip("value:Q", title=score, format=".2%" if is_share else ".4~g"),
            ],
        )
    )
    where = " and ".join(sets) or "test"
    return finish_chart(chart, listed, f"{title.capitalize()} on the {where} set by {across}.")


def choose_score_scale(rows: Iterable[ScoreRow], score: str) -> alt.Scale:
    """Return the scale of a score: linear, but for what falls by orders of magnitude."""
    values = [row["value"] for row in rows if row["score"] == score]
    can_be_log = score not in SHARES and values and min(values) > 0
    if can_be_log and max(values) > HUGE * min(values):
        return alt.Scale(type="log")
    return alt.Scale(zero=score == "loss")


def draw_quality(rows: Rows) -> alt.Chart:
    """Draw Q, the paper's figure, by epoch."""
    return draw_figure(rows, "quality", title="Q")


def draw_figure(rows: Rows, field: str, *, title: str, step: str = "epoch") -> alt.Chart:
    """Draw a figure of the whole network by epoch, or by another step such as "checkpoint".

    Rows have "epoch" and the field; figures of one page share them.

    Example:
        >>> draw_figure([{"epoch": 1, "quality": 0.4}], "quality", title="Q").description
        'Q by epoch.'
    """
    point = alt.OverlayMarkDef(size=18, color=CATEGORIES[0])
    axis = alt.Axis(format=NUMBER, tickCount=5)
    chart = (
        start_chart("figures")
        .mark_line(point=point, color=CATEGORIES[0])
        .encode(
            make_epoch_axis(step),
            alt.Y(f"{field}:Q", title=title, axis=axis),
            tooltip=[
                alt.Tooltip("epoch:O", title=step),
                alt.Tooltip(f"{field}:Q", title=title, format=".4~g"),
            ],
        )
    )
    return finish_chart(chart, rows, f"{title} by {step}.")


def draw_time(rows: Iterable[TimeRow]) -> alt.Chart:
    """Draw where every epoch's seconds went: data, steps, probes, evaluation, saving."""
    colours = alt.Scale(domain=list(PARTS), range=list(CATEGORIES[: len(PARTS)]))
    chart = (
        start_chart("time")
        .mark_bar(aria=False)
        .encode(
            make_epoch_columns(),
            alt.Y("seconds:Q", title="seconds"),
            alt.Color("part:N", title=None, scale=colours, legend=alt.Legend(columns=len(PARTS))),
            tooltip=[
                alt.Tooltip("epoch:O", title="epoch"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("seconds:Q", title="seconds", format=".3~g"),
            ],
        )
    )
    return finish_chart(chart, rows, "Bars of each epoch's seconds, by what they were spent on.")


def draw_runs(
    rows: Rows,
    runs: Sequence[str],
    field: str,
    *,
    title: str,
    form: str,
    across: str = "epoch",
    down_to: str = "",
    dataset: str = "runs",
) -> alt.LayerChart:
    """Draw a line for each run, against "epoch" or "seconds".

    Rows have "run" (what the legend calls it), "name" (its folder), "epoch", "seconds" of training,
    and the field; where that is None there is no point. `form` is the field's format in a tooltip
    and, without its digits, on the axis. A band below the line ends at the field `down_to`.

    Example:
        >>> row = {"run": "A", "name": "sgd-seed0", "epoch": 1, "seconds": 30.0, "quality": 0.4}
        >>> draw_runs([row], ["A"], "quality", title="Q", form=".3f").description
        'Q by epoch: a line for each of 1 runs.'
    """
    rows = list(rows)
    unit, unit_seconds = choose_time_unit(max((row["seconds"] or 0.0 for row in rows), default=0.0))
    x, by = make_epoch_axis(), "epoch"
    if across == "seconds":
        by = "training time"
        x = alt.X("time:Q", title=f"{by} ({unit})", axis=alt.Axis(tickCount=6))
    axis = alt.Axis(format="~%" if form.endswith("%") else NUMBER, tickCount=6)
    base = (
        start_chart(dataset, height=240)
        .transform_filter(f"isValid(datum.{field}) && isValid(datum.{across})")
        .transform_calculate(time=f"datum.seconds / {unit_seconds}")
        .encode(
            x=x,
            y=alt.Y(f"{field}:Q", title=title, axis=axis, scale=alt.Scale(zero=False)),
            color=encode_colour(runs, "run", lines=True),
        )
    )
    bands = [base.mark_area(opacity=0.15, aria=False).encode(y2=f"{down_to}:Q")] if down_to else []
    # With round ends, a run of a single epoch is a dot and not nothing.
    line = base.mark_line(strokeCap="round", strokeWidth=2).encode(
        strokeDash=encode_dash(runs, "run")
    )
    # A line has one tooltip for all its length: invisible points have one each.
    points = base.mark_point(opacity=0, size=80, aria=False).encode(
        tooltip=[
            alt.Tooltip("run:N", title="run"),
            alt.Tooltip("name:N", title="folder"),
            alt.Tooltip("epoch:Q", title="epoch"),
            alt.Tooltip("seconds:Q", title="seconds of training", format=".3~s"),
            alt.Tooltip(f"{field}:Q", title=title, format=form),
        ]
    )
    description = f"{title} by {by}: a line for each of {len(runs)} runs."
    return finish_chart(alt.LayerChart(layer=[*bands, line, points]), rows, description)
