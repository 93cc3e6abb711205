"""Which trials make a row and a column of a study's table, and what these are called.

A task is a network on some data, with all that belongs to it rather than to the optimizer; only
settings of one task are compared. A setting is an optimizer and the options that tell it from
others of the same optimizer on the same task. A study may call both by names of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rankwise.lab.config import Config
from rankwise.lab.defaults import omit_derived
from rankwise.study.compare import Comparison

__all__ = [
    "Labels",
    "Task",
    "by_labels",
    "by_options",
    "differing",
    "options_of",
    "trials_name",
    "worded",
    "worded_options",
]

# Options of the task; all others but the seed are the setting's.
TASK_OPTIONS = (
    "network",
    "data",
    "width",
    "image_size",
    "augment",
    "cutout",
    "train_size",
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
        title: What the study calls it; "" for a name made of the others.
    """

    network: str
    data: str
    rest: str
    score: str
    title: str = ""

    @property
    def label(self) -> str:
        """The column's head."""
        words = (self.network, self.data, self.rest)
        return self.title or " ".join(word for word in words if word)


class Labels(NamedTuple):
    """What a study calls the trials of one configuration: the row and the column."""

    setting: str
    task: str


def trials_name(config: Config) -> str:
    """What all trials of a configuration share of their names: all but the seed.

    Args:
        config: Of any of them, resolved.

    Example:
        >>> from rankwise.lab import Config
        >>> trials_name(Config(seed=0)) == trials_name(Config(seed=1)) != trials_name(Config(lr=1))
        True
    """
    return config.name.rpartition("-seed")[0]


def by_labels(
    found: Iterable[Comparison], names: Mapping[Labels, str]
) -> list[tuple[Task, list[Comparison]]]:
    """Columns as a study calls them, in its order.

    Args:
        found: Trials.
        names: The `trials_name` of each row and column; two may share their runs.
    """
    by_name = {trials_name(one.runs[0].config): one for one in found}
    columns: dict[str, list[Comparison]] = {labels.task: [] for labels in names}
    for labels, name in names.items():
        if name in by_name:
            columns[labels.task].append(replace(by_name[name], setting=labels.setting))
    filled = {title: column for title, column in columns.items() if column}
    places = [_values(column[0], ("network", "data")) for column in filled.values()]
    return [
        # Where only its name tells a task from another, figures need it as well.
        (_labelled(title, column, rest=title if places.count(place) > 1 else ""), column)
        for (title, column), place in zip(filled.items(), places, strict=True)
    ]


def _labelled(title: str, column: Sequence[Comparison], *, rest: str) -> Task:
    options = options_of(column[0])
    return Task(options["network"], options["data"], rest, _judged_by(column), title)


def by_options(found: Iterable[Comparison]) -> list[tuple[Task, list[Comparison]]]:
    """Columns by the options of their tasks, named by what differs."""
    columns: dict[tuple[object, ...], list[Comparison]] = {}
    for one in found:
        columns.setdefault(_values(one, TASK_OPTIONS), []).append(one)
    shown = _shown(columns.values())
    return [
        (_task(values, columns, columns[values]), [_named(one, shown) for one in columns[values]])
        for values in sorted(columns, key=_sortable)
    ]


def options_of(found: Comparison) -> dict[str, Any]:
    """The options that its trials share, and the seed of the first; None for what follows."""
    return omit_derived(found.runs[0].config)


def _values(found: Comparison, names: Iterable[str]) -> tuple[object, ...]:
    options = options_of(found)
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
            options = options_of(one)
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
    options = options_of(found)
    optimizer = options["optimizer"]
    return replace(found, setting=" ".join([optimizer, *worded_options(options, shown[optimizer])]))


def worded(name: str, value: object) -> str:
    """An option and its value as text."""
    return f"{name}={value:.12g}" if isinstance(value, float) else f"{name}={value}"


def worded_options(options: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Some options as text; those that are left open go without saying."""
    return [worded(name, options[name]) for name in names if options[name] is not None]


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
    return Task(network, data, " ".join(rest), _judged_by(found))


def _judged_by(found: Sequence[Comparison]) -> str:
    """The score that most of a column's settings have."""
    scores = [one.score for one in found if one.values]
    return statistics.mode(scores) if scores else found[0].score
