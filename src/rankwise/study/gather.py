"""A study and the runs in a folder → what its table is made of, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rankwise.errors import ConfigError
from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.records import Run
from rankwise.study.columns import TASK_OPTIONS, Labels, differing, trials_name
from rankwise.study.grid import Cell, Study
from rankwise.study.tried import Tried, tried

__all__ = ["Gathered", "gather", "loose"]

_BETWEEN = " · "


@dataclass(frozen=True, slots=True)
class Gathered:
    """The runs of a study.

    Attributes:
        trials: Those that belong in the table, finished or not.
        tuning: Those that chose a rate.
        names: The row and the column of the trials' configurations; None to make them up.
        tried: What was chosen from, for each cell that is tuned.
        asked: How many runs the study has in all.
    """

    trials: tuple[Run, ...]
    tuning: tuple[Run, ...]
    names: Mapping[Labels, str] | None
    tried: tuple[Tried, ...]
    asked: int

    @property
    def runs(self) -> tuple[Run, ...]:
        """All of them."""
        return (*self.trials, *self.tuning)


def loose(runs: Iterable[Run]) -> Gathered:
    """Runs that no study asked for: all there are, without names."""
    every = tuple(runs)
    trials = tuple(run for run in every if not run.config.validate)
    tuning = tuple(run for run in every if run.config.validate)
    return Gathered(trials, tuning, None, (), len(every))


def gather(study: Study, runs: Iterable[Run]) -> Gathered:
    """Find a study's runs among others, and what its table calls them.

    Args:
        study: The grid.
        runs: All there are.

    Raises:
        ConfigError: If two cells of the study would share a row and a column.
    """
    by_name = {run.config.name: run for run in map(_as_today, runs)}
    labels = _labels(study)
    asked: dict[str, None] = {}
    names: dict[Labels, str] = {}
    tunings: list[Tried] = []
    later = 0  # trials whose rate is not chosen yet
    for cell, label in zip(study.cells, labels, strict=True):
        chosen = None
        if cell.candidates:
            configs = [resolve(config) for config in cell.candidates]
            asked |= dict.fromkeys(config.name for config in configs)
            found = [by_name.get(config.name) for config in configs]
            tunings.append(tried(label, cell, found))
            chosen = _chosen(cell, tunings[-1])
        trials = [resolve(config) for config in cell.trials(chosen)]
        later += 0 if trials else len(cell.seeds)
        asked |= dict.fromkeys(config.name for config in trials)
        if trials:
            names[label] = trials_name(trials[0])
    here = [by_name[name] for name in asked if name in by_name]
    return Gathered(
        tuple(run for run in here if not run.config.validate),
        tuple(run for run in here if run.config.validate),
        names,
        tuple(tunings),
        len(asked) + later,
    )


def _as_today(run: Run) -> Run:
    """The run with options that have come since at their defaults, which its name depends on."""
    try:
        return replace(run, config=resolve(run.config))
    except ConfigError:  # what was allowed once is no run of a study of today
        return run


def _chosen(cell: Cell, found: Tried) -> Config | None:
    pairs = zip(cell.candidates, found.candidates, strict=True)
    return next((config for config, one in pairs if one.chosen), None)


def _labels(study: Study) -> list[Labels]:
    """A row and a column for every cell."""
    axes = list(study.cells[0].labels)
    varying = {axis: _varying(study.cells, axis) for axis in axes}
    across = [axis for axis in axes if _is_task(varying[axis])]
    down = [axis for axis in axes if varying[axis] and axis not in across]
    found: list[Labels] = []
    for cell in study.cells:
        setting = _BETWEEN.join(cell.labels[axis] for axis in down) or cell.config.optimizer
        task = _BETWEEN.join(cell.labels[axis] for axis in across)
        label = Labels(setting, task or f"{cell.config.network} {cell.config.data}")
        if label in found:
            raise ConfigError(
                f"{study.path}: two cells share the row {label.setting!r} and the column "
                f"{label.task!r}. Give their entries labels of their own."
            )
        found.append(label)
    return found


def _varying(cells: Sequence[Cell], axis: str) -> set[str]:
    """The options that differ between cells which differ on this axis alone."""
    groups: dict[tuple[str, ...], list[dict[str, object]]] = {}
    for cell in cells:
        others = tuple(label for name, label in cell.labels.items() if name != axis)
        options = {**cell.config.identity(), **dict.fromkeys(cell.tuned, "tuned")}
        groups.setdefault(others, []).append(options)
    return {name for group in groups.values() for name in differing(group)}


def _is_task(varying: set[str]) -> bool:
    """Whether an axis is one of columns: it changes the task, and not the optimizer."""
    return not varying.isdisjoint(TASK_OPTIONS) and "optimizer" not in varying
