"""The paper's tables as data: settings in rows, networks and data in columns, trials in cells.

A task is a network on some data, with all that belongs to it rather than to the optimizer; only
settings of one task are compared. A setting is an optimizer and the options that tell it from
others of the same optimizer on the same task.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankwise.lab.compare import Comparison, compare
from rankwise.lab.records import Run

__all__ = ["Entry", "StudyTable", "Task", "differing", "is_close", "study_table", "worded"]

# Options of the task; all others but the seed are the setting's.
TASK_OPTIONS = (
    "network",
    "data",
    "width",
    "image_size",
    "augment",
    "cutout",
    "batch_size",
    "dropout",
    "tied",
    "length",
    "critic_steps",
)


@dataclass(frozen=True, slots=True)
class Task:
    """A column.

    Attributes:
        network: The network's name.
        data: The data's.
        rest: What tells it from other tasks of this network and data, as in "batch_size=32".
        score: Which score of the test it is judged by.
    """

    network: str
    data: str
    rest: str
    score: str

    @property
    def label(self) -> str:
        """The column's head."""
        return " ".join(word for word in (self.network, self.data, self.rest) if word)


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


def study_table(runs: Iterable[Run]) -> StudyTable:
    """Runs as a table of settings and tasks.

    Args:
        runs: All of a study. Trials that have not finished are not averaged.

    Example:
        >>> from rankwise.lab import load_runs
        >>> from rankwise.lab.tables import study_table
        >>> study_table(load_runs("no/such/folder")).settings
        ()
    """
    found = compare(runs)
    columns: dict[tuple[object, ...], list[Comparison]] = {}
    for one in found:
        columns.setdefault(_values(one, TASK_OPTIONS), []).append(one)
    shown = _shown(columns.values())
    entries: dict[tuple[str, Task], Entry] = {}
    for values in sorted(columns, key=_sortable):
        named = [_named(one, shown) for one in columns[values]]
        task = _task(values, columns, named)
        marks = _marks([one for one in named if one.score == task.score])
        for one in named:
            entries[one.setting, task] = Entry(one, marks.get(one.setting, ""))
    tasks = tuple(dict.fromkeys(task for _, task in entries))
    return StudyTable(tasks, _settings(tasks, entries), entries)


def _options(found: Comparison) -> dict[str, Any]:
    return found.runs[0].config.identity()


def _values(found: Comparison, names: Iterable[str]) -> tuple[object, ...]:
    options = _options(found)
    return tuple(options[name] for name in names)


def _sortable(values: Sequence[Any]) -> list[tuple[bool, Any]]:
    return [(value is not None, 0 if value is None else value) for value in values]


def _shown(columns: Iterable[Sequence[Comparison]]) -> dict[str, list[str]]:
    """The options that each optimizer's settings are told apart by.

    One that differs between tasks only, such as a rate for images and one for words, tells none.
    """
    varying: dict[str, dict[str, None]] = {}
    for column in columns:
        by_optimizer: dict[str, list[dict[str, Any]]] = {}
        for one in column:
            options = _options(one)
            by_optimizer.setdefault(options["optimizer"], []).append(options)
        for optimizer, settings in by_optimizer.items():
            varying.setdefault(optimizer, {}).update(dict.fromkeys(differing(settings)))
    return {optimizer: list(names) for optimizer, names in varying.items()}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The options, all but the seed, that are not the same in all of these settings."""
    return [
        name
        for name in settings[0]
        if name != "seed" and any(options[name] != settings[0][name] for options in settings)
    ]


def _named(found: Comparison, shown: Mapping[str, Sequence[str]]) -> Comparison:
    options = _options(found)
    optimizer = options["optimizer"]
    words = (worded(name, options[name]) for name in shown[optimizer])
    return replace(found, setting=" ".join([optimizer, *words]))


def worded(name: str, value: object) -> str:
    """An option and its value as text."""
    return f"{name}={value:.12g}" if isinstance(value, float) else f"{name}={value}"


def _task(
    values: tuple[Any, ...], columns: Iterable[tuple[object, ...]], found: Sequence[Comparison]
) -> Task:
    network, data = values[:2]
    near = [other for other in columns if other[:2] == (network, data)]
    rest = (
        worded(name, value)
        for place, (name, value) in enumerate(zip(TASK_OPTIONS, values, strict=True))
        if any(other[place] != value for other in near)
    )
    scores = [one.score for one in found if one.values]
    score = statistics.mode(scores) if scores else found[0].score
    return Task(network, data, " ".join(rest), score)


def _marks(found: Sequence[Comparison]) -> dict[str, str]:
    scored = [one for one in found if one.values]
    if len(scored) < 2:
        return {}
    best = scored[0]  # as `compare` sorts them
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
