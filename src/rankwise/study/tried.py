"""What was tried on held-out training images before the trials, and which value won."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankwise.lab.defaults import resolve
from rankwise.lab.records import Run
from rankwise.lab.scores import main_score
from rankwise.study.columns import Labels
from rankwise.study.grid import Cell
from rankwise.study.tuning import best

__all__ = ["Candidate", "Tried", "tried"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that was tried.

    Attributes:
        options: The tuned options' values.
        score: The last epoch's on validation images; None if it has none.
        status: As a run's; "missing" before it has begun.
        chosen: Whether it is the best; none is until all are over.
    """

    options: Mapping[str, object]
    score: float | None
    status: str
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """The values tried for one setting on one task.

    Attributes:
        labels: The row and the column that it is for.
        score: What they are judged by.
        candidates: In the study's order.
        runs: The names of their runs, which other tasks may share.
    """

    labels: Labels
    score: str
    candidates: tuple[Candidate, ...]
    runs: tuple[str, ...]

    @property
    def chosen(self) -> Candidate | None:
        """The best of them; None until all are over."""
        return next((one for one in self.candidates if one.chosen), None)


def tried(labels: Labels, cell: Cell, runs: Sequence[Run | None]) -> Tried:
    """The candidates of a cell, with their scores.

    Args:
        labels: The row and the column.
        cell: With candidates.
        runs: A run for each; None where it has not begun.
    """
    begun = [run for run in runs if run is not None]
    score = main_score([run.last for run in begun], otherwise="accuracy")
    over = [run for run in begun if run.status != "unfinished"]
    winner = best(cell, over) if len(over) == len(runs) else None
    return Tried(
        labels,
        score,
        tuple(
            Candidate(
                {name: getattr(config, name) for name in cell.tuned},
                None if run is None else run.scores.get(score),
                "missing" if run is None else run.status,
                config == winner,
            )
            for config, run in zip(cell.candidates, runs, strict=True)
        ),
        tuple(resolve(config).name for config in cell.candidates),
    )
