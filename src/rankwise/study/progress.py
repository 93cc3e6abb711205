"""How far a study is: what is over, which values tuning chose, and how long the rest will take."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rankwise.errors import RunError
from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.records import Run
from rankwise.lab.run_folder import RunFolder
from rankwise.lab.scores import find_main_score, is_falling
from rankwise.study.grid import GridPoint, Study

# What decides how long an epoch takes; the optimizer matters less.
_SIZES = ("network", "data", "width", "image_size", "train_size", "batch_size")


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """How far a study is.

    Attributes:
        done: Runs that are over, tuning included.
        left: Runs that are not, including those that wait for tuning.
        diverged: How many of `done` diverged.
        started: How many of `left` were started.
        seconds_left: An estimate; None before any run is over.
    """

    done: int
    left: int
    diverged: int
    started: int
    seconds_left: float | None

    @property
    def total(self) -> int:
        """All runs."""
        return self.done + self.left


@dataclass(frozen=True, slots=True)
class PointProgress:
    """How far a grid point is."""

    point: GridPoint
    tried: int  # candidates that are over
    done: int  # trials that are over
    diverged: int  # of these
    chosen: dict[str, object]  # the values that tuning chose; empty before that

    @property
    def is_done(self) -> bool:
        """Whether all trials are over."""
        return self.done == len(self.point.seeds)


def read_best(point: GridPoint) -> Config | None:
    """Return the best of a grid point's candidates; None while one of them is not over."""
    folders = [RunFolder(resolve(config)) for config in point.candidates]
    if not folders or not all(folder.is_over for folder in folders):
        return None
    try:
        return pick_best(point, [folder.read() for folder in folders])
    except RunError:  # training goes on with a damaged run and repairs it
        return None


def pick_best(point: GridPoint, runs: Sequence[Run]) -> Config:
    """Return the candidate with the best score after its last epoch.

    On a tie the smaller value of the first tuned option wins. A candidate that diverged or has no
    score is the worst.
    """
    score = find_main_score([run.last for run in runs], otherwise="accuracy")
    option = point.tuned[0]

    def order(pair: tuple[Config, Run]) -> tuple[bool, float, float, str]:
        value, tuned = pair[1].scores.get(score), getattr(pair[0], option)
        size = float(tuned) if isinstance(tuned, int | float) else 0.0
        if value is None:
            return True, 0.0, size, str(tuned)
        return False, value if is_falling(score) else -value, size, str(tuned)

    return min(zip(point.candidates, runs, strict=True), key=order)[0]


class _RunTimes:
    """The seconds per epoch that runs took, by the options they share, from most to fewest."""

    def __init__(self) -> None:
        self._seconds: dict[object, list[float]] = defaultdict(list)

    def add(self, run: Run) -> None:
        seconds = sum(epoch.seconds.total for epoch in run.epochs)
        # A run that diverged did fewer epochs than its options say.
        epochs = len(run.epochs) if run.config.epochs is not None else 1
        for key in self._keys(run.config):
            self._seconds[key].append(seconds / max(1, epochs))

    def estimate(self, config: Config) -> float | None:
        """Return how long a run with (resolved) options may take, judged by similar runs."""
        similar = (self._seconds[key] for key in self._keys(config) if key in self._seconds)
        seconds = next(similar, None)
        return statistics.fmean(seconds) * (config.epochs or 1) if seconds else None

    @staticmethod
    def _keys(config: Config) -> Iterator[tuple[object, ...]]:
        sizes = tuple(getattr(config, name) for name in _SIZES)
        yield "setting", *(value for name, value in config.identity().items() if name != "seed")
        yield "optimizer", config.budget, config.optimizer, *sizes
        yield "sizes", config.budget, *sizes
        yield "all", config.budget


class StudyState:
    """Which of a study's runs are over; when told of each that ends, it reads nothing twice."""

    def __init__(self, study: Study) -> None:
        # Resolved options by name, without trials whose values tuning has still to choose.
        self.left: dict[str, Config] = {}
        self.over: dict[str, str] = {}  # the status of runs, by name
        self.waiting: list[GridPoint] = []  # whose tuning is not over
        self._times = _RunTimes()
        self._epochs: dict[str, int] = {}  # of runs that were started
        for point in study.points:
            trials = point.trials(read_best(point))
            if not trials:
                self.waiting.append(point)
            for config in map(resolve, (*point.candidates, *trials)):
                self._read(config)

    def _read(self, config: Config) -> None:
        if config.name in self.over or config.name in self.left:
            return  # grid points may share runs
        self.left[config.name] = config
        run = _read_run(config)
        # A run whose records can't be read is left: training goes on with it and repairs it.
        if run is not None:
            self._epochs[config.name] = len(run.epochs)
            if RunFolder(config).is_over:
                self.end(config.name, run.status)

    def end(self, name: str, status: str) -> Run | None:
        """Note that a run is over; return it, if it can be read."""
        config = self.left.pop(name)
        self.over[name] = status
        run = _read_run(config)
        if run is not None:
            self._times.add(run)
        return run

    def estimate(self, config: Config) -> float | None:
        """Return how long the rest of a (resolved) run may take."""
        whole = self._times.estimate(config)
        if whole is None or not config.epochs:
            return whole
        return whole * max(0.0, 1 - self._epochs.get(config.name, 0) / config.epochs)

    def progress(self, jobs: int = 1) -> StudyProgress:
        """Return how far the study is, with so many runs at a time from here on."""
        ahead = [(resolve(point.config), len(point.seeds)) for point in self.waiting]
        ahead += [(config, 1) for config in self.left.values()]
        times = [(self.estimate(config), count) for config, count in ahead]
        known = [(seconds, count) for seconds, count in times if seconds is not None]
        seconds_left = None
        if len(known) == len(times):
            # One run is never split between two jobs.
            longest = max((seconds for seconds, _ in known), default=0.0)
            total = sum(seconds * count for seconds, count in known)
            seconds_left = max(longest, total / max(1, jobs))
        return StudyProgress(
            done=len(self.over),
            left=sum(count for _, count in ahead),
            diverged=sum(status == "diverged" for status in self.over.values()),
            started=sum(name in self._epochs for name in self.left),
            seconds_left=seconds_left,
        )


def read_progress(study: Study, *, jobs: int = 1) -> StudyProgress:
    """Read how far a study is.

    Args:
        study: A study, with the folder of its runs.
        jobs: How many runs there will be at a time.

    Example:
        >>> from rankwise.study import read_progress, read_study
        >>> study = read_study("studies/cpu/table_1a.toml")  # doctest: +SKIP
        >>> read_progress(study.with_folders(out="runs"), jobs=2).left  # doctest: +SKIP
        14
    """
    return StudyState(study).progress(jobs)


def read_point_progress(point: GridPoint) -> PointProgress:
    """Read how far a grid point is."""
    best = read_best(point)
    folders = [RunFolder(resolve(config)) for config in point.trials(best)]
    runs = [_read_run(folder.config) for folder in folders if folder.is_over]
    over = [run.status for run in runs if run is not None]
    return PointProgress(
        point,
        tried=sum(RunFolder(resolve(config)).is_over for config in point.candidates),
        done=len(over),
        diverged=over.count("diverged"),
        chosen={name: getattr(best, name) for name in point.tuned} if best is not None else {},
    )


def _read_run(config: Config) -> Run | None:
    """Read a run that was started; None also if its records are broken."""
    try:
        return RunFolder(config).read()
    except RunError:
        return None
