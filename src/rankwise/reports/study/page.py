"""A study as a page: which setting is best, how sure that is, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankwise._text import sanitize
from rankwise.lab.records import Run
from rankwise.reports.page import Fact, Page, Section, Words
from rankwise.reports.run_words import time_text
from rankwise.reports.study.figures import pictures
from rankwise.reports.study.tables import LEGEND, origins, runs_table, score_tables
from rankwise.reports.study.words import lost, verdict
from rankwise.study.results import StudyResults
from rankwise.study.summary import describe_results
from rankwise.study.table import StudyTable, Trials, build_table

__all__ = ["study_page"]


def study_page(
    runs: Sequence[Run], *, title: str, notes: Sequence[str] = (), study: StudyResults | None = None
) -> Page:
    """Many runs as a page: the paper's tables and figures.

    Args:
        runs: All of a study; those that have not finished are counted, not averaged.
        title: The page's head.
        notes: What a reader should know beside, such as folders that could not be read.
        study: The same runs under a study's own names, with its tests; without it they are named by
            their options.

    Example:
        >>> study_page([], title="Nothing yet").verdict
        ('There are no runs here.',)
    """
    table = _printable(build_table(runs) if study is None else study.table)
    below = (LEGEND,) if study is None else (study.about, LEGEND, *describe_results(study))
    words, parts, correlations = list(verdict(table)), [], []
    for number, (network, data) in enumerate(_places(table)):
        drawn = pictures(_series(table, network, data), number)
        correlations += [f"{network} {data}: {drawn.correlation}"] if drawn.correlation else []
        if drawn.items:
            parts.append(Section(f"{network} on {data}", drawn.items))
    words[-1:-1] = correlations[:_MOST_SAID]
    scores = _scores(table, notes, [text for text in below if text])
    sections = [scores, *parts, _origin(runs, table)]
    return Page(
        title=title,
        verdict=tuple(words),
        facts=_facts(table) if runs else (),
        sections=tuple(section for section in sections if section.items),
    )


_MOST_SAID = 3


def _printable(table: StudyTable) -> StudyTable:
    """The table with names that a study made up, and that may hold anything, as plain text."""
    tasks = {
        task: replace(task, rest=sanitize(task.rest), title=sanitize(task.title))
        for task in table.tasks
    }
    entries = {
        (sanitize(setting), tasks[task]): replace(
            entry, trials=replace(entry.trials, setting=sanitize(entry.trials.setting))
        )
        for (setting, task), entry in table.entries.items()
    }
    return StudyTable(tuple(tasks.values()), tuple(map(sanitize, table.settings)), entries)


def _places(table: StudyTable) -> list[tuple[str, str]]:
    return list(dict.fromkeys((task.network, task.data) for task in table.tasks))


def _series(table: StudyTable, network: str, data: str) -> list[Trials]:
    """The settings of a network and data that have a score, each with all of its name."""
    found = [
        replace(entry.trials, setting=" ".join(filter(None, (setting, task.rest))))
        for (setting, task), entry in table.entries.items()
        if (task.network, task.data) == (network, data)
        and entry.trials.values
        and entry.trials.score == task.score
    ]
    return sorted(found, key=lambda one: (one.mean or 0.0) * (1 if one.lower_is_better else -1))


def _scores(table: StudyTable, notes: Sequence[str], below: Sequence[str]) -> Section:
    warnings = [*notes, *_unequal(table)]
    said = (Words(tuple(warnings), tone="warning"),) if warnings else ()
    finished = any(entry.trials.values for entry in table.entries.values())
    if not finished:
        return Section("Scores", said)
    return Section("Scores", (*said, *score_tables(table), Words(tuple(below))))


def _unequal(table: StudyTable) -> list[str]:
    """Tasks whose settings were not given the same number of epochs."""
    words = []
    for task in table.tasks:
        lengths = {len(run.epochs) for entry in table.column(task) for run in entry.trials.finished}
        if len(lengths) > 1:
            span = f"{min(lengths)} to {max(lengths)}"
            words.append(f"{task.label}: runs had {span} epochs, so scores compare unlike efforts.")
    return words


def _facts(table: StudyTable) -> tuple[Fact, ...]:
    found = [entry.trials for entry in table.entries.values()]
    runs = [run for one in found for run in one.runs]
    done = sum(len(one.values) for one in found)
    trials = sorted({len(one.values) for one in found})
    trained = sum(run.trained for run in runs)
    some = str(trials[0]) if len(trials) == 1 else f"{trials[0]}–{trials[-1]}"
    return (
        Fact("Runs finished", f"{done} of {len(runs)}", ", ".join(lost(found)) or "all of them"),
        Fact("Settings", str(len(table.settings))),
        Fact("Tasks", str(len(table.tasks)), "networks, data and what belongs to them"),
        Fact("Trials a setting", some, "finished"),
        Fact("Time spent on training", time_text(trained)),
    )


def _origin(runs: Sequence[Run], table: StudyTable) -> Section:
    if not runs:
        return Section("Runs", ())
    words, alike = origins(runs)
    if not alike:
        words.append("Times on unlike hardware can't be compared.")
    where = (Words(tuple(words), summary="Where and with what they ran"),) if words else ()
    return Section("Runs", (runs_table(table), *where))
