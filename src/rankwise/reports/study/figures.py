"""The figures of one network on one data set, and a reason for each that is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankwise.charts.axes import get_score_name
from rankwise.charts.study import (
    OPTIONS,
    draw_by_quality,
    draw_epoch_times,
    draw_score_by_option,
    draw_score_curves,
    draw_score_map,
)
from rankwise.charts.style import NAMED
from rankwise.reports.page import Picture, Words
from rankwise.reports.study.rows import epoch_rows, quality_rows, time_rows, wall_clock_rows
from rankwise.reports.study.sweeps import Grid, Sweep, grids, sweep
from rankwise.reports.study.words import capital, correlation_words, short_correlation
from rankwise.study.stats import Correlation, correlate
from rankwise.study.table import Trials

__all__ = ["Drawn", "pictures"]

_MOST_BARS = 20
_MOST_MAPS = 4
_FEWEST = 3  # points that a scatter is drawn of
_CLOCK = (
    "The same against the time spent on training: steps, data, and the probe where the optimizer "
    "needs it; tests and saving are not counted."
)


@dataclass
class Drawn:
    """What a section will hold.

    Attributes:
        shown: The pictures.
        missing: Why others are left out, a sentence each.
        correlation: What the verdict says about Q.
    """

    shown: list[Picture] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    correlation: str = ""

    @property
    def items(self) -> tuple[Words | Picture, ...]:
        """The pictures, and one folded line for what is left out."""
        if not self.shown:
            return ()
        reasons = Words(tuple(self.missing), summary="What is not shown here, and why")
        return (*self.shown, *([reasons] if self.missing else []))


def pictures(found: Sequence[Trials], number: int) -> Drawn:
    """All figures that these settings have what it takes for.

    Args:
        found: Settings of one network and data that have a score, the best first.
        number: The section's, which keeps the rows of two sections apart.
    """
    drawn = Drawn()
    if not found:
        return drawn
    _curves(drawn, found, number)
    _qualities(drawn, found, number)
    _sweeps(drawn, found, number)
    _maps(drawn, found, number)
    _times(drawn, found, number)
    return drawn


def _curves(drawn: Drawn, found: Sequence[Trials], number: int) -> None:
    score, settings = found[0].score, [one.setting for one in found]
    many = (
        f" The best {NAMED} of {len(settings)} settings have a colour, the others are grey."
        if len(settings) > NAMED
        else ""
    )
    reading = (
        "Line: the mean over trials that finished; band: from the worst to the best trial, as far "
        f"as all trials go. The first epochs may lie below or above the frame.{many} Click a name "
        "to see it alone."
    )
    by_epoch, by_time = epoch_rows(found), wall_clock_rows(found)
    title = capital(get_score_name(score))
    if len({row["epoch"] for row in by_epoch}) < 2:
        drawn.missing.append("Curves: no setting has two epochs in all its trials.")
        return
    figure = draw_score_curves(by_epoch, settings, score=score, dataset=f"by-epoch-{number}")
    drawn.shown.append(Picture(f"{title} against epochs", figure, reading))
    drawn.missing += _absent(f"{title} against epochs", by_epoch, settings, "epoch in common")
    if by_time:
        figure = draw_score_curves(
            by_time, settings, score=score, across="seconds", dataset=f"by-time-{number}"
        )
        drawn.shown.append(Picture(f"{title} against time", figure, _CLOCK))
    drawn.missing += _absent(f"{title} against time", by_time, settings, "time in common")


def _absent(
    title: str, rows: Sequence[Mapping[str, Any]], settings: Sequence[str], what: str
) -> list[str]:
    """A sentence about settings that a figure does not show."""
    shown = {row["setting"] for row in rows}
    names = [setting for setting in settings if setting not in shown]
    return [f"{title}: without {', '.join(names)}, whose trials have no {what}."] if names else []


def _qualities(drawn: Drawn, found: Sequence[Trials], number: int) -> None:
    rows = quality_rows(found)
    if len(rows) < _FEWEST:
        drawn.missing.append(f"Q against the score: {len(rows)} of the runs have a Q, it takes 3.")
        return
    score, name = found[0].score, f"runs-{number}"
    what = get_score_name(score)
    optimizers = list(dict.fromkeys(row["optimizer"] for row in rows))
    of_score = _correlated(rows, "score")
    drawn.correlation = short_correlation(of_score, what)
    figure = draw_by_quality(rows, optimizers, score=score, dataset=name)
    less = " Less is better here." if found[0].lower_is_better else ""
    said = correlation_words(of_score, what)
    reading = f"A point for each run, after its last epoch. {said}{less}"
    drawn.shown.append(Picture(f"Q and {what}", figure, reading))
    if sum(row["gap"] is not None for row in rows) < _FEWEST:
        drawn.missing.append(f"Generalisation gap: fewer than 3 runs have a training {score}.")
        return
    said = correlation_words(_correlated(rows, "gap"), "generalisation gap")
    reading = (
        f"By how much {score} is better in training than in the test; training is scored while it "
        f"goes on, on data as augmented. {said}"
    )
    figure = draw_by_quality(rows, optimizers, "gap", score=score, dataset=name)
    drawn.shown.append(Picture("Q and generalisation gap", figure, reading))


def _correlated(rows: Sequence[Mapping[str, Any]], field: str) -> tuple[Correlation, ...]:
    """How Q goes with a field; trials of a setting are not independent of each other."""
    quality, other, settings = (
        [row[name] for row in rows] for name in ("quality", field, "setting")
    )
    return correlate(quality, other, groups=settings)


def _sweeps(drawn: Drawn, found: Sequence[Trials], number: int) -> None:
    swept = {option: sweep(found, option) for option in OPTIONS}
    drawn.shown += [_sweep(one, found[0].score, number) for one in swept.values() if one]
    fixed = [OPTIONS[option][0] for option, one in swept.items() if not one]
    if fixed:
        names = ", ".join(fixed)
        drawn.missing.append(f"These do not vary with all else the same: {names}.")


def _sweep(swept: Sweep, score: str, number: int) -> Picture:
    title = OPTIONS[swept.option][0]
    name = f"{swept.option}-{number}"
    figure = draw_score_by_option(
        swept.rows, swept.series, option=swept.option, score=score, dataset=name
    )
    reading = (
        f"Only {title} and seed differ along a line. Point: the mean over trials; bar: one "
        "standard deviation to each side, where there are two trials or more."
    )
    return Picture(f"{capital(get_score_name(score))} against {title}", figure, reading)


def _maps(drawn: Drawn, found: Sequence[Trials], number: int) -> None:
    all_maps = grids(found)
    for place, grid in enumerate(all_maps[:_MOST_MAPS]):
        drawn.shown.append(_map(grid, found[0], f"map-{number}-{place}"))
    if not all_maps:
        drawn.missing.append("Grid search: no two options vary over a grid.")
    elif len(all_maps) > _MOST_MAPS:
        drawn.missing.append(f"{len(all_maps) - _MOST_MAPS} more maps of two options.")


def _map(grid: Grid, first: Trials, name: str) -> Picture:
    across, up = OPTIONS[grid.across][0], OPTIONS[grid.up][0]
    figure = draw_score_map(
        grid.rows,
        across=grid.across,
        up=grid.up,
        score=first.score,
        lower_is_better=first.lower_is_better,
        dataset=name,
    )
    reading = (
        "The mean over trials in each cell; the brighter, the better. The best at the rim means "
        "that the search should go on beyond it; an empty cell has no finished trial."
    )
    return Picture(f"{grid.label}: {across} and {up}", figure, reading)


def _times(drawn: Drawn, found: Sequence[Trials], number: int) -> None:
    rows = time_rows(found)
    names = list(dict.fromkeys(row["setting"] for row in rows))
    shown = names[:_MOST_BARS]
    more = f" {_MOST_BARS} of {len(names)} are shown." if len(names) > _MOST_BARS else ""
    reading = (
        "Mean over epochs and runs; thin line: one standard deviation over runs to each side. "
        "Settings that differ in their rates alone share a bar. A probe for the record only is no "
        f"part of the optimizer and not counted in times elsewhere.{more}"
    )
    kept = [row for row in rows if row["setting"] in shown]
    figure = draw_epoch_times(kept, shown, dataset=f"times-{number}")
    drawn.shown.append(Picture("Time of an epoch", figure, reading))
