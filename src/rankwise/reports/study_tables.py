"""The tables of a study's page: scores as in the paper, all runs, and where they ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rankwise._table import Style
from rankwise._text import format_count
from rankwise.charts.axes import get_score_name
from rankwise.lab.records import Hardware, Run
from rankwise.lab.scores import score_text
from rankwise.reports.page import (
    Cell,
    Table,
    Text,
    capitalize,
    format_number_cell,
    format_score_cell,
    make_columns,
)
from rankwise.study.table import Entry, StudyTable, Task, Trials

__all__ = ["LEGEND", "describe_origin", "list_lost", "make_runs_table", "make_score_tables"]

LEGEND = (
    "★ and green: the best mean of a column. ≈ and orange: within one standard deviation of it, "
    "the larger of the two settings'. Mean ± standard deviation of the last epoch's score over the "
    "trials that finished; their number in brackets. Options that a row does not name are the same "
    "for its optimizer within a column, and may differ between columns."
)
_SYMBOLS = {"best": "★ ", "close": "≈ ", "": ""}
_STYLES: dict[str, Style] = {"best": "best", "close": "close", "diverged": "bad"}
_LONG = 12


def list_lost(settings: Sequence[Trials]) -> list[str]:
    """Return how many runs are not part of the means, by the reason."""
    counts = {
        "diverged": sum(trials.diverged for trials in settings),
        "without a score": sum(trials.unscored for trials in settings),
        "unfinished": sum(trials.unfinished for trials in settings),
    }
    return [f"{number} {reason}" for reason, number in counts.items() if number]


def make_score_tables(table: StudyTable) -> list[Table]:
    """Return settings by tasks, a table for each kind of score."""
    return [
        _make_score_table(table, score)
        for score in dict.fromkeys(task.score for task in table.tasks)
    ]


def make_runs_table(table: StudyTable) -> Table:
    """Return every run, finished or not."""
    task_title = ["task"] if len(table.tasks) > 1 else []
    titles = ("setting", *task_title, "seed", "status", "epochs")
    titles += ("test score", "best epoch", "Q", "s/epoch")
    rows = tuple(
        (Cell(setting), *(Cell(task.label) for _ in task_title), *_make_run_cells(run, entry))
        for task in table.tasks
        for setting in table.settings
        if (entry := table.entries.get((setting, task)))
        for run in sorted(entry.trials.runs, key=lambda run: run.config.seed)
    )
    return Table(
        make_columns(titles, left=("task", "status")),
        rows,
        f"All {format_count(len(rows), 'run')}",
        has_filter=len(rows) > _LONG,
        hints={
            "test score": "After the last epoch.",
            "best epoch": "The best test score of any epoch. It is selected on the test set, so it "
            "is optimistic.",
            "s/epoch": "Seconds of training per epoch, without tests and saving.",
        },
    )


def describe_origin(runs: Iterable[Run]) -> Iterator[Text]:
    """Yield hardware, commits and versions of the runs, and whether their times are comparable."""
    sessions = [session for run in runs for session in run.sessions()]
    if not sessions:
        return
    hardware = Counter(_describe_machine(session.hardware) for session in sessions)
    commits = Counter((session.commit or "unknown")[:10] for session in sessions)
    versions = Counter(
        ", ".join(f"{name} {version}" for name, version in session.versions.items()) or "unknown"
        for session in sessions
    )
    counters = {"Hardware": hardware, "Commit": commits, "Versions": versions}
    lines = [f"{title}: {_format_counter(counter)}." for title, counter in counters.items()]
    if any((session.commit or "").endswith("+") for session in sessions):
        lines.append("Some runs were started from code with changes that were not committed.")
    if len(hardware) > 1:
        lines.append("Times on different hardware are not comparable.")
    yield Text(tuple(lines), collapsed_under="Where and with what they ran")


def _make_score_table(table: StudyTable, score: str) -> Table:
    tasks = [task for task in table.tasks if task.score == score]
    settings = [s for s in table.settings if any((s, task) in table.entries for task in tasks)]
    lower = any(table.column(task)[0].trials.lower_is_better for task in tasks)
    return Table(
        make_columns(("setting", *(task.label for task in tasks))),
        tuple((Cell(s), *(_make_score_cell(table, s, task) for task in tasks)) for s in settings),
        f"{capitalize(get_score_name(score))}, {'lower' if lower else 'higher'} is better",
        has_filter=len(settings) > _LONG,
    )


def _make_score_cell(table: StudyTable, setting: str, task: Task) -> Cell:
    entry = table.entries.get((setting, task))
    if entry is None:
        return Cell("", "dim")
    trials, lost = entry.trials, list_lost([entry.trials])
    if not trials.values:
        return Cell(", ".join(lost) or "–", "bad" if trials.diverged or trials.unscored else "dim")
    counts = ", ".join([str(len(trials.values)), *lost])
    text = f"{_SYMBOLS[entry.mark]}{score_text(trials.values, task.score)} ({counts})"
    return Cell(text, _STYLES.get(entry.mark, ""), trials.mean)


def _make_run_cells(run: Run, entry: Entry) -> tuple[Cell, ...]:
    score = entry.trials.score
    scores = [record.test.get(score) for record in run.epochs]
    known = [value for value in scores if value is not None]
    best = (min if entry.trials.lower_is_better else max)(known, default=None)
    return (
        format_number_cell(run.config.seed, "d"),
        Cell(run.status, "dim" if run.status == "unfinished" else _STYLES.get(run.status, "")),
        format_number_cell(len(run.epochs), "d"),
        format_score_cell(scores[-1] if scores else None, score),
        format_score_cell(best, score),
        format_number_cell(run.quality, ".3f"),
        format_number_cell(run.trained / len(run.epochs) if run.trained else None, ".3g"),
    )


def _format_counter(counter: Counter[str]) -> str:
    if len(counter) == 1:
        return next(iter(counter))
    return "; ".join(f"{text} ({format_count(n, 'start')})" for text, n in counter.most_common())


def _describe_machine(hardware: Hardware) -> str:
    if hardware == Hardware():
        return "unknown"
    return ", ".join(
        (
            hardware.cpu or "an unknown processor",
            f"{hardware.cores or '?'} cores",
            f"{hardware.threads or '?'} threads used",
            *hardware.accelerators,
        )
    )
