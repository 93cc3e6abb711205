"""How far a study is, and how long the rest will take by what its finished runs took."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from rankwise.errors import RunError
from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.records import Run
from rankwise.lab.run_folder import RunFolder
from rankwise.study.grid import Cell, Study
from rankwise.study.tuning import chosen

__all__ = ["CellProgress", "StudyProgress", "Tally", "cell_progress", "study_progress"]

# What decides how long an epoch takes; the optimizer less than the others.
_SIZES = ("network", "data", "width", "image_size", "train_size", "batch_size")


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """How far a study is.

    Attributes:
        done: Runs that are over, tuning included.
        left: Runs that are not; those that wait for their cell's tuning count too.
        diverged: Of those that are over.
        begun: Of those that are left.
        seconds_left: An estimate; None before any run is over.
    """

    done: int
    left: int
    diverged: int
    begun: int
    seconds_left: float | None

    @property
    def total(self) -> int:
        """All runs."""
        return self.done + self.left


@dataclass(frozen=True, slots=True)
class CellProgress:
    """How far a cell is.

    Attributes:
        cell: Which.
        tried: How many of its candidates are over.
        done: How many of its trials are over.
        diverged: Of its trials.
        chosen: The values that tuning found; empty before that, and without tuning.
    """

    cell: Cell
    tried: int
    done: int
    diverged: int
    chosen: dict[str, object]


class Costs:
    """The seconds that runs took, by what they have in common; from the closest to all."""

    def __init__(self) -> None:
        self._found: dict[object, list[float]] = defaultdict(list)

    def add(self, run: Run) -> None:
        """Take note of a run that is over."""
        seconds = sum(epoch.seconds.total for epoch in run.epochs)
        # One that diverged did less than was asked for: per epoch that it did.
        epochs = len(run.epochs) if run.config.epochs is not None else 1
        for key in _kinships(run.config):
            self._found[key].append(seconds / max(1, epochs))

    def estimate(self, config: Config) -> float | None:
        """How long a run with these (resolved) options may take, by its nearest kin."""
        near = next((self._found[key] for key in _kinships(config) if key in self._found), None)
        return statistics.fmean(near) * (config.epochs or 1) if near else None


def _kinships(config: Config) -> Iterator[tuple[object, ...]]:
    """What a run shares with others, the most first; runs with a time to fill are apart."""
    sizes = tuple(getattr(config, name) for name in _SIZES)
    yield "setting", *(value for name, value in config.identity().items() if name != "seed")
    yield "optimizer", config.budget, config.optimizer, *sizes
    yield "sizes", config.budget, *sizes
    yield "all", config.budget


class Tally:
    """A study's runs, over and left; told of each that ends, it need not read them all again.

    Args:
        study: Whose folders are read.

    Attributes:
        left: The runs that are not over, by name, resolved; without those that tuning decides on.
        over: The others' status, by name.
        waiting: The cells whose tuning is not over.
    """

    def __init__(self, study: Study) -> None:
        self.left: dict[str, Config] = {}
        self.over: dict[str, str] = {}
        self.waiting: list[Cell] = []
        self._costs = Costs()
        self._epochs: dict[str, int] = {}  # of runs that were begun
        for cell in study.cells:
            trials = cell.trials(chosen(cell))
            if not trials:
                self.waiting.append(cell)
            for config in map(resolve, (*cell.candidates, *trials)):
                self._look(config)

    def _look(self, config: Config) -> None:
        if config.name in self.over or config.name in self.left:
            return  # cells may share runs
        self.left[config.name] = config
        run = _read(config)
        # One whose records can't be read is left, and mended by going on with it.
        if run is not None:
            self._epochs[config.name] = len(run.epochs)
            if RunFolder(config).is_over:
                self.end(config.name, run.status)

    def end(self, name: str, status: str) -> Run | None:
        """Take note of a run that is over; it, as far as it can be read."""
        config = self.left.pop(name)
        self.over[name] = status
        run = _read(config)
        if run is not None:
            self._costs.add(run)
        return run

    def estimate(self, config: Config) -> float | None:
        """How long what is left of a (resolved) run may take."""
        whole = self._costs.estimate(config)
        if whole is None or not config.epochs:
            return whole
        return whole * max(0.0, 1 - self._epochs.get(config.name, 0) / config.epochs)

    def progress(self, jobs: int = 1) -> StudyProgress:
        """How far the study is, with so many runs at a time from here on."""
        ahead = [(resolve(cell.config), len(cell.seeds)) for cell in self.waiting]
        ahead += [(config, 1) for config in self.left.values()]
        costs = [(self.estimate(config), count) for config, count in ahead]
        known = [(cost, count) for cost, count in costs if cost is not None]
        seconds = None
        if len(known) == len(costs):
            # No run is done by two.
            longest = max((cost for cost, _ in known), default=0.0)
            seconds = max(longest, sum(cost * count for cost, count in known) / max(1, jobs))
        return StudyProgress(
            done=len(self.over),
            left=sum(count for _, count in ahead),
            diverged=sum(status == "diverged" for status in self.over.values()),
            begun=sum(name in self._epochs for name in self.left),
            seconds_left=seconds,
        )


def study_progress(study: Study, *, jobs: int = 1) -> StudyProgress:
    """How far a study is.

    Args:
        study: A study, placed where its runs are.
        jobs: How many runs there will be at a time.

    Example:
        >>> from rankwise.study.grid import read_study
        >>> study = read_study("studies/cpu/table_1a.toml")  # doctest: +SKIP
        >>> study_progress(study.placed(out="runs"), jobs=2).left  # doctest: +SKIP
        14
    """
    return Tally(study).progress(jobs)


def cell_progress(cell: Cell) -> CellProgress:
    """How far a cell is.

    Example:
        >>> from rankwise.study.grid import read_study
        >>> study = read_study("studies/cpu/table_1a.toml")  # doctest: +SKIP
        >>> cell_progress(study.cells[0]).done  # doctest: +SKIP
        3
    """
    best = chosen(cell)
    folders = [RunFolder(resolve(config)) for config in cell.trials(best)]
    runs = [_read(folder.config) for folder in folders if folder.is_over]
    over = [run.status for run in runs if run is not None]
    return CellProgress(
        cell,
        tried=sum(RunFolder(resolve(config)).is_over for config in cell.candidates),
        done=len(over),
        diverged=over.count("diverged"),
        chosen={name: getattr(best, name) for name in cell.tuned} if best is not None else {},
    )


def _read(config: Config) -> Run | None:
    """A run that was begun; None also for one whose records are to be mended by going on."""
    try:
        return RunFolder(config).read()
    except RunError:
        return None
