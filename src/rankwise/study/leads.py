"""Whether the best of each task leads its runner-up, or every setting a named one, by chance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rankwise.errors import ConfigError
from rankwise.lab.scores import score_text
from rankwise.study.columns import Task
from rankwise.study.compare import Comparison
from rankwise.study.paired import LEVEL, Paired, paired
from rankwise.study.permutation import holm
from rankwise.study.tables import StudyTable

__all__ = ["Lead", "against", "lead_text", "leads", "value_text"]

_SMALL = 0.001  # of smaller chances the digits say nothing


@dataclass(frozen=True, slots=True)
class Lead:
    """Two settings of one task, compared seed by seed.

    Attributes:
        task: The task.
        first: The one that is to be judged.
        second: What it is compared with.
        test: What the pairs give.
        adjusted: The test's p by Holm over all that were made together; None without a test.
        of: How many tests were made together.
    """

    task: Task
    first: Comparison
    second: Comparison
    test: Paired
    adjusted: float | None = None
    of: int = 1

    @property
    def told_apart(self) -> bool:
        """Whether chance is an unlikely reason for the difference."""
        return self.adjusted is not None and self.adjusted < LEVEL


def leads(table: StudyTable) -> tuple[Lead, ...]:
    """The best of every task against its runner-up; tasks with one setting have none.

    Args:
        table: The whole table.

    Example:
        >>> from rankwise.study.tables import study_table
        >>> leads(study_table([]))
        ()
    """
    columns = ((task, _scored(table, task)) for task in table.tasks)
    return _adjusted(_lead(task, *found[:2]) for task, found in columns if len(found) > 1)


def against(table: StudyTable, reference: str) -> tuple[Lead, ...]:
    """Every setting against a named one, on every task that both have a score for.

    Args:
        table: The whole table.
        reference: A setting, as its row is called.

    Raises:
        ConfigError: If there is no such row.
    """
    if reference not in table.settings:
        rows = ", ".join(map(repr, table.settings)) or "none"
        raise ConfigError(f"Expected a row of the table, got {reference!r}. Its rows: {rows}.")
    found: list[Lead] = []
    for task in table.tasks:
        column = {one.setting: one for one in _scored(table, task)}
        second = column.pop(reference, None)
        if second is not None:
            found += [_lead(task, first, second) for first in column.values()]
    return _adjusted(found)


def _scored(table: StudyTable, task: Task) -> list[Comparison]:
    found = [entry.found for entry in table.column(task)]
    return [one for one in found if one.values and one.score == task.score]


def _lead(task: Task, first: Comparison, second: Comparison) -> Lead:
    return Lead(task, first, second, paired(first.by_seed, second.by_seed))


def _adjusted(found: Iterable[Lead]) -> tuple[Lead, ...]:
    made = list(found)
    chances = holm([lead.test.p for lead in made])
    tests = sum(p is not None for p in chances)
    return tuple(replace(m, adjusted=p, of=tests) for m, p in zip(made, chances, strict=True))


def value_text(value: float, score: str, *, sign: bool = False) -> str:
    """A score, or a difference of two, without its unit: of shares the percent."""
    text = score_text([abs(value)], score)
    text = text.removesuffix(" %") if text.endswith("%") else f"{abs(value):.4g}"
    return ("−" if value < 0 else "+" if sign else "") + text


def lead_text(lead: Lead) -> str:
    """A comparison as a sentence: both means, the difference and its interval, p, what it says."""
    score, test = lead.task.score, lead.test
    means = (
        f"{one.setting} {value_text(one.mean or 0.0, score)}" for one in (lead.first, lead.second)
    )
    head = f"{lead.task.label}: {' against '.join(means)}"
    if test.difference is None:
        return f"{head}; no test, since {test.reason}."
    points = " points" if score_text([0.0], score).endswith("%") else ""
    head += f": {value_text(test.difference, score, sign=True)}{points}"
    if test.p is None or test.low is None or test.high is None:
        return f"{head} over {_seeds(test)}; no t-test, since {test.reason}{_flips(test, '; ')}."
    interval = f"[{value_text(test.low, score)}, {value_text(test.high, score)}]"
    told = "told apart" if lead.told_apart else "not told apart"
    holms = f" (by Holm {_chance(lead.adjusted)})" if lead.of > 1 else ""
    equals = "" if test.p < _SMALL else "= "
    p = f"p {equals}{_chance(test.p)}{holms}{_flips(test, ', ')}"
    return f"{head} {interval}, paired t over {_seeds(test)}: {p}: {told}."


def _seeds(test: Paired) -> str:
    return f"{test.n} seed{'s' if test.n != 1 else ''}"


def _flips(test: Paired, before: str) -> str:
    return "" if test.flips is None else f"{before}by sign flips {_chance(test.flips)}"


def _chance(p: float | None) -> str:
    if p is None:
        return "unknown"
    return f"< {_SMALL}" if p < _SMALL else f"{p:.2g}"
