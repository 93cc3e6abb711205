"""How long an epoch takes: a bar for each setting, by what the time goes into."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from rankwise.charts import series
from rankwise.charts.style import CATEGORIES, INK, Rows, chart, finished

__all__ = ["PARTS", "epoch_times"]

PARTS = ("step", "data", "probe", "probe for the record only")


def epoch_times(rows: Rows, settings: Sequence[str], *, name: str = "times") -> alt.LayerChart:
    """Seconds an epoch, as a mean over epochs and trials.

    Args:
        rows: With "setting", "part" (one of `PARTS`) and "seconds"; rows whose part is "total"
            have "low" and "high" as well: the standard deviation over trials about the whole.
        settings: In the order of the bars.
        name: What a page calls the rows.

    Example:
        >>> row = {"setting": "sgd", "part": "step", "seconds": 4.2}
        >>> epoch_times([row], ["sgd"]).save("times.png")  # doctest: +SKIP
    """
    base = chart(name, height=40 + 24 * len(settings))
    axis = alt.Axis(labelLimit=170, grid=False)
    by_place = alt.EncodingSortField(field="place", op="min", order="ascending")
    y = alt.Y("setting:N", title=None, sort=by_place, axis=axis)
    scale = alt.Scale(domain=list(PARTS), range=[CATEGORIES[n] for n in (0, 4, 1, 6)])
    part = "{" + ", ".join(f"'{part}': {n}" for n, part in enumerate(PARTS)) + "}[datum.part]"
    legend = alt.Legend(title=None, columns=2)
    ticks = alt.Axis(tickCount=6)
    bars = (
        base.transform_filter(alt.FieldOneOfPredicate(field="part", oneOf=list(PARTS)))
        .transform_calculate(part_place=part)
        .mark_bar()
        .encode(
            x=alt.X("seconds:Q", title="seconds an epoch", stack="zero", axis=ticks),
            y=y,
            color=alt.Color("part:N", scale=scale, legend=legend),
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
    said = f"Seconds an epoch of {len(settings)} settings, in parts"
    return finished(alt.LayerChart(layer=[bars, spread]), series.placed(rows, settings), said)
