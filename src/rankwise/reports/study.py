"""A study as a page: which setting is best, how sure that is, and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rankwise._table import Style
from rankwise._text import format_count, sanitize
from rankwise.charts.axes import get_score_name
from rankwise.lab.records import Hardware, Run
from rankwise.lab.scores import format_score
from rankwise.reports.page import (
    Cell,
    Fact,
    Page,
    Section,
    Table,
    Text,
    capitalize,
    format_number_cell,
    format_score_cell,
    make_columns,
)
from rankwise.reports.run_summary import format_time
from rankwise.reports.study_charts import draw_study_charts
from rankwise.study.results import StudyResults
from rankwise.study.summary import describe_results
from rankwise.study.table import Entry, StudyTable, Task, Trials, build_table, is_close

_MOST_TASKS = 4
_FEW = 5  # trials
_LEGEND = (
    "★ and green: the best mean of a column. ≈ and orange: within one standard deviation of it, "
    "the larger of the two settings'. Mean ± standard deviation of the last epoch's score over the "
    "trials that finished; their number in brackets. Options that a row does not name are the same "
    "for its optimizer within a column, and may differ between columns."
)
_SYMBOLS = {"best": "★ ", "close": "≈ ", "": ""}
_STYLES: dict[str, Style] = {"best": "best", "close": "close", "diverged": "bad"}
_LONG = 12


def make_study_page(
    runs: Sequence[Run], *, title: str, notes: Sequence[str] = (), study: StudyResults | None = None
) -> Page:
    """Return many runs as a page: the paper's tables and charts.

    Runs that have not finished are counted, not averaged. `study` has the same runs under its own
    names, with its tests; without it they are named by their options.

    Example:
        >>> make_study_page([], title="Nothing yet").summary
        ('There are no runs here.',)
    """
    table = _sanitize(build_table(runs) if study is None else study.table)
    below = (_LEGEND,) if study is None else (study.about, _LEGEND, *describe_results(study))
    sections = [_make_scores(table, notes, [text for text in below if text])]
    places = dict.fromkeys((task.network, task.data) for task in table.tasks)
    for number, (network, data) in enumerate(places):
        charts = draw_study_charts(_list_settings(table, network, data), number)
        sections.append(Section(f"{network} on {data}", charts.items))
    if runs:
        sections.append(Section("Runs", (_make_runs_table(table), *_describe_origin(runs))))
    return Page(
        title=title,
        summary=tuple(_summarize(table)),
        facts=_list_facts(table) if runs else (),
        sections=tuple(section for section in sections if section.items),
    )


def _sanitize(table: StudyTable) -> StudyTable:
    """The table with the names that a study chose, which may hold anything, as plain text."""
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


def _list_settings(table: StudyTable, network: str, data: str) -> list[Trials]:
    """The settings of a network and data that have a score, the best first, by their full names."""
    settings = [
        replace(entry.trials, setting=" ".join(filter(None, (setting, task.rest))))
        for (setting, task), entry in table.entries.items()
        if (task.network, task.data) == (network, data)
        and entry.trials.values
        and entry.trials.score == task.score
    ]
    return sorted(settings, key=lambda one: (one.mean or 0.0) * (1 if one.lower_is_better else -1))


def _make_scores(table: StudyTable, notes: Sequence[str], below: Sequence[str]) -> Section:
    warnings = list(notes)
    for task in table.tasks:
        epochs = {len(run.epochs) for entry in table.column(task) for run in entry.trials.finished}
        if len(epochs) > 1:
            span = f"{min(epochs)} to {max(epochs)}"
            warnings.append(f"{task.label}: runs had {span} epochs, so scores are not comparable.")
    items = (Text(tuple(warnings), style="warning"),) if warnings else ()
    if not any(entry.trials.values for entry in table.entries.values()):
        return Section("Scores", items)
    scores = dict.fromkeys(task.score for task in table.tasks)
    tables = [_make_score_table(table, score) for score in scores]
    return Section("Scores", (*items, *tables, Text(tuple(below))))


def _list_facts(table: StudyTable) -> tuple[Fact, ...]:
    settings = [entry.trials for entry in table.entries.values()]
    runs = [run for trials in settings for run in trials.runs]
    finished = sum(len(trials.values) for trials in settings)
    sizes = sorted({len(trials.values) for trials in settings})
    span = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}–{sizes[-1]}"
    lost = ", ".join(_list_lost(settings)) or "all of them"
    return (
        Fact("Runs finished", f"{finished} of {len(runs)}", lost),
        Fact("Settings", str(len(table.settings))),
        Fact("Tasks", str(len(table.tasks)), "networks, data and their options"),
        Fact("Trials per setting", span, "finished"),
        Fact("Training time", format_time(sum(run.trained for run in runs))),
    )


def _summarize(table: StudyTable) -> list[str]:
    """What is best on each task, how sure that is, and what is missing."""
    settings = [entry.trials for entry in table.entries.values()]
    if not settings:
        return ["There are no runs here."]
    finished = sum(len(trials.values) for trials in settings)
    runs = format_count(sum(len(trials.runs) for trials in settings), "run")
    counts, lost = f"{finished} of {runs} finished with a score", _list_lost(settings)
    counts += f", {', '.join(lost)} and not counted" if lost else ""
    if not finished:
        return [f"No run has finished with a score yet: {counts}."]
    shown = table.tasks[:_MOST_TASKS]
    lines = [_describe_task(task, [e.trials for e in table.column(task)]) for task in shown]
    if len(table.tasks) > len(shown):
        more = format_count(len(table.tasks) - len(shown), "more task")
        lines.append(f"{more}: see the table.")
    return [*lines, f"{capitalize(counts)}.{_warn_of_few_trials(settings)}"]


def _warn_of_few_trials(settings: Sequence[Trials]) -> str:
    trials = max(len(setting.values) for setting in settings)
    if trials == 1:
        return " One trial per setting is too few for a test: run more seeds."
    if trials < _FEW:
        return f" With {trials} trials per setting or fewer, standard deviations are rough."
    return ""


def _describe_task(task: Task, settings: Sequence[Trials]) -> str:
    """Which of a task's settings, given the best first, is best."""
    scored = [trials for trials in settings if trials.values]
    if not scored:
        return f"{task.label}: no trial has finished with a score."
    best = scored[0]
    text = format_score(best.values, best.score)
    score = f"{get_score_name(best.score)} {text} (n = {len(best.values)})"
    if len(scored) == 1:
        return f"{task.label}: only {best.setting} has finished, {score}."
    return f"{task.label}: {best.setting} is best, {score}, {_describe_lead(scored)}."


def _describe_lead(scored: Sequence[Trials]) -> str:
    """How far the best setting is ahead of the second, and whether that says anything."""
    best, second = scored[:2]
    lead = abs((best.mean or 0.0) - (second.mean or 0.0))
    by = f"{100 * lead:.2f} points" if best.score == "accuracy" else f"{lead:.3g}"
    text = format_score(second.values, second.score)
    ahead = f"{by} ahead of {second.setting} ({text}, n = {len(second.values)})"
    close = sum(is_close(trials, best) for trials in scored[1:])
    if close:
        others = "one other is" if close == 1 else f"{close} others are"
        return f"{ahead}; but {others} within one standard deviation, so it is not a clear winner"
    if best.spread is None:
        return f"{ahead}; it has one trial, so this may be chance"
    return f"{ahead}, more than one standard deviation"


def _list_lost(settings: Sequence[Trials]) -> list[str]:
    """How many runs are not part of the means, by the reason."""
    counts = {
        "diverged": sum(trials.diverged for trials in settings),
        "without a score": sum(trials.unscored for trials in settings),
        "unfinished": sum(trials.unfinished for trials in settings),
    }
    return [f"{number} {reason}" for reason, number in counts.items() if number]


def _make_runs_table(table: StudyTable) -> Table:
    task_title = ["task"] if len(table.tasks) > 1 else []
    titles = ("setting", *task_title, "seed", "status", "epochs")
    titles += ("test score", "best epoch", "s/epoch", "S", "Q")
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
            "S": "The stable rank weighted by width; records of earlier versions don't have it.",
            "Q": "The paper's figure of a network; it does not rank networks.",
        },
    )


def _describe_origin(runs: Iterable[Run]) -> Iterator[Text]:
    """Hardware, commits and versions of the runs, and whether their times are comparable."""
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
    trials, lost = entry.trials, _list_lost([entry.trials])
    if not trials.values:
        return Cell(", ".join(lost) or "–", "bad" if trials.diverged or trials.unscored else "dim")
    counts = ", ".join([str(len(trials.values)), *lost])
    text = f"{_SYMBOLS[entry.mark]}{format_score(trials.values, task.score)} ({counts})"
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
        format_number_cell(run.trained / len(run.epochs) if run.trained else None, ".3g"),
        format_number_cell(run.stable_rank_by_width, ".3f"),
        format_number_cell(run.quality, ".3f"),
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
