"""The paper's tables as data: settings in rows, tasks in columns, trials in the entries.

A task is a network on some data, with all options that belong to it rather than to the optimizer;
only settings of one task are compared. A setting is an optimizer and the options in which it
differs from others of the same optimizer on the same task. A study may name both itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

from rankwise._text import format_count
from rankwise.errors import ConfigError
from rankwise.lab.config import Config
from rankwise.lab.defaults import omit_derived
from rankwise.lab.records import Run
from rankwise.lab.scores import find_main_score, is_falling

# Options of the task; all others but the seed belong to the setting.
TASK_OPTIONS = (
    *("network", "data", "width", "image_size", "augment", "cutout", "train_size", "batch_size"),
    *("dropout", "tied", "length", "critic_steps"),
)


@dataclass(frozen=True, slots=True)
class Trials:
    """The runs of one setting, which differ by their seed only.

    Attributes:
        score: The test score that they are judged by, as in "accuracy".
        values: The last epoch's score of each trial that finished.
        best: The best epoch's score of each trial that finished.
        stable_rank_by_width: The last epoch's S of each trial, where known.
        seconds: Mean training time of an epoch, of each trial.
        runs: All, finished or not.
    """

    setting: str
    score: str
    values: tuple[float, ...]
    diverged: int
    best: tuple[float, ...]
    stable_rank_by_width: tuple[float, ...]
    seconds: tuple[float, ...]
    runs: tuple[Run, ...] = field(default=(), repr=False)

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that `values` are of."""
        return tuple(run for run in self.runs if run.scores.get(self.score) is not None)

    @property
    def by_seed(self) -> dict[int, float]:
        """The values by seed, for paired comparisons."""
        return {run.config.seed: v for run, v in zip(self.finished, self.values, strict=True)}

    @property
    def unscored(self) -> int:
        """How many finished without a score: it is not finite, or its record was lost."""
        return sum(run.status == "finished" for run in self.runs) - len(self.values)

    @property
    def unfinished(self) -> int:
        """How many runs are in progress or were interrupted."""
        return sum(run.status == "unfinished" for run in self.runs)

    @property
    def lower_is_better(self) -> bool:
        """Whether a lower score is better."""
        return is_falling(self.score)

    @property
    def mean(self) -> float | None:
        """The mean score; None if no trial has finished."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over trials; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def options(self) -> dict[str, Any]:
        """The options that the trials share; None for those that follow from others."""
        return omit_derived(self.runs[0].config)

    @property
    def order(self) -> tuple[bool, float]:
        """A sort key: the best mean first, those without a score last."""
        if self.mean is None:
            return True, 0.0
        return False, self.mean if self.lower_is_better else -self.mean


def group_trials(runs: Iterable[Run]) -> list[Trials]:
    """Group runs that differ by nothing but their seed; the best mean comes first.

    Example:
        >>> from rankwise.lab import load_runs
        >>> group_trials(load_runs("no/such/folder"))
        []
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = repr({k: v for k, v in run.config.identity().items() if k != "seed"})
        groups.setdefault(key, []).append(run)
    names = _name_settings([group[0] for group in groups.values()])
    trials = [
        _summarize(name, group, find_main_score([run.last for run in group], otherwise="accuracy"))
        for name, group in zip(names, groups.values(), strict=True)
    ]
    return sorted(trials, key=lambda one: (one.order[0], one.score, one.order[1]))


def _name_settings(runs: Sequence[Run]) -> list[str]:
    """Name each setting by its optimizer and the options in which it differs from others of it.

    Options such as rates differ between optimizers anyway; network and data always count.
    """
    options = [omit_derived(run.config) for run in runs]
    differing = [
        name
        for name in (options[0] if options else ())
        if name not in ("optimizer", "seed")
        and any(
            a[name] != b[name]
            for a, b in combinations(options, 2)
            if name in ("network", "data") or a["optimizer"] == b["optimizer"]
        )
    ]
    return [" ".join([one["optimizer"], *format_options(one, differing)]) for one in options]


def _summarize(setting: str, runs: Sequence[Run], score: str) -> Trials:
    scored = [run for run in runs if run.scores.get(score) is not None]
    pick = min if is_falling(score) else max
    histories = [[epoch.test.get(score) for epoch in run.epochs] for run in scored]
    return Trials(
        setting,
        score,
        tuple(value for run in scored if (value := run.scores[score]) is not None),
        sum(run.status == "diverged" for run in runs),
        tuple(pick(value for value in history if value is not None) for history in histories),
        tuple(value for run in scored if (value := run.stable_rank_by_width) is not None),
        tuple(run.trained / len(run.epochs) for run in scored),
        tuple(runs),
    )


@dataclass(frozen=True, slots=True)
class Task:
    """A column of the table."""

    network: str
    data: str
    rest: str  # in what it differs from other tasks of this network and data: "batch_size=32"
    score: str  # the test score that it is judged by
    title: str = ""  # the study's name for it; "" for a name made of the others

    @property
    def label(self) -> str:
        """The column's title."""
        return self.title or " ".join(filter(None, (self.network, self.data, self.rest)))


class Labels(NamedTuple):
    """A study's names for the trials of one configuration: the row and the column."""

    setting: str
    task: str


@dataclass(frozen=True, slots=True)
class Entry:
    """The trials of one setting on one task, and their mark."""

    trials: Trials
    mark: str = ""  # "best" for the best mean of the column; "close" to it, see `is_close`


@dataclass(frozen=True, slots=True)
class StudyTable:
    """Settings by tasks.

    Attributes:
        tasks: The columns.
        settings: The rows, the best mean rank over the tasks first.
        entries: By setting and task; a setting need not have been run on every task.
    """

    tasks: tuple[Task, ...]
    settings: tuple[str, ...]
    entries: Mapping[tuple[str, Task], Entry]

    def __repr__(self) -> str:
        tasks = format_count(len(self.tasks), "task")
        return f"<StudyTable: {format_count(len(self.settings), 'setting')} on {tasks}>"

    def column(self, task: Task) -> list[Entry]:
        """Return a task's entries, the best first."""
        column = [entry for (_, of), entry in self.entries.items() if of == task]
        return sorted(column, key=lambda entry: entry.trials.order)


def build_table(
    runs: Iterable[Run], names: Mapping[Labels, str] | None = None, *, score: str | None = None
) -> StudyTable:
    """Arrange runs as a table of settings and tasks.

    Args:
        runs: All runs of a study. Trials that have not finished are not averaged. Runs that were
            scored on validation images, as for choosing a rate, are skipped.
        names: The study's rows and columns, with the `setting_name` of the runs that belong there;
            other runs are skipped. Without it both are named by the options that differ.
        score: The test score; by default the one that each task is judged by.

    Raises:
        ConfigError: If two configurations share a row and a column.

    Example:
        >>> from rankwise.lab import load_runs
        >>> build_table(load_runs("no/such/folder")).settings
        ()
    """
    trials = group_trials(run for run in runs if not run.config.validate)
    if score is not None:
        trials = [_summarize(one.setting, one.runs, score) for one in trials]
    entries: dict[tuple[str, Task], Entry] = {}
    for task, column in _split_by_options(trials) if names is None else _split(trials, names):
        scored = [one for one in column if one.values and one.score == task.score]
        best = min(scored, key=lambda one: one.order) if len(scored) > 1 else None
        for one in column:
            if (one.setting, task) in entries:
                raise _same_entry_error(one, entries[one.setting, task].trials, task)
            entries[one.setting, task] = Entry(one, _mark(one, best))
    tasks = tuple(dict.fromkeys(task for _, task in entries))
    return StudyTable(tasks, _sort_settings(tasks, entries), entries)


def _mark(trials: Trials, best: Trials | None) -> str:
    if best is None or trials.score != best.score or not is_close(trials, best):
        return ""
    return "best" if trials.mean == best.mean else "close"


def is_close(trials: Trials, best: Trials) -> bool:
    """Return whether two means are within one standard deviation, the larger of the two.

    With two or three trials a deviation is often far too small by chance, so the larger one is
    the careful choice.
    """
    if trials.mean is None or best.mean is None:
        return False
    return abs(trials.mean - best.mean) <= max(trials.spread or 0.0, best.spread or 0.0)


def _same_entry_error(one: Trials, other: Trials, task: Task) -> ConfigError:
    differing = ", ".join(differing_options([one.options, other.options]))
    return ConfigError(
        f"Two settings share the row {one.setting!r} and the column {task.label!r}, though their "
        f"options differ ({differing}). Give each of their entries in the study its own label."
    )


def _sort_settings(
    tasks: Iterable[Task], entries: Mapping[tuple[str, Task], Entry]
) -> tuple[str, ...]:
    """Sort settings by their mean rank over their tasks; those without a score come last."""
    ranks: dict[str, list[int]] = {setting: [] for setting, _ in entries}
    for task in tasks:
        column = {name: e.trials for (name, of), e in entries.items() if of == task}
        scored = [name for name in column if column[name].mean is not None]
        for rank, name in enumerate(sorted(scored, key=lambda name: column[name].order)):
            ranks[name].append(rank)
    mean_ranks = {name: statistics.fmean(own) if own else 0.0 for name, own in ranks.items()}
    return tuple(sorted(ranks, key=lambda name: (not ranks[name], mean_ranks[name], name)))


def setting_name(config: Config) -> str:
    """Return the part of a run's name that all its trials share: all but the seed.

    Example:
        >>> from rankwise.lab import Config
        >>> a, b, c = (setting_name(Config(**given)) for given in ({}, {"seed": 1}, {"lr": 1}))
        >>> a == b, a == c
        (True, False)
    """
    return config.name.rpartition("-seed")[0]


def _split(
    trials: Iterable[Trials], names: Mapping[Labels, str]
) -> list[tuple[Task, list[Trials]]]:
    """Return the columns as a study names them, in its order; two may share their runs."""
    by_name = {setting_name(one.runs[0].config): one for one in trials}
    columns: dict[str, list[Trials]] = {}
    for labels, name in names.items():
        if name in by_name:
            named = replace(by_name[name], setting=labels.setting)
            columns.setdefault(labels.task, []).append(named)
    order = dict.fromkeys(labels.task for labels in names if labels.task in columns)
    configs = {title: columns[title][0].runs[0].config for title in order}
    places = [(config.network, config.data) for config in configs.values()]
    return [
        (
            # Where only its name distinguishes a task from another, charts need it as well.
            Task(
                *place,
                rest=title if places.count(place) > 1 else "",
                score=_common_score(columns[title]),
                title=title,
            ),
            columns[title],
        )
        for title, place in zip(order, places, strict=True)
    ]


def _split_by_options(trials: Iterable[Trials]) -> list[tuple[Task, list[Trials]]]:
    """Return the columns by the options of their tasks, named by the options that differ."""
    columns: dict[tuple[Any, ...], list[Trials]] = {}
    for one in trials:
        options = one.options
        columns.setdefault(tuple(options[name] for name in TASK_OPTIONS), []).append(one)
    differing: dict[str, dict[str, None]] = {}  # of each optimizer, within any column
    for column in columns.values():
        by_optimizer: dict[str, list[dict[str, Any]]] = {}
        for one in column:
            by_optimizer.setdefault(one.options["optimizer"], []).append(one.options)
        for optimizer, settings in by_optimizer.items():
            names = dict.fromkeys(differing_options(settings))
            differing.setdefault(optimizer, {}).update(names)
    return [
        (
            Task(values[0], values[1], _name_rest(values, columns), _common_score(column)),
            [_rename(one, differing) for one in column],
        )
        for values, column in sorted(columns.items(), key=lambda item: _none_first(item[0]))
    ]


def _rename(trials: Trials, differing: Mapping[str, Iterable[str]]) -> Trials:
    options = trials.options
    names = format_options(options, differing[options["optimizer"]])
    return replace(trials, setting=" ".join([options["optimizer"], *names]))


def _none_first(values: Sequence[Any]) -> list[tuple[bool, Any]]:
    return [(value is not None, 0 if value is None else value) for value in values]


def _name_rest(values: Sequence[Any], columns: Iterable[Sequence[Any]]) -> str:
    """Name a task by the options in which it differs from others of its network and data."""
    near = [other for other in columns if other[:2] == values[:2]]
    return " ".join(
        format_option(name, value)
        for place, (name, value) in enumerate(zip(TASK_OPTIONS, values, strict=True))
        if any(other[place] != value for other in near)
    )


def _common_score(column: Sequence[Trials]) -> str:
    """Return the score that most of a column's settings have."""
    scores = [one.score for one in column if one.values]
    return statistics.mode(scores) if scores else column[0].score


def differing_options(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the options, all but the seed, that are not the same in all settings."""
    return [
        name
        for name in settings[0]
        if name != "seed" and any(options[name] != settings[0][name] for options in settings)
    ]


def format_option(name: str, value: object) -> str:
    """Return an option and its value as text, as in "lr=0.1"."""
    return f"{name}={value:.12g}" if isinstance(value, float) else f"{name}={value}"


def format_options(options: Mapping[str, Any], names: Iterable[str] | None = None) -> list[str]:
    """Return options as text, all or some of them, without those that are None."""
    names = options if names is None else names
    return [format_option(name, options[name]) for name in names if options[name] is not None]
