"""All that a study's table says: the cells, the tests, what was tried, and where it ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rankwise.errors import ConfigError
from rankwise.lab.records import Run
from rankwise.study.gather import gather, loose
from rankwise.study.grid import Study
from rankwise.study.hardware import machines
from rankwise.study.leads import Lead, against, leads
from rankwise.study.tables import StudyTable, study_table
from rankwise.study.tried import Tried

__all__ = ["Findings", "findings"]


@dataclass(frozen=True, slots=True)
class Findings:
    """What is to be shown, in whatever format.

    Attributes:
        title: A line; may be empty.
        about: A sentence or two; may be empty.
        table: Settings by tasks.
        leads: The best of each task against its runner-up, or all settings against one.
        reference: That one; "" for the runner-up.
        tried: What was chosen by validation.
        machines: What the runs ran on.
        runs: All that it is of, those that chose a rate included.
        asked: How many runs the study has; as many as there are without a study.
    """

    title: str
    about: str
    table: StudyTable
    leads: tuple[Lead, ...]
    reference: str
    tried: tuple[Tried, ...]
    machines: tuple[str, ...]
    runs: tuple[Run, ...]
    asked: int

    @property
    def missing(self) -> int:
        """How many runs have not begun or are not over."""
        return self.asked - sum(run.status != "unfinished" for run in self.runs)


def findings(
    runs: Iterable[Run],
    study: Study | None = None,
    *,
    score: str | None = None,
    reference: str = "",
) -> Findings:
    """What a study found.

    Args:
        runs: Those in a folder; of others than the study's nothing is said.
        study: Names rows and columns; without it they are named by the options that differ.
        score: Which score of the test; by default the one that each task is judged by.
        reference: A row that all others are compared with, instead of the best with the second.

    Raises:
        ConfigError: If labels are not unique, or score or reference are unknown.

    Example:
        >>> findings([]).table.settings
        ()
    """
    own = loose(runs) if study is None else gather(study, runs)
    _check_score(own.trials, score)
    table = study_table(own.trials, own.names, score=score)
    return Findings(
        title="" if study is None else study.title,
        about="" if study is None else study.about,
        table=table,
        leads=against(table, reference) if reference else leads(table),
        reference=reference,
        tried=own.tried,
        machines=machines(own.runs),
        runs=own.runs,
        asked=own.asked,
    )


def _check_score(runs: Iterable[Run], score: str | None) -> None:
    known = {name for run in runs for name in run.test}
    if score is not None and known and score not in known:
        raise ConfigError(f"Expected a score of the test, {', '.join(sorted(known))}; got {score}.")
