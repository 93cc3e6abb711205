"""Tuning: the values of an option that were tried on held-out training images, and the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankwise.errors import RunError
from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.records import Run
from rankwise.lab.run_folder import RunFolder
from rankwise.lab.scores import find_main_score, is_falling
from rankwise.study.grid import GridPoint
from rankwise.study.table import Labels

__all__ = ["Candidate", "Tuning", "pick_best", "read_best", "summarize_tuning"]


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


def summarize_tuning(labels: Labels, point: GridPoint, runs: Sequence[Run | None]) -> Tuning:
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
