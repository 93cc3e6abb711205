"""Which of a cell's candidates did best on held-out training images."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.errors import RunError
from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.records import Run
from rankwise.lab.run_folder import RunFolder
from rankwise.lab.scores import is_falling, main_score
from rankwise.study.grid import Cell

__all__ = ["best", "chosen"]


def chosen(cell: Cell) -> Config | None:
    """The best of a cell's candidates by their folders.

    Args:
        cell: Placed where its runs are.

    Returns:
        One of `cell.candidates`; None without candidates, or as long as one of them is not over or
        can't be read.
    """
    folders = [RunFolder(resolve(config)) for config in cell.candidates]
    if not folders or not all(folder.is_over for folder in folders):
        return None
    try:
        return best(cell, [folder.read() for folder in folders])
    except RunError:  # one that is damaged is mended by going on with it, and read then
        return None


def best(cell: Cell, runs: Sequence[Run]) -> Config:
    """The candidate with the best score after its last epoch.

    Of equals the one with the smaller value of the first tuned option wins. One that diverged, or
    has no score, is the worst.

    Args:
        cell: With candidates.
        runs: A run for each, over.
    """
    score = main_score([run.last for run in runs], otherwise="accuracy")
    option = cell.tuned[0]
    return min(
        zip(cell.candidates, runs, strict=True),
        key=lambda pair: (*_badness(pair[1], score), _size(getattr(pair[0], option))),
    )[0]


def _badness(run: Run, score: str) -> tuple[bool, float]:
    value = run.scores.get(score)
    if value is None:
        return True, 0.0
    return False, value if is_falling(score) else -value


def _size(value: object) -> tuple[float, str]:
    """Numbers by their size, words by the alphabet."""
    return float(value) if isinstance(value, int | float) else 0.0, str(value)
