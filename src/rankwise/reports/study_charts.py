"""The charts of one network on one data set, and a reason for each that is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankwise._text import format_count
from rankwise.charts.axes import get_score_name
from rankwise.charts.study import (
    OPTIONS,
    draw_by_quality,
    draw_epoch_times,
    draw_score_by_option,
    draw_score_curves,
    draw_score_map,
)
from rankwise.charts.style import NAMED, Chart
from rankwise.reports.page import ChartPanel, Text, capitalize
from rankwise.reports.study_rows import (
    find_grids,
    find_sweep,
    make_curve_rows,
    make_epoch_time_rows,
    make_quality_rows,
    make_timed_curve_rows,
)
from rankwise.study.stats import Correlation, correlate
from rankwise.study.table import Trials

_MOST_BARS = 20
_MOST_MAPS = 4
_FEWEST = 3  # points that a scatter is drawn of
_FEW_SETTINGS = 10  # fewer make an interval rough
_CURVES = (
    "Line: the mean over finished trials; band: from the worst to the best trial, as far as all "
    "trials go. The first epochs may be outside the frame."
)
_TIMED_CURVES = (
    "The same against training time: steps, data, and the probe where the optimizer needs it; "
    "tests and saving are not counted."
)
_MAP = (
    "The mean over trials in each cell; the brighter, the better. A best cell at the edge means "
    "that the search should continue beyond it; an empty cell has no finished trial."
)
_NO_RANKING = "A correlation here says nothing about other networks: don't choose a model by Q."
_TIMES = (
    "Mean over epochs and runs; thin line: one standard deviation over runs to each side. Settings "
    "that differ in their rates only share a bar. A probe for the record only is not part of the "
    "optimizer and not counted in times elsewhere."
)


@dataclass
class StudyCharts:
    """The charts of a section, and why others are left out."""

    panels: list[ChartPanel] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def items(self) -> tuple[Text | ChartPanel, ...]:
        """The charts, and one collapsed text for what is left out."""
        if not self.panels:
            return ()
        reasons = Text(tuple(self.missing), collapsed_under="What is not shown here, and why")
        return (*self.panels, *([reasons] if self.missing else []))

    def add(self, title: str, chart: Chart, caption: str) -> None:
        """Add a chart."""
        self.panels.append(ChartPanel(title, chart, caption))


def draw_study_charts(settings: Sequence[Trials], number: int) -> StudyCharts:
    """Draw all charts that there is data for, from settings that have a score, the best first.

    The section's number keeps the rows of two sections apart.
    """
    charts = StudyCharts()
    if settings:
        _draw_curves(charts, settings, number)
        _draw_sweeps(charts, settings, number)
        _draw_maps(charts, settings, number)
        _draw_times(charts, settings, number)
        _draw_qualities(charts, settings, number)
    return charts


def _draw_curves(charts: StudyCharts, settings: Sequence[Trials], number: int) -> None:
    score, names = settings[0].score, [trials.setting for trials in settings]
    many = f" The best {NAMED} of {len(names)} settings are coloured, the others grey."
    caption = f"{_CURVES}{many if len(names) > NAMED else ''} Click a name to see it alone."
    by_epoch, by_time = make_curve_rows(settings), make_timed_curve_rows(settings)
    title = capitalize(get_score_name(score))
    if len({row["epoch"] for row in by_epoch}) < 2:
        charts.missing.append("Curves: no setting has two epochs in all its trials.")
        return
    chart = draw_score_curves(by_epoch, names, score=score, dataset=f"by-epoch-{number}")
    charts.add(f"{title} against epochs", chart, caption)
    charts.missing += _list_absent(f"{title} against epochs", by_epoch, names, "epoch")
    if by_time:
        chart = draw_score_curves(
            by_time, names, score=score, across="seconds", dataset=f"by-time-{number}"
        )
        charts.add(f"{title} against time", chart, _TIMED_CURVES)
    charts.missing += _list_absent(f"{title} against time", by_time, names, "time")


def _list_absent(
    title: str, rows: Sequence[Mapping[str, Any]], settings: Sequence[str], what: str
) -> list[str]:
    shown = {row["setting"] for row in rows}
    names = ", ".join(setting for setting in settings if setting not in shown)
    return [f"{title}: without {names}, whose trials have no {what} in common."] if names else []


def _draw_qualities(charts: StudyCharts, settings: Sequence[Trials], number: int) -> None:
    rows = make_quality_rows(settings)
    if len(rows) < _FEWEST:
        charts.missing.append(f"Q against the score: {len(rows)} runs have a Q, 3 are needed.")
        return
    score, dataset = settings[0].score, f"runs-{number}"
    what = get_score_name(score)
    optimizers = list(dict.fromkeys(row["optimizer"] for row in rows))
    correlations = _correlate(rows, "score")
    lower = " Lower is better here." if settings[0].lower_is_better else ""
    chart = draw_by_quality(rows, optimizers, score=score, dataset=dataset)
    text = _describe_correlations(correlations, what)
    caption = f"A point per run, after its last epoch. {text}{lower} {_NO_RANKING}"
    charts.add(f"The paper's Q and {what}", chart, caption)
    if sum(row["gap"] is not None for row in rows) < _FEWEST:
        charts.missing.append(f"Generalisation gap: fewer than 3 runs have a training {score}.")
        return
    text = _describe_correlations(_correlate(rows, "gap"), "generalisation gap")
    caption = (
        f"How much better {score} is in training than in the test; training is scored while it "
        f"runs, on augmented data. {text}"
    )
    chart = draw_by_quality(rows, optimizers, "gap", score=score, dataset=dataset)
    charts.add("The paper's Q and generalisation gap", chart, caption)


def _correlate(rows: Sequence[Mapping[str, Any]], field: str) -> tuple[Correlation, ...]:
    """Q against a field; trials of one setting are not independent of each other."""
    quality, other, settings = (
        [row[name] for row in rows] for name in ("quality", field, "setting")
    )
    return correlate(quality, other, groups=settings)


def _draw_sweeps(charts: StudyCharts, settings: Sequence[Trials], number: int) -> None:
    score, fixed = settings[0].score, []
    for option, (title, _) in OPTIONS.items():
        sweep = find_sweep(settings, option)
        if sweep is None:
            fixed.append(title)
            continue
        dataset = f"{option}-{number}"
        chart = draw_score_by_option(
            sweep.rows, sweep.series, option=option, score=score, dataset=dataset
        )
        caption = (
            f"Only {title} and seed differ along a line. Point: the mean over trials; bar: one "
            "standard deviation to each side, where there are two trials or more."
        )
        charts.add(f"{capitalize(get_score_name(score))} against {title}", chart, caption)
    if fixed:
        names = ", ".join(fixed)
        charts.missing.append(f"These do not vary with all else the same: {names}.")


def _draw_maps(charts: StudyCharts, settings: Sequence[Trials], number: int) -> None:
    grids = find_grids(settings)
    for place, grid in enumerate(grids[:_MOST_MAPS]):
        chart = draw_score_map(
            grid.rows,
            across=grid.across,
            up=grid.up,
            score=settings[0].score,
            lower_is_better=settings[0].lower_is_better,
            dataset=f"map-{number}-{place}",
        )
        title = f"{grid.label}: {OPTIONS[grid.across][0]} and {OPTIONS[grid.up][0]}"
        charts.add(title, chart, _MAP)
    if not grids:
        charts.missing.append("Grid search: no two options vary over a grid.")
    elif len(grids) > _MOST_MAPS:
        charts.missing.append(f"{len(grids) - _MOST_MAPS} more maps of two options.")


def _draw_times(charts: StudyCharts, settings: Sequence[Trials], number: int) -> None:
    rows = make_epoch_time_rows(settings)
    names = list(dict.fromkeys(row["setting"] for row in rows))
    shown = names[:_MOST_BARS]
    more = f" {_MOST_BARS} of {len(names)} are shown." if len(names) > _MOST_BARS else ""
    kept = [row for row in rows if row["setting"] in shown]
    chart = draw_epoch_times(kept, shown, dataset=f"times-{number}")
    charts.add("Time per epoch", chart, f"{_TIMES}{more}")


def _describe_correlations(correlations: Sequence[Correlation], what: str) -> str:
    """How Q correlates with something, by all three coefficients, and what that means."""
    first = correlations[0]
    if first.value is None:
        return f"No correlation of Q and {what}: {first.reason}."
    values = ", ".join(map(_format_coefficient, correlations))
    text = _interpret(correlations[1], what)
    return f"Q and {what}, over {_format_sample(first)}: {values}. {text}"


def _format_sample(correlation: Correlation) -> str:
    runs = format_count(correlation.n, "run")
    if correlation.groups == correlation.n:
        return runs
    return f"{runs} of {format_count(correlation.groups, 'setting')}"


def _format_coefficient(correlation: Correlation) -> str:
    if correlation.value is None:
        return f"{correlation.name} –"
    text = f"{correlation.name} {correlation.value:.2f}"
    if correlation.low is None or correlation.high is None:
        return text
    return f"{text} (95 % interval {correlation.low:.2f} to {correlation.high:.2f})"


def _interpret(ranks: Correlation, what: str) -> str:
    if ranks.low is None or ranks.high is None:
        return f"No interval: {ranks.reason}."
    if ranks.low <= 0 <= ranks.high:
        return "The interval of the ranks contains 0: not significant."
    direction = "higher" if ranks.low > 0 else "lower"
    caution = "" if ranks.groups >= _FEW_SETTINGS else " Few settings: the interval is rough."
    return f"Here a higher Q goes with a {direction} {what}.{caution}"
