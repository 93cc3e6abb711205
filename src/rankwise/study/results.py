"""A study's results: its runs among others, the table, the tests, the tuning and the hardware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rankwise._text import explain_unknown, format_count, quote, suggest_names
from rankwise.errors import ConfigError
from rankwise.lab.defaults import resolve
from rankwise.lab.records import Run, Session
from rankwise.lab.scores import find_main_score
from rankwise.study.grid import GridPoint, Study
from rankwise.study.progress import pick_best
from rankwise.study.stats import SIGNIFICANCE, PairedTest, adjust_holm, paired_test
from rankwise.study.table import (
    TASK_OPTIONS,
    Labels,
    StudyTable,
    Task,
    Trials,
    build_table,
    differing_options,
    setting_name,
)

_PRECISIONS = {"32": "float32", "64": "float64", "bf16": "bfloat16 mixed"}


@dataclass(frozen=True, slots=True)
class SettingComparison:
    """Two settings of one task, compared seed by seed."""

    task: Task
    first: Trials  # the setting to be judged
    second: Trials
    test: PairedTest
    adjusted: float | None = None  # p by Holm's rule over all tests made together
    tests: int = 1  # made together

    @property
    def is_significant(self) -> bool:
        """Whether the difference is significant after the adjustment."""
        return self.adjusted is not None and self.adjusted < SIGNIFICANCE


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that was tried."""

    options: Mapping[str, object]
    score: float | None  # the last epoch's, on validation images
    status: str  # the run's; "missing" before it was started
    chosen: bool = False  # False for all until all are over


@dataclass(frozen=True, slots=True)
class Tuning:
    """The values tried for one setting on one task."""

    labels: Labels
    score: str  # that the candidates are judged by
    candidates: tuple[Candidate, ...]
    runs: tuple[str, ...]  # the names of their runs, which other tasks may share

    @property
    def best(self) -> Candidate | None:
        """The best candidate; None until all are over."""
        return next((one for one in self.candidates if one.chosen), None)


@dataclass(frozen=True, slots=True)
class StudyResults:
    """What is to be shown of a study, in whatever format.

    Attributes:
        about: A sentence or two; may be empty.
        comparisons: The best of each task against the second, or all settings against one.
        reference: That one; "" for best against second.
        tuning: The values that were tried on validation images.
        hardware: What the runs ran on, a line for each kind of machine.
        runs: All runs, tuning included.
        expected: How many runs the study has; without a study as many as there are.
    """

    title: str
    about: str
    table: StudyTable
    comparisons: tuple[SettingComparison, ...]
    reference: str
    tuning: tuple[Tuning, ...]
    hardware: tuple[str, ...]
    runs: tuple[Run, ...]
    expected: int

    def __repr__(self) -> str:
        rows, columns = len(self.table.settings), len(self.table.tasks)
        size = f"{format_count(rows, 'setting')} on {format_count(columns, 'task')}"
        done = self.expected - self.missing
        return f"<StudyResults {quote(self.title)}: {size}, {done} of {self.expected} runs done>"

    @property
    def missing(self) -> int:
        """How many runs are not over, or were not started."""
        return self.expected - sum(run.status != "unfinished" for run in self.runs)


def collect_results(
    runs: Iterable[Run],
    study: Study | None = None,
    *,
    score: str | None = None,
    reference: str = "",
) -> StudyResults:
    """Collect a study's results.

    Args:
        runs: The runs in a folder; those that are not the study's are skipped.
        study: Names rows and columns; without it they are named by the options that differ.
        score: A test score; by default the one that each task is judged by.
        reference: A row that all others are compared with, instead of the best with the second.

    Raises:
        ConfigError: If labels are not unique, or score or reference are unknown.

    Example:
        >>> collect_results([]).table.settings
        ()
    """
    own = _StudyRuns(tuple(runs)) if study is None else _find_runs(study, runs)
    trials = [run for run in own.runs if not run.config.validate]
    known = {name for run in trials for name in run.test}
    if score is not None and known and score not in known:
        raise ConfigError(explain_unknown("test score", score, sorted(known)))
    table = build_table(trials, own.names, score=score)
    return StudyResults(
        title="" if study is None else study.title,
        about="" if study is None else study.about,
        table=table,
        comparisons=_compare_with(table, reference) if reference else _compare_best(table),
        reference=reference,
        tuning=own.tuning,
        hardware=_describe_hardware(own.runs),
        runs=own.runs,
        expected=len(own.runs) if study is None else own.expected,
    )


def select_runs(study: Study, runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return a study's own runs among others, trials before tuning."""
    return _find_runs(study, runs).runs


@dataclass(frozen=True, slots=True)
class _StudyRuns:
    """A study's runs, the rows and columns they belong to, and how many it has in all."""

    runs: tuple[Run, ...]
    names: Mapping[Labels, str] | None = None
    tuning: tuple[Tuning, ...] = ()
    expected: int = 0


def _find_runs(study: Study, runs: Iterable[Run]) -> _StudyRuns:
    by_name = {run.config.name: run for run in map(_resolve, runs)}
    wanted: dict[str, None] = {}
    names: dict[Labels, str] = {}
    tunings: list[Tuning] = []
    untuned = 0  # trials whose rate is not chosen yet
    for point, labels in zip(study.points, _label_points(study), strict=True):
        best = None
        if point.candidates:
            tried = [resolve(config).name for config in point.candidates]
            wanted |= dict.fromkeys(tried)
            tuning = _summarize_tuning(labels, point, [by_name.get(name) for name in tried])
            tunings.append(tuning)
            pairs = zip(point.candidates, tuning.candidates, strict=True)
            best = next((config for config, candidate in pairs if candidate.chosen), None)
        trials = [resolve(config) for config in point.trials(best)]
        untuned += 0 if trials else len(point.seeds)
        wanted |= dict.fromkeys(config.name for config in trials)
        if trials:
            names[labels] = setting_name(trials[0])
    own = [by_name[name] for name in wanted if name in by_name]
    own.sort(key=lambda run: run.config.validate)
    return _StudyRuns(tuple(own), names, tuple(tunings), len(wanted) + untuned)


def _resolve(run: Run) -> Run:
    """Set options that are newer than the run to their defaults, which its name depends on."""
    try:
        return replace(run, config=resolve(run.config))
    except ConfigError:  # options that are not allowed any more belong to no study of today
        return run


def _summarize_tuning(labels: Labels, point: GridPoint, runs: Sequence[Run | None]) -> Tuning:
    """Return a grid point's candidates with the scores of their runs, None where not started."""
    started = [run for run in runs if run is not None]
    score = find_main_score([run.last for run in started], otherwise="accuracy")
    over = [run for run in started if run.status != "unfinished"]
    best = pick_best(point, over) if len(over) == len(runs) else None
    return Tuning(
        labels,
        score,
        tuple(
            Candidate(
                {name: getattr(config, name) for name in point.tuned},
                None if run is None else run.scores.get(score),
                "missing" if run is None else run.status,
                config == best,
            )
            for config, run in zip(point.candidates, runs, strict=True)
        ),
        tuple(resolve(config).name for config in point.candidates),
    )


def _label_points(study: Study) -> list[Labels]:
    """Return a row and a column for every grid point."""
    axes = list(study.points[0].labels)
    options = {axis: _find_axis_options(study.points, axis) for axis in axes}
    # An axis makes columns if it changes the task and not the optimizer.
    columns = [
        axis
        for axis in axes
        if "optimizer" not in options[axis] and not options[axis].isdisjoint(TASK_OPTIONS)
    ]
    rows = [axis for axis in axes if options[axis] and axis not in columns]
    labels: list[Labels] = []
    for point in study.points:
        setting = " · ".join(point.labels[axis] for axis in rows) or point.config.optimizer
        task = " · ".join(point.labels[axis] for axis in columns)
        label = Labels(setting, task or f"{point.config.network} {point.config.data}")
        if label in labels:
            raise ConfigError(
                f"{study.path}: two grid points share the row {label.setting!r} and the column "
                f"{label.task!r}. Give each of their entries its own label."
            )
        labels.append(label)
    return labels


def _find_axis_options(points: Sequence[GridPoint], axis: str) -> set[str]:
    """Return the options that differ between grid points which differ on this axis alone."""
    groups: dict[tuple[str, ...], list[dict[str, object]]] = {}
    for point in points:
        others = tuple(label for name, label in point.labels.items() if name != axis)
        options = {**point.config.identity(), **dict.fromkeys(point.tuned, "tuned")}
        groups.setdefault(others, []).append(options)
    return {name for group in groups.values() for name in differing_options(group)}


def _compare_best(table: StudyTable) -> tuple[SettingComparison, ...]:
    """Compare the best of every task with the second."""
    columns = [(task, _scored(table, task)) for task in table.tasks]
    return _adjust([_compare(task, *column[:2]) for task, column in columns if len(column) > 1])


def _compare_with(table: StudyTable, reference: str) -> tuple[SettingComparison, ...]:
    """Compare every setting with a named one, on every task that both have a score for."""
    if reference not in table.settings:
        rows = ", ".join(map(quote, table.settings)) or "none"
        hint = suggest_names(reference, table.settings)
        raise ConfigError(
            f"Expected a row of the table, got {quote(reference)}.{hint} Its rows: {rows}."
        )
    comparisons: list[SettingComparison] = []
    for task in table.tasks:
        column = {one.setting: one for one in _scored(table, task)}
        second = column.pop(reference, None)
        if second is not None:
            comparisons += [_compare(task, first, second) for first in column.values()]
    return _adjust(comparisons)


def _scored(table: StudyTable, task: Task) -> list[Trials]:
    column = [entry.trials for entry in table.column(task)]
    return [one for one in column if one.values and one.score == task.score]


def _compare(task: Task, first: Trials, second: Trials) -> SettingComparison:
    return SettingComparison(task, first, second, paired_test(first.by_seed, second.by_seed))


def _adjust(comparisons: Sequence[SettingComparison]) -> tuple[SettingComparison, ...]:
    adjusted = adjust_holm([one.test.p for one in comparisons])
    tests = sum(p is not None for p in adjusted)
    return tuple(
        replace(one, adjusted=p, tests=tests) for one, p in zip(comparisons, adjusted, strict=True)
    )


def _describe_hardware(runs: Iterable[Run]) -> tuple[str, ...]:
    """Return processor or accelerators, threads, torch and precision, with the number of runs.

    A run that continued on another machine counts for both, joined by "then".
    """
    machines: Counter[str] = Counter()
    for run in runs:
        precision = _PRECISIONS.get(run.config.precision, run.config.precision)
        places = dict.fromkeys(_describe_machine(session) for session in run.sessions())
        machines[f"{' then '.join(places) or 'an unknown machine'}, {precision}"] += 1
    return tuple(
        f"{machine}; {format_count(number, 'run')}"
        for machine, number in sorted(machines.items(), key=lambda item: (-item[1], item[0]))
    )


def _describe_machine(session: Session) -> str:
    hardware = session.hardware
    threads = "?" if hardware.threads is None else hardware.threads
    cpu = hardware.cpu or "an unknown processor"
    parts = [f"{threads} thread{'s' if threads != 1 else ''} of {cpu}"]
    parts += [f"{number} × {name}" for name, number in Counter(hardware.accelerators).items()]
    return ", ".join([*parts, f"torch {session.versions.get('torch') or '?'}"])
