"""What a run gains and what it costs: losses and scores by epoch or by time, and seconds."""

from __future__ import annotations

import altair as alt

from rankwise.charts.axes import across_axis, epoch_axis, value_axis
from rankwise.charts.run_rows import PARTS
from rankwise.charts.style import CATEGORIES, Rows, chart, finished
from rankwise.errors import ArgumentError

__all__ = ["progress_figure", "score_scale", "time_figure"]

SHARES = ("accuracy", "top5")  # shown in percent
HUGE = 100  # losses that differ by more than this factor are drawn on a log scale
SETS = ("train", "test")
COLOURS = {"train": CATEGORIES[1], "test": CATEGORIES[0]}
TITLES = {"generator_loss": "generator's loss", "frechet": "Fréchet distance"}


def progress_figure(
    rows: Rows, score: str, *, name: str = "epochs", across: str = "epoch"
) -> alt.Chart:
    """A loss or a score from epoch to epoch, on the training and on the test set.

    Args:
        rows: epoch, seconds, set, score and value.
        score: Which score: "loss", "accuracy", "perplexity", ….
        name: What a page calls the rows.
        across: "epoch" or "seconds" of training.

    Raises:
        ArgumentError: If `across` is neither.
    """
    if across not in ("epoch", "seconds"):
        raise ArgumentError(f'across should be "epoch" or "seconds", got {across!r}.')
    rows = list(rows)
    shown = {row["set"] for row in rows if row["score"] == score}
    sets = [part for part in SETS if part in shown]
    colours = alt.Scale(domain=sets, range=[COLOURS[part] for part in sets])
    title = TITLES.get(score, score)
    scale, form = score_scale(rows, score), "%" if score in SHARES else "~g"
    figure = (
        chart(name, height=240)
        .transform_filter(alt.FieldEqualPredicate(field="score", equal=score))
        .mark_line(point=alt.OverlayMarkDef(size=14))
        .encode(
            across_axis(across),
            alt.Y("value:Q", title=title, scale=scale, axis=value_axis(scale, form)),
            alt.Color("set:N", title=None, scale=colours),
            tooltip=_tooltip(score),
        )
    )
    where = " and ".join(sets) or "test"
    description = f"{title.capitalize()} on the {where} set by {across}."
    return finished(figure, rows, description)


def time_figure(rows: Rows, *, name: str = "time") -> alt.Chart:
    """Where every epoch's seconds went: data, steps, probes, evaluation, saving.

    Args:
        rows: epoch, part and seconds.
        name: What a page calls the rows.
    """
    colours = alt.Scale(domain=list(PARTS), range=list(CATEGORIES[: len(PARTS)]))
    figure = (
        chart(name)
        .mark_bar(aria=False)
        .encode(
            epoch_axis(),
            alt.Y("seconds:Q", title="seconds"),
            alt.Color("part:N", title=None, scale=colours, legend=alt.Legend(columns=len(PARTS))),
            tooltip=[
                alt.Tooltip("epoch:O", title="epoch"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("seconds:Q", title="seconds", format=".3~g"),
            ],
        )
    )
    description = "Bars of each epoch's seconds, by what they were spent on."
    return finished(figure, rows, description)


def score_scale(rows: Rows, score: str) -> alt.Scale:
    """The scale that a score is drawn on: linear, but for what falls by orders of magnitude.

    Args:
        rows: As `progress_figure` takes them.
        score: Which score.
    """
    values = [row["value"] for row in rows if row["score"] == score]
    falls = score not in SHARES and values and min(values) > 0
    if falls and max(values) > HUGE * min(values):
        return alt.Scale(type="log")
    return alt.Scale(zero=score == "loss")


def _tooltip(score: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("set:N", title="set"),
        alt.Tooltip("epoch:O", title="epoch"),
        alt.Tooltip("seconds:Q", title="seconds of training", format=".3~s"),
        alt.Tooltip("value:Q", title=score, format=".2%" if score in SHARES else ".4~g"),
    ]
