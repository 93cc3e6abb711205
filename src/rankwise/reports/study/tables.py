"""The tables of a study's page: scores as in the paper, all runs, and where they ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rankwise._text import format_count
from rankwise.charts.axes import get_score_name
from rankwise.lab.records import Hardware, Run
from rankwise.lab.scores import score_text
from rankwise.reports.page import Cell, Table, number_cell
from rankwise.reports.study.words import capital, lost
from rankwise.study.table import Entry, StudyTable, Task, Trials

__all__ = ["LEGEND", "origins", "runs_table", "score_tables"]

LEGEND = (
    "★ and green: the best mean of a column. ≈ and orange: within one standard deviation of it, "
    "the larger of the two settings'. Mean ± standard deviation of the last epoch's score over the "
    "trials that finished; their number in brackets. Options that a row does not name are the same "
    "for its optimizer within a column, and may differ between columns."
)
_SYMBOLS = {"best": "★ ", "close": "≈ ", "": ""}
_LONG = 12


def score_tables(table: StudyTable) -> list[Table]:
    """Settings by tasks, a table for each kind of score."""
    scores = dict.fromkeys(task.score for task in table.tasks)
    return [_score_table(table, score) for score in scores]


def _score_table(table: StudyTable, score: str) -> Table:
    tasks = [task for task in table.tasks if task.score == score]
    settings = [s for s in table.settings if any((s, task) in table.entries for task in tasks)]
    less = any(table.column(task)[0].trials.lower_is_better for task in tasks)
    better = "less is better" if less else "more is better"
    return Table(
        caption=f"{capital(get_score_name(score))}, {better}",
        heads=("setting", *(task.label for task in tasks)),
        rows=tuple((Cell(s), *(_score_cell(table, s, task) for task in tasks)) for s in settings),
        filter=len(settings) > _LONG,
    )


def _score_cell(table: StudyTable, setting: str, task: Task) -> Cell:
    entry = table.entries.get((setting, task))
    if entry is None:
        return Cell("", tone="dim")
    found = entry.trials
    if not found.values:
        tone = "bad" if found.diverged or found.unscored else "dim"
        return Cell(_trials(found) or "–", tone=tone)
    text = f"{_SYMBOLS[entry.mark]}{score_text(found.values, task.score)} ({_trials(found)})"
    return Cell(text, value=found.mean, tone=entry.mark)


def _trials(found: Trials) -> str:
    """How many trials: "3", "2, 1 diverged"."""
    return ", ".join([*([str(len(found.values))] if found.values else []), *lost([found])])


def runs_table(table: StudyTable) -> Table:
    """Every run, finished or not."""
    several = len(table.tasks) > 1
    heads = ("setting", *(["task"] if several else []), "seed", "status", "epochs")
    heads += ("test score", "best epoch's", "Q", "s/epoch")
    rows = [
        (Cell(setting), *([Cell(task.label)] if several else []), *_run_cells(run, entry))
        for (setting, task), entry in _in_order(table)
        for run in sorted(entry.trials.runs, key=lambda run: run.config.seed)
    ]
    first = 2 if several else 1
    return Table(
        caption=f"All {format_count(len(rows), 'run')}",
        heads=heads,
        rows=tuple(rows),
        numeric=tuple(n for n in range(first, len(heads)) if heads[n] != "status"),
        filter=len(rows) > _LONG,
        hints={
            "test score": "After the last epoch.",
            "best epoch's": "The best test score of any epoch. It is chosen by the test itself, so "
            "it flatters.",
            "s/epoch": "Seconds of training an epoch, without tests and saving.",
        },
    )


def _in_order(table: StudyTable) -> list[tuple[tuple[str, Task], Entry]]:
    keys = [(s, task) for task in table.tasks for s in table.settings if (s, task) in table.entries]
    return [(key, table.entries[key]) for key in keys]


def _run_cells(run: Run, entry: Entry) -> tuple[Cell, ...]:
    score = entry.trials.score
    scores = [epoch.test.get(score) for epoch in run.epochs]
    known = [value for value in scores if value is not None]
    pick = min if entry.trials.lower_is_better else max
    return (
        Cell(str(run.config.seed), value=float(run.config.seed)),
        Cell(run.status, tone={"diverged": "bad", "unfinished": "dim"}.get(run.status, "")),
        number_cell(len(run.epochs), "d"),
        _score(scores[-1] if scores else None, score),
        _score(pick(known) if known else None, score),
        number_cell(run.quality, ".3f"),
        number_cell(run.trained / len(run.epochs) if run.trained else None, ".3g"),
    )


def _score(value: float | None, score: str) -> Cell:
    return Cell("–" if value is None else score_text([value], score), value=value)


def origins(runs: Iterable[Run]) -> tuple[list[str], bool]:
    """Hardware, commits and versions of the runs, and whether their times can be compared."""
    sessions = [session for run in runs for session in run.sessions()]
    hardware = Counter(_machine(session.hardware) for session in sessions)
    commits = Counter((session.commit or "unknown")[:10] for session in sessions)
    versions = Counter(_versions(session.versions) for session in sessions)
    words = [
        f"{head}: {_listed(found)}."
        for head, found in (("Hardware", hardware), ("Commit", commits), ("Versions", versions))
        if found
    ]
    if any((session.commit or "").endswith("+") for session in sessions):
        words.append("Some runs were started from code that was changed since its commit.")
    return words, len(hardware) <= 1


def _listed(found: Counter[str]) -> str:
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{text} ({format_count(n, 'start')})" for text, n in found.most_common())


def _machine(found: Hardware) -> str:
    if found == Hardware():
        return "unknown"
    parts: Sequence[object] = (
        found.cpu or "an unknown processor",
        f"{found.cores or '?'} cores",
        f"{found.threads or '?'} threads used",
        *found.accelerators,
    )
    return ", ".join(map(str, parts))


def _versions(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items()) or "unknown"
