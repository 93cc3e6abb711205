"""A score against epochs or time: a line for each setting's mean, a band over its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from rankwise.charts import series
from rankwise.charts.axes import across_axis
from rankwise.charts.scales import score_format, score_name, score_y, time_unit
from rankwise.charts.style import Rows, chart, finished

__all__ = ["score_by_epoch", "score_by_time"]


def score_by_epoch(
    rows: Rows, settings: Sequence[str], *, score: str = "accuracy", name: str = "by-epoch"
) -> alt.LayerChart:
    """The test's score against epochs.

    Args:
        rows: With "setting", "epoch", "mean", "low", "high" and "n".
        settings: The settings, the best first; the first `series.NAMED` get a colour and a name.
        score: Which score it is.
        name: What a page calls the rows.

    Example:
        >>> row = {"setting": "sgd", "epoch": 1, "mean": 0.5, "low": 0.4, "high": 0.6, "n": 3}
        >>> score_by_epoch([row], ["sgd"]).save("curves.png")  # doctest: +SKIP
    """
    rows = list(rows)
    base = chart(name, height=280)
    x = across_axis()
    tip = alt.Tooltip("epoch:Q", title="epoch")
    said = f"{score_name(score)} against epochs, for {len(settings)} settings"
    y = _y(rows, settings, score)
    figure = _bands(base, (x, y), tip, settings, score)
    return finished(figure, series.placed(rows, settings), said)


def score_by_time(
    rows: Rows, settings: Sequence[str], *, score: str = "accuracy", name: str = "by-time"
) -> alt.LayerChart:
    """The test's score against the time spent on training.

    Args:
        rows: As for `score_by_epoch`, with "seconds" in the place of "epoch".
        settings: The settings, the best first.
        score: Which score it is.
        name: What a page calls the rows.

    Example:
        >>> row = {"setting": "sgd", "seconds": 9, "mean": 0.5, "low": 0.4, "high": 0.6, "n": 3}
        >>> score_by_time([row], ["sgd"]).save("curves.png")  # doctest: +SKIP
    """
    rows = list(rows)
    unit, seconds = time_unit(max((row["seconds"] for row in rows), default=0.0))
    base = chart(name, height=280)
    base = base.transform_calculate(time=f"datum.seconds / {seconds}")
    title = f"time spent on training ({unit})"
    x = alt.X(
        "time:Q", title=title, axis=alt.Axis(grid=False, tickCount=8), scale=alt.Scale(nice=False)
    )
    tip = alt.Tooltip("time:Q", title=unit, format=".3~g")
    said = f"{score_name(score)} against time, for {len(settings)} settings"
    y = _y(rows, settings, score)
    figure = _bands(base, (x, y), tip, settings, score)
    return finished(figure, series.placed(rows, settings), said)


def _y(rows: Sequence[Mapping[str, Any]], settings: Sequence[str], score: str) -> alt.Y:
    """The score upwards, without what each setting shows in its first fifth: that is all alike."""
    late: list[Mapping[str, Any]] = []
    for setting in settings[: series.NAMED]:
        own = [row for row in rows if row["setting"] == setting]
        late += own[len(own) // 5 :]
    span = {"domain": [min(r["low"] for r in late), max(r["high"] for r in late)]} if late else {}
    return score_y("mean", score, **span, **({"type": "log"} if score == "perplexity" else {}))


def _bands(
    base: alt.Chart,
    axes: tuple[alt.X, alt.Y],
    tip: alt.Tooltip,
    settings: Sequence[str],
    score: str,
) -> alt.LayerChart:
    (x, y), named = axes, list(settings[: series.NAMED])
    colour, picked = series.colour(named, lines=True), series.picked()
    known, others = series.parted(base, settings)
    band = known.mark_area(aria=False, clip=True)
    line = known.mark_line(strokeWidth=2, clip=True)
    # A line has one tooltip for all its length: points that are not seen have one each.
    points = base.mark_point(opacity=0, size=80, aria=False, clip=True)
    form = score_format(score)
    span = [alt.Tooltip(f"{field}:Q", format=form) for field in ("mean", "low", "high")]
    marks = [
        band.encode(
            x=x,
            y=alt.Y("low:Q"),
            y2="high:Q",
            color=colour,
            opacity=alt.condition(picked, alt.value(0.15), alt.value(0.02)),
        ),
        line.encode(
            x=x,
            y=y,
            color=colour,
            strokeDash=series.dash(named),
            opacity=alt.condition(picked, alt.value(1), alt.value(0.15)),
        ).add_params(picked),
        points.encode(x=x, y=y, tooltip=["setting:N", tip, *span, "n:Q"]),
    ]
    if others is not None:
        grey = others.mark_line(color=series.ORDINARY, strokeWidth=1, clip=True)
        marks.insert(0, grey.encode(x=x, y=y, detail="setting:N"))
    return alt.LayerChart(layer=marks)
