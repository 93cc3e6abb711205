"""The paper's tables as data: settings in rows, networks and data in columns, trials in cells."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rankwise.errors import ConfigError
from rankwise.lab.records import Run
from rankwise.study.columns import Labels, Task, by_labels, by_options, differing, options_of
from rankwise.study.compare import Comparison, compare

__all__ = [
    "Entry",
    "StudyTable",
    "Task",
    "is_close",
    "study_table",
]


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell.

    Attributes:
        found: The trials.
        mark: "best" for the best mean of its column; "close" for a mean that is within one
            standard deviation of the best's, the larger of the two; "" for others, and where there
            is nothing to compare with.
    """

    found: Comparison
    mark: str = ""


@dataclass(frozen=True, slots=True)
class StudyTable:
    """The whole table.

    Attributes:
        tasks: The columns.
        settings: The rows, the best on the whole first.
        entries: By setting and task; a setting need not have been tried on every task.
    """

    tasks: tuple[Task, ...]
    settings: tuple[str, ...]
    entries: Mapping[tuple[str, Task], Entry]

    def column(self, task: Task) -> list[Entry]:
        """A task's entries, the best first."""
        found = [entry for (_, of), entry in self.entries.items() if of == task]
        return sorted(found, key=_place)


def study_table(
    runs: Iterable[Run], names: Mapping[Labels, str] | None = None, *, score: str | None = None
) -> StudyTable:
    """Runs as a table of settings and tasks.

    Args:
        runs: All of a study. Trials that have not finished are not averaged. Runs that were scored
            on validation images, as for choosing a rate, are left out.
        names: What a study calls rows and columns, and the `trials_name` that belongs there; runs
            that it does not name are left out, columns come in its order. Without it both are
            named by the options that differ.
        score: Which score of the test; by default the one that each task is judged by.

    Raises:
        ConfigError: If two configurations share a row and a column.

    Example:
        >>> from rankwise.lab import load_runs
        >>> from rankwise.study.tables import study_table
        >>> study_table(load_runs("no/such/folder")).settings
        ()
    """
    found = compare(run for run in runs if not run.config.validate)
    if score is not None:
        found = [_rescored(one, score) for one in found]
    entries: dict[tuple[str, Task], Entry] = {}
    for task, column in by_options(found) if names is None else by_labels(found, names):
        marks = _marks([one for one in column if one.score == task.score])
        for one in column:
            if (one.setting, task) in entries:
                raise _shared(one, entries[one.setting, task].found, task)
            entries[one.setting, task] = Entry(one, marks.get(one.setting, ""))
    tasks = tuple(dict.fromkeys(task for _, task in entries))
    return StudyTable(tasks, _settings(tasks, entries), entries)


def _rescored(found: Comparison, score: str) -> Comparison:
    """The same trials by another of their scores."""
    asked = replace(found, score=score)
    pick = min if asked.falling else max
    epochs = [[epoch.test.get(score) for epoch in run.epochs] for run in asked.finished]
    return replace(
        asked,
        values=tuple(scores[-1] for scores in epochs),
        best=tuple(pick(value for value in scores if value is not None) for scores in epochs),
    )


def _shared(one: Comparison, other: Comparison, task: Task) -> ConfigError:
    options = [options_of(one), options_of(other)]
    apart = ", ".join(name for name in differing(options))
    return ConfigError(
        f"Two settings share the row {one.setting!r} and the column {task.label!r}, though their "
        f"options differ ({apart}). Give their entries in the study labels of their own."
    )


def _marks(found: Sequence[Comparison]) -> dict[str, str]:
    scored = [one for one in found if one.values]
    if len(scored) < 2:
        return {}
    best = min(scored, key=lambda one: _place(Entry(one)))
    return {
        one.setting: "best" if one.mean == best.mean else "close"
        for one in scored
        if is_close(one, best)
    }


def is_close(one: Comparison, best: Comparison) -> bool:
    """Whether two means are within a standard deviation, the larger of the two, of each other.

    With two or three trials a deviation is often far too small by chance; the larger one errs on
    the side of caution.
    """
    if one.mean is None or best.mean is None:
        return False
    return abs(one.mean - best.mean) <= max(one.spread or 0.0, best.spread or 0.0)


def _place(entry: Entry) -> tuple[bool, float]:
    mean = entry.found.mean
    if mean is None:
        return True, 0.0
    return False, mean if entry.found.falling else -mean


def _settings(tasks: Iterable[Task], entries: Mapping[tuple[str, Task], Entry]) -> tuple[str, ...]:
    """The settings by their mean place over the tasks they were tried on; those without last."""
    places: dict[str, list[int]] = {setting: [] for setting, _ in entries}
    for task in tasks:
        column = {name: entry for (name, of), entry in entries.items() if of == task}
        scored = [name for name in column if column[name].found.mean is not None]
        for number, name in enumerate(sorted(scored, key=lambda n: _place(column[n]))):
            places[name].append(number)

    def mean_place(name: str) -> tuple[bool, float, str]:
        own = places[name]
        return not own, statistics.fmean(own) if own else 0.0, name

    return tuple(sorted(places, key=mean_place))
