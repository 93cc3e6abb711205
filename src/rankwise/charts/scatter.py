"""One number of each run, or network, against another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from rankwise.charts import series
from rankwise.charts.scales import score_format, score_name, score_y
from rankwise.charts.style import INK, SEQUENTIAL, Rows, chart, finished

__all__ = ["gap_by_quality", "network_scatter", "score_by_quality"]


def score_by_quality(
    rows: Rows, optimizers: Sequence[str], *, score: str = "accuracy", name: str = "runs"
) -> alt.LayerChart:
    """The test's score of each run against its network's quality Q.

    Args:
        rows: With "setting", "optimizer", "seed", "quality" and "score".
        optimizers: Those to name, in the legend's order.
        score: Which score it is.
        name: What a page calls the rows.

    Example:
        >>> row = {"setting": "sgd", "optimizer": "sgd", "seed": 0, "quality": 0.5, "score": 0.9}
        >>> score_by_quality([row], ["sgd"]).save("quality.png")  # doctest: +SKIP
    """
    said = f"{score_name(score)} of each run against its quality Q"
    figure = _scatter(chart(name, height=280), optimizers, "score", score_name(score), score)
    return finished(figure, series.placed(rows, optimizers, "optimizer"), said)


def gap_by_quality(
    rows: Rows, optimizers: Sequence[str], *, score: str = "accuracy", name: str = "runs"
) -> alt.LayerChart:
    """The generalisation gap of each run against its network's quality Q.

    Args:
        rows: As for `score_by_quality`, with "gap": by how much training is better than the test.
        optimizers: Those to name, in the legend's order.
        score: Which score the gap is of.
        name: What a page calls the rows.

    Example:
        >>> row = {"setting": "sgd", "optimizer": "sgd", "seed": 0, "quality": 0.5, "gap": 0.1}
        >>> gap_by_quality([row], ["sgd"]).save("gap.png")  # doctest: +SKIP
    """
    title = f"generalisation gap ({score})"
    said = f"Generalisation gap of each run against its quality Q, by {score}"
    figure = _scatter(chart(name, height=280), optimizers, "gap", title, score)
    return finished(figure, series.placed(rows, optimizers, "optimizer"), said)


def network_scatter(
    rows: Rows, across: tuple[str, str], up: tuple[str, str], *, name: str = "networks"
) -> alt.Chart:
    """A number of each network against another, coloured by how much of it is of rank 1.

    Args:
        rows: With "network", "group", "rank_one" (0 … 1) and the two fields.
        across: The field to the right, and what it is called.
        up: The field upwards, and what it is called.
        name: What a page calls the rows.

    Example:
        >>> row = {"network": "a.pt", "group": "a", "rank_one": 0.1, "q": 0.5, "accuracy": 91.2}
        >>> figure = network_scatter([row], ("q", "quality Q"), ("accuracy", "test accuracy"))
        >>> figure.description
        'test accuracy of each network against its quality Q'
    """
    free: dict[str, Any] = {"scale": alt.Scale(zero=False), "axis": alt.Axis(tickCount=6)}
    figure = (
        chart(name, height=280)
        .transform_filter(f"isValid(datum.{across[0]}) && isValid(datum.{up[0]})")
        # A line around each: the scale's dark end is hard to see on a dark ground.
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
    return finished(figure, rows, f"{up[1]} of each network against its {across[1]}")


def _scatter(
    base: alt.Chart, optimizers: Sequence[str], field: str, title: str, score: str
) -> alt.LayerChart:
    named = list(optimizers[: series.NAMED])
    base = base.transform_filter(f"isValid(datum.{field})")
    known, others = series.parted(base, optimizers)
    position: dict[str, Any] = {
        "x": alt.X(
            "quality:Q", title="quality Q", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6)
        ),
        "y": score_y(field, score).title(title),
        "tooltip": [
            alt.Tooltip("setting:N"),
            alt.Tooltip("seed:Q"),
            alt.Tooltip("quality:Q", title="Q", format=".3f"),
            alt.Tooltip(f"{field}:Q", title=title, format=score_format(score)),
        ],
    }
    picked = series.picked("optimizer")
    marks = [
        known.mark_point(filled=True, size=60)
        .encode(
            **position,
            color=series.colour(named, "optimizer"),
            shape=series.shape(named, "optimizer"),
            opacity=alt.condition(picked, alt.value(0.85), alt.value(0.1)),
        )
        .add_params(picked),
    ]
    if others is not None:
        grey = others.mark_point(filled=True, size=45, color=series.ORDINARY)
        marks.insert(0, grey.encode(**position))
    return alt.LayerChart(layer=marks)
