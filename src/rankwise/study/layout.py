"""What a study found → sheets of text, whatever they are written as later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rankwise._text import join_lines
from rankwise.lab.scores import is_falling, score_text
from rankwise.study.columns import Task
from rankwise.study.compare import Comparison
from rankwise.study.findings import Findings
from rankwise.study.leads import lead_text, value_text
from rankwise.study.tables import StudyTable
from rankwise.study.tried import Candidate, Tried

__all__ = ["Cell", "Sheet", "legend", "notes", "sheets"]

_NAMES = {"frechet": "Fréchet distance"}


class Cell(NamedTuple):
    """A text, and whether it is "best", "close", "lost" or nothing of the kind."""

    text: str
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of text.

    Attributes:
        caption: What it is of.
        heads: Of the columns.
        rows: As many cells each.
        words: How many columns, from the left, hold words and not numbers.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: int = 1


def sheets(found: Findings) -> list[Sheet]:
    """A table for each kind of score, and one of what was tried, if anything was."""
    table = found.table
    scores = dict.fromkeys(task.score for task in table.tasks)
    made = [_score_sheet(table, score) for score in scores]
    begun = [one for one in found.tried if any(c.status != "missing" for c in one.candidates)]
    return [*made, *([_tried_sheet(begun)] if begun else [])]


def _score_sheet(table: StudyTable, score: str) -> Sheet:
    tasks = [task for task in table.tasks if task.score == score]
    settings = [s for s in table.settings if any((s, task) in table.entries for task in tasks)]
    usual = _usual_n(table)
    return Sheet(
        _caption(score),
        ("setting", *(join_lines(task.label) for task in tasks)),
        tuple(
            (Cell(join_lines(s)), *(_score_cell(table, s, t, usual) for t in tasks))
            for s in settings
        ),
    )


def _caption(score: str) -> str:
    unit = " in percent" if score_text([0.0], score).endswith("%") else ""
    better = "less" if is_falling(score) else "more"
    return f"Test {_NAMES.get(score, score)}{unit}, {better} is better"


def _usual_n(table: StudyTable) -> int:
    """The number of trials that most cells with a score have; of equals the larger."""
    sizes = Counter(len(entry.found.values) for entry in table.entries.values())
    return max((n for n in sizes if n), key=lambda n: (sizes[n], n), default=0)


def _score_cell(table: StudyTable, setting: str, task: Task, usual: int) -> Cell:
    entry = table.entries.get((setting, task))
    if entry is None:
        return Cell("–")
    found = entry.found
    lost = _lost(found)
    if not found.values or found.score != task.score:
        return Cell(lost or "–", "lost" if found.diverged or found.unscored else "")
    text = score_text(found.values, task.score).removesuffix(" %")
    inside = lost or (f"n = {len(found.values)}" if len(found.values) != usual else "")
    return Cell(f"{text} ({inside})" if inside else text, entry.mark)


def _lost(found: Comparison) -> str:
    """As in "1 of 3 diverged"; unfinished runs are counted beside the table."""
    over = len(found.runs) - found.unfinished
    counts = {"diverged": found.diverged, "without a score": found.unscored}
    return ", ".join(f"{number} of {over} {why}" for why, number in counts.items() if number)


def _tried_sheet(found: Iterable[Tried]) -> Sheet:
    rows = tuple(
        (
            Cell(join_lines(one.labels.setting)),
            Cell(join_lines(", ".join(tasks))),
            Cell(_options(one.chosen.options) if one.chosen else "not yet"),
            Cell(", ".join(_candidate(c, one.score) for c in one.candidates)),
        )
        for one, tasks in _by_candidates(found)
    )
    caption = "Chosen by the last epoch's score on held-out training data"
    return Sheet(caption, ("setting", "task", "chosen", "score of each value"), rows, words=4)


def _by_candidates(found: Iterable[Tried]) -> list[tuple[Tried, list[str]]]:
    """What was tried once for several tasks stands once, with all of them."""
    rows: list[tuple[Tried, list[str]]] = []
    for one in found:
        same = next((row for row in rows if _is_twin(row[0], one)), None)
        if same is None:
            rows.append((one, [one.labels.task]))
        else:
            same[1].append(one.labels.task)
    return rows


def _is_twin(first: Tried, second: Tried) -> bool:
    return (first.labels.setting, first.runs) == (second.labels.setting, second.runs)


def _options(options: Mapping[str, object]) -> str:
    return join_lines(" ".join(f"{name}={_short(value)}" for name, value in options.items()))


def _short(value: object) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _candidate(one: Candidate, score: str) -> str:
    value = one.status if one.score is None else value_text(one.score, score)
    return f"{join_lines(' '.join(map(_short, one.options.values())))}: {value}"


def notes(found: Findings) -> list[str]:
    """Sentences below the table: how many trials, each comparison, what was missing, hardware."""
    if not found.table.entries:
        return ["There are no runs to show yet.", *_missing(found)]
    texts = [
        _trials_note(found.table),
        *_missing(found),
        *_left_out(found),
        *(lead_text(lead) for lead in found.leads),
        *_tests_note(found),
        *(f"Hardware: {place}." for place in found.machines),
    ]
    return [join_lines(text) for text in texts]


def _trials_note(table: StudyTable) -> str:
    found = [entry.found for entry in table.entries.values()]
    sizes = {len(one.values) for one in found if one.values}
    n = _usual_n(table)
    how_many = f"n = {n}" if len(sizes) < 2 else f"n = {n} where a cell says nothing else"
    spread = "Mean" if sizes <= {1} else "Mean ± standard deviation"
    return f"{spread} of the last epoch's score over the trials that finished; {how_many}."


def _missing(found: Findings) -> list[str]:
    if not found.missing:
        return []
    return [f"{found.missing} of {found.asked} runs are not over, so this is not final."]


def _left_out(found: Findings) -> list[str]:
    count = 0 if found.tried else sum(run.config.validate for run in found.runs)
    return [f"Left out, since scored on validation images: {count} of the runs."] if count else []


def _tests_note(found: Findings) -> list[str]:
    if not found.leads:
        return []
    made = max((lead.of for lead in found.leads), default=0)
    picked = (
        f"all settings against {found.reference}"
        if found.reference
        else "the best mean of each task against the second, picked by these same scores"
    )
    tests = f"{made} test{'s' if made != 1 else ''}"
    text = (
        f"Compared: {picked}; runs of one seed share initial weights and batches, and are paired. "
        f"In brackets 95 % intervals. {tests}"
    )
    return [f"{text}; told apart means p < 0.05 after Holm's adjustment for all of them."]


def legend(first: str, second: str) -> str:
    """What the two marks mean, as a format shows them."""
    return (
        f"{first}: the best mean of its column; {second}: within one standard deviation of it, "
        "the larger of the two settings'."
    )
