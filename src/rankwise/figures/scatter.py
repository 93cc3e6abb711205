"""One number of each run against another, coloured by optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from rankwise.figures import series
from rankwise.figures.scales import score_format, score_name, score_y
from rankwise.figures.style import Rows, chart, finished

__all__ = ["gap_by_quality", "score_by_quality"]


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
