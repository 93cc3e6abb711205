"""Charts of many runs: curves over trials, Q against a score, sweeps of options, epoch times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from rankwise.charts.axes import (
    NUMBER,
    choose_time_unit,
    get_score_format,
    get_score_name,
    make_epoch_axis,
    make_score_axis,
)
from rankwise.charts.style import (
    CATEGORIES,
    INK,
    NAMED,
    SEQUENTIAL,
    UNNAMED,
    Rows,
    encode_colour,
    encode_dash,
    encode_shape,
    finish_chart,
    number_series,
    select_in_legend,
    split_series,
    start_chart,
)

# What options are called on an axis, and whether their values are compared by ratio.
OPTIONS = {
    "lr": ("learning rate", True),
    "weight_decay": ("weight decay", True),
    "momentum": ("momentum", False),
    "beta": ("β", False),
    "batch_size": ("batch size", True),
}
TIME_PARTS = ("step", "data", "probe", "probe for the record only")


def draw_score_curves(
    rows: Rows,
    settings: Sequence[str],
    *,
    score: str = "accuracy",
    across: str = "epoch",
    dataset: str = "curves",
) -> alt.LayerChart:
    """Draw the test score: a line for each setting's mean, a band over its trials.

    Rows have "setting", "epoch" or "seconds" (`across`), "mean", "low", "high" and "n". Settings
    come with the best first; the first `NAMED` get a colour and a name.
    """
    rows, base = list(rows), start_chart(dataset, height=280)
    x, tooltip = make_epoch_axis(), alt.Tooltip("epoch:Q", title="epoch")
    if across == "seconds":
        unit, seconds = choose_time_unit(max((row["seconds"] for row in rows), default=0.0))
        base = base.transform_calculate(time=f"datum.seconds / {seconds}")
        axis, scale = alt.Axis(grid=False, tickCount=8), alt.Scale(nice=False)
        x = alt.X("time:Q", title=f"training time ({unit})", axis=axis, scale=scale)
        tooltip = alt.Tooltip("time:Q", title=unit, format=".3~g")
    names, selected = list(settings[:NAMED]), select_in_legend("setting")
    named, unnamed = split_series(base, settings)
    y, colour = _make_band_axis(rows, names, score), encode_colour(names, "setting", lines=True)
    # A line has one tooltip for all its length: invisible points have one each.
    points = base.mark_point(opacity=0, size=80, aria=False, clip=True)
    marks = [
        named.mark_area(aria=False, clip=True).encode(
            x=x,
            y=alt.Y("low:Q"),
            y2="high:Q",
            color=colour,
            opacity=alt.condition(selected, alt.value(0.15), alt.value(0.02)),
        ),
        named.mark_line(strokeWidth=2, clip=True)
        .encode(
            x=x,
            y=y,
            color=colour,
            strokeDash=encode_dash(names, "setting"),
            opacity=alt.condition(selected, alt.value(1), alt.value(0.15)),
        )
        .add_params(selected),
        points.encode(x=x, y=y, tooltip=["setting:N", tooltip, *_span_tooltip(score)]),
    ]
    if unnamed is not None:
        grey = unnamed.mark_line(color=UNNAMED, strokeWidth=1, clip=True)
        marks.insert(0, grey.encode(x=x, y=y, detail="setting:N"))
    by = {"epoch": "epochs", "seconds": "time"}[across]
    description = f"{get_score_name(score)} against {by}, for {len(settings)} settings"
    return finish_chart(
        alt.LayerChart(layer=marks), number_series(rows, settings, "setting"), description
    )


def draw_by_quality(
    rows: Rows,
    optimizers: Sequence[str],
    field: str = "score",
    *,
    score: str = "accuracy",
    dataset: str = "runs",
) -> alt.LayerChart:
    """Draw the test score, or the generalisation gap, of each run against its Q.

    Rows have "setting", "optimizer", "seed", "quality" and the field: "score", or "gap", which is
    how much better the score is in training than in the test.
    """
    title = get_score_name(score) if field == "score" else f"generalisation gap ({score})"
    names, selected = list(optimizers[:NAMED]), select_in_legend("optimizer")
    base = start_chart(dataset, height=280).transform_filter(f"isValid(datum.{field})")
    named, unnamed = split_series(base, optimizers)
    free, axis = alt.Scale(zero=False), alt.Axis(tickCount=6)
    position: dict[str, Any] = {
        "x": alt.X("quality:Q", title="Q", scale=free, axis=axis),
        "y": make_score_axis(field, score).title(title),
        "tooltip": [
            alt.Tooltip("setting:N"),
            alt.Tooltip("seed:Q"),
            alt.Tooltip("quality:Q", title="Q", format=".3f"),
            alt.Tooltip(f"{field}:Q", title=title, format=get_score_format(score)),
        ],
    }
    marks = [
        named.mark_point(filled=True, size=60)
        .encode(
            **position,
            color=encode_colour(names, "optimizer"),
            shape=encode_shape(names, "optimizer"),
            opacity=alt.condition(selected, alt.value(0.85), alt.value(0.1)),
        )
        .add_params(selected),
    ]
    if unnamed is not None:
        grey = unnamed.mark_point(filled=True, size=45, color=UNNAMED)
        marks.insert(0, grey.encode(**position))
    description = f"{title} of each run against its quality Q"
    return finish_chart(
        alt.LayerChart(layer=marks), number_series(rows, optimizers, "optimizer"), description
    )


def draw_networks(
    rows: Rows, across: tuple[str, str], up: tuple[str, str], *, dataset: str = "networks"
) -> alt.Chart:
    """Draw a number of each network against another, coloured by its share of rank 1.

    Rows have "network", "group", "rank_one" (0 … 1) and the two fields; `across` and `up` are a
    field and what it is called.

    Example:
        >>> row = {"network": "a.pt", "group": "a", "rank_one": 0.1, "q": 0.5, "accuracy": 91.2}
        >>> draw_networks([row], ("q", "quality Q"), ("accuracy", "test accuracy")).description
        'test accuracy of each network against its quality Q'
    """
    free: dict[str, Any] = {"scale": alt.Scale(zero=False), "axis": alt.Axis(tickCount=6)}
    chart = (
        start_chart(dataset, height=280)
        .transform_filter(f"isValid(datum.{across[0]}) && isValid(datum.{up[0]})")
        # A line around each: the scale's dark end is hard to see on a dark background.
        .mark_point(filled=True, size=60, opacity=0.85, stroke=INK, strokeWidth=0.7)
        .encode(
            x=alt.X(f"{across[0]}:Q", title=across[1], **free),
            y=alt.Y(f"{up[0]}:Q", title=up[1], **free),
            color=alt.Color(
                "rank_one:Q",
                title="unfoldings of rank 1",
                scale=alt.Scale(scheme=SEQUENTIAL),
                legend=alt.Legend(format="~%", gradientLength=160),
            ),
            tooltip=[
                alt.Tooltip("network:N"),
                alt.Tooltip("group:N"),
                *(alt.Tooltip(f"{f}:Q", title=t, format=".4~g") for f, t in (across, up)),
                alt.Tooltip("rank_one:Q", title="unfoldings of rank 1", format=".0%"),
            ],
        )
    )
    return finish_chart(chart, rows, f"{up[1]} of each network against its {across[1]}")


def draw_score_by_option(
    rows: Rows,
    series: Sequence[str],
    *,
    option: str,
    score: str = "accuracy",
    dataset: str = "sweep",
) -> alt.LayerChart:
    """Draw the score against one of `OPTIONS`, mean and standard deviation over trials.

    Rows have "series", "value" (of the option), "mean", "low", "high" and "n". The runs of a series
    differ in this option and seed only; the best series comes first.
    """
    rows = list(rows)
    title, _ = OPTIONS[option]
    x = _make_option_axis(option, sorted({row["value"] for row in rows}))
    named, unnamed = split_series(start_chart(dataset, height=260), series)
    names, selected = list(series[:NAMED]), select_in_legend("series")
    position = {"x": x, "y": make_score_axis("mean", score)}
    look = {
        "color": encode_colour(names, "series", lines=True),
        "opacity": alt.condition(selected, alt.value(1), alt.value(0.15)),
    }
    tooltip = [
        alt.Tooltip("series:N", title="setting"),
        alt.Tooltip("value:Q", title=title, format="~g"),
        *_span_tooltip(score),
    ]
    marks = [
        named.mark_rule(strokeWidth=1.5).encode(
            x=x, y=make_score_axis("low", score), y2="high:Q", **look
        ),
        named.mark_line(strokeWidth=2)
        .encode(**position, strokeDash=encode_dash(names, "series"), **look)
        .add_params(selected),
        named.mark_point(filled=True, size=50).encode(**position, tooltip=tooltip, **look),
    ]
    if unnamed is not None:
        grey = unnamed.mark_line(color=UNNAMED, strokeWidth=1)
        marks.insert(0, grey.encode(**position, detail="series:N"))
    description = f"{get_score_name(score)} against {title}, for {len(series)} series"
    return finish_chart(
        alt.LayerChart(layer=marks), number_series(rows, series, "series"), description
    )


def draw_score_map(
    rows: Rows,
    *,
    across: str,
    up: str,
    score: str = "accuracy",
    lower_is_better: bool = False,
    dataset: str = "map",
) -> alt.LayerChart:
    """Draw the score where two of `OPTIONS` vary, as a map with the number in each cell.

    Rows have "across", "up" (the options' values), "mean", "spread", "n" and "share": 0 for the
    worst cell, 1 for the best.
    """
    rows = list(rows)
    axis = alt.Axis(format=NUMBER, labelAngle=0, labelOverlap=True)
    height = 40 + 34 * len({row["up"] for row in rows})
    form, is_share = get_score_format(score), score == "accuracy"
    across_title, up_title = OPTIONS[across][0], OPTIONS[up][0]
    base = start_chart(dataset, height=height).encode(
        x=alt.X("across:O", title=across_title, axis=axis),
        y=alt.Y("up:O", title=up_title, sort="descending", axis=axis),
        tooltip=[
            alt.Tooltip("across:Q", title=across_title, format="~g"),
            alt.Tooltip("up:Q", title=up_title, format="~g"),
            alt.Tooltip("mean:Q", format=form),
            alt.Tooltip("spread:Q", title="standard deviation", format=form),
            alt.Tooltip("n:Q"),
        ],
    )
    colour = alt.Color(
        "mean:Q",
        title=get_score_name(score),
        scale=alt.Scale(scheme=SEQUENTIAL, reverse=lower_is_better),
        legend=alt.Legend(format="~%" if is_share else NUMBER, gradientLength=180),
    )
    contrast = alt.condition("datum.share > 0.45", alt.value("#111111"), alt.value("#ffffff"))
    text = alt.Text("mean:Q", format=".1%" if is_share else ".3~g")
    marks = [base.mark_rect().encode(color=colour), base.mark_text().encode(text, color=contrast)]
    description = f"Map of {get_score_name(score)} by {across_title} and {up_title}"
    return finish_chart(alt.LayerChart(layer=marks), rows, description)


def draw_epoch_times(
    rows: Rows, settings: Sequence[str], *, dataset: str = "times"
) -> alt.LayerChart:
    """Draw seconds per epoch, as a mean over epochs and trials: a bar for each setting.

    Rows have "setting", "part" (one of `TIME_PARTS`) and "seconds"; rows whose part is "total" have
    "low" and "high" as well: the standard deviation over trials about the whole.
    """
    base = start_chart(dataset, height=40 + 24 * len(settings))
    by_place = alt.EncodingSortField(field="place", op="min", order="ascending")
    y = alt.Y("setting:N", title=None, sort=by_place, axis=alt.Axis(labelLimit=170, grid=False))
    scale = alt.Scale(domain=list(TIME_PARTS), range=[CATEGORIES[n] for n in (0, 4, 1, 6)])
    numbers = ", ".join(f"'{part}': {number}" for number, part in enumerate(TIME_PARTS))
    bars = (
        base.transform_filter(alt.FieldOneOfPredicate(field="part", oneOf=list(TIME_PARTS)))
        .transform_calculate(part_place=f"{{{numbers}}}[datum.part]")
        .mark_bar()
        .encode(
            x=alt.X(
                "seconds:Q", title="seconds per epoch", stack="zero", axis=alt.Axis(tickCount=6)
            ),
            y=y,
            color=alt.Color("part:N", scale=scale, legend=alt.Legend(title=None, columns=2)),
            order=alt.Order("part_place:Q"),
            tooltip=[
                alt.Tooltip("setting:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("seconds:Q", format=".3~g"),
            ],
        )
    )
    spread = (
        base.transform_filter(alt.FieldEqualPredicate(field="part", equal="total"))
        .mark_rule(color=INK, strokeWidth=1.5)
        .encode(x=alt.X("low:Q"), x2="high:Q", y=y)
    )
    description = f"Seconds per epoch of {len(settings)} settings, in parts"
    rows = number_series(rows, settings, "setting")
    return finish_chart(alt.LayerChart(layer=[bars, spread]), rows, description)


def _make_band_axis(
    rows: Sequence[Mapping[str, Any]], settings: Sequence[str], score: str
) -> alt.Y:
    """The score upwards, without the first fifth of each setting, where all are alike."""
    late: list[Mapping[str, Any]] = []
    for setting in settings:
        own = [row for row in rows if row["setting"] == setting]
        late += own[len(own) // 5 :]
    span = {"domain": [min(r["low"] for r in late), max(r["high"] for r in late)]} if late else {}
    kind = {"type": "log"} if score == "perplexity" else {}
    return make_score_axis("mean", score, **span, **kind)


def _make_option_axis(option: str, values: Sequence[float]) -> alt.X:
    title, by_ratio = OPTIONS[option]
    axis = alt.Axis(values=values, format=NUMBER, grid=False, labelOverlap=True, labelAngle=0)
    if by_ratio and values and values[0] <= 0:
        # There is no ratio to 0: the values are drawn side by side.
        return alt.X("value:O", title=title, scale=alt.Scale(padding=0.2), axis=axis)
    kind: dict[str, Any] = {"type": "log"} if by_ratio else {"zero": False}
    scale = alt.Scale(nice=False, padding=12, **kind)
    return alt.X("value:Q", title=title, scale=scale, axis=axis)


def _span_tooltip(score: str) -> list[alt.Tooltip]:
    form = get_score_format(score)
    span = [alt.Tooltip(f"{field}:Q", format=form) for field in ("mean", "low", "high")]
    return [*span, alt.Tooltip("n:Q")]
