"""The pages of a watched folder: the list of runs, a run, a comparison; and their updates.

An open page asks for updates with a cursor for each run: the last epoch it shows, and a number that
grows with every start of the run, since a resumed run may drop epochs and run them again.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from rankwise._table import Style
from rankwise._text import format_count, sanitize
from rankwise.errors import ArgumentError, RunError
from rankwise.lab.config import Config
from rankwise.lab.records import Run
from rankwise.lab.scores import format_score
from rankwise.reports.html import render_table_rows
from rankwise.reports.page import (
    NO_VALUE,
    Cell,
    Fact,
    Link,
    Page,
    Section,
    Table,
    Text,
    Update,
    format_number_cell,
    make_columns,
)
from rankwise.reports.run import make_run_page, make_run_update
from rankwise.reports.watch.comparison import (
    DATASET,
    MOST_RUNS,
    TABLE,
    list_charted_fields,
    make_comparison_page,
    make_comparison_rows,
    make_comparison_table,
    make_title,
    summarize_comparison,
)
from rankwise.reports.watch.folder import RunsFolder, RunSummary

HOME = Link("All runs", "/")
_RUNS = "runs"  # the table's name, by which an open page updates it
_NO_RUNS = "none"
_STYLES: dict[str, Style] = {
    "running": "best",
    "finished": "",
    "diverged": "bad",
    "stopped": "dim",
    "unreadable": "bad",
}
# A name contains network, data and optimizer as well: what comes next to it should be news.
_TITLES = ("run", "state", "epoch", "test score", "loss", "changed", "network", "data", "optimizer")
_HINTS = {
    "state": "running: records still come; stopped: it did not end, and no records come",
    "test score": "of the last epoch: accuracy, perplexity (lower is better) or Fréchet distance",
    "loss": "of the last epoch, in the test where known, else in training",
    "changed": "when its records last changed",
}
_EMPTY = (
    "No run is in this folder yet. A run appears here as soon as it begins, as by "
    "`rankwise train --out` with this folder."
)
_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


class _Cursor(NamedTuple):
    """How much of a run a page shows."""

    epoch: int
    starts: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.starts}"


class WatchPages:
    """The pages of the runs in a folder.

    Every method that takes a name raises UnknownRunError if there is no run of this name, and
    RunError if it can't be read.
    """

    def __init__(self, folder: Path | str) -> None:
        self.path = Path(folder)  # as it was given, for people
        self.folder = RunsFolder(folder)

    def make_list(self) -> Page:
        """Return the list of all runs."""
        runs = self.folder.summarize_all()
        item = make_list_table(runs) if runs else Text((_EMPTY,))
        return Page(
            title="Runs",
            summary=summarize_list(runs),
            facts=list_state_facts(runs),
            sections=(Section("All runs", (item,)),),
            source=str(self.path),
            updates=_make_list_address(_hash_list(runs)),
        )

    def update_list(self, seen: str) -> Update:
        """Return what changed in the list since it had this hash."""
        runs = self.folder.summarize_all()
        current = _hash_list(runs)
        if current == seen:
            return {"updates": _make_list_address(current)}
        if _NO_RUNS in (current, seen):
            return {"reload": True}
        return {
            "updates": _make_list_address(current),
            "summary": summarize_list(runs),
            "facts": [astuple(fact) for fact in list_state_facts(runs)],
            "tables": {_RUNS: render_table_rows(make_list_table(runs))},
        }

    def make_run_head(self, name: str) -> Page:
        """Return the start of a run's page, which is known without reading the whole run."""
        summary = self.folder.summarize(name)
        if summary.problem:
            raise RunError(f"{sanitize(name)}: {summary.problem}")
        source = sanitize(str(self.path / name))
        return Page(title=sanitize(name), summary=(), sections=(), source=source, back=HOME)

    def make_run(self, name: str) -> Page:
        """Return a run's page."""
        # Before the run is read: a start in between then makes the page reload.
        starts = self.folder.summarize(name).starts
        run = self.folder.load(name)
        return make_run_page(run, back=HOME, updates=_make_run_address(name, run, starts))

    def update_run(self, name: str, seen: str) -> Update:
        """Return what is new on a run's page since the cursor."""
        summary, cursor = self.folder.summarize(name), _parse_cursor(seen)
        if cursor is None or _has_dropped_epochs(summary, cursor):
            return {"reload": True}
        if summary.epoch == cursor.epoch and not summary.has_ended:
            return {"updates": _format_run_address(name, cursor)}
        run = self.folder.load(name)
        update = make_run_update(run, cursor.epoch)
        return {**update, "updates": _make_run_address(name, run, summary.starts)}

    def make_comparison_head(self, names: Sequence[str]) -> Page:
        """Return the start of a comparison, which is known without reading the runs."""
        _check_count(names)
        for name in names:
            self.make_run_head(name)
        return Page(title=make_title(len(names)), summary=(), sections=(), back=HOME)

    def make_comparison(self, names: Sequence[str]) -> Page:
        """Return some runs in the same charts."""
        _check_count(names)
        starts = [self.folder.summarize(name).starts for name in names]
        runs = {name: self.folder.load(name) for name in names}
        return make_comparison_page(runs, back=HOME, updates=_make_comparison_address(runs, starts))

    def update_comparison(self, names: Sequence[str], seen: Sequence[str]) -> Update:
        """Return what is new on a comparison since the cursors, one for each run."""
        _check_count(names)
        cursors = [cursor for text in seen if (cursor := _parse_cursor(text)) is not None]
        summaries = [self.folder.summarize(name) for name in names]
        if len(cursors) != len(summaries):
            return {"reload": True}
        pairs = list(zip(summaries, cursors, strict=True))
        if any(_has_dropped_epochs(summary, cursor) for summary, cursor in pairs):
            return {"reload": True}
        if all(s.epoch == c.epoch for s, c in pairs) and not all(s.has_ended for s in summaries):
            return {"updates": _format_comparison_address(names, cursors)}
        runs = {name: self.folder.load(name) for name in names}
        rows = make_comparison_rows(runs)
        shown = {name: cursor.epoch for name, cursor in zip(names, cursors, strict=True)}
        old = [row for row in rows if row["epoch"] <= shown[row["name"]]]
        # New epochs may bring a chart that the page does not have.
        if list_charted_fields(rows) != list_charted_fields(old):
            return {"reload": True}
        return {
            "updates": _make_comparison_address(runs, [summary.starts for summary in summaries]),
            "datasets": {DATASET: [row for row in rows if row["epoch"] > shown[row["name"]]]},
            "summary": summarize_comparison(runs),
            "tables": {TABLE: render_table_rows(make_comparison_table(runs))},
        }


def summarize_list(runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """Return how many runs there are, and which need attention."""
    if not runs:
        return ("There are no runs yet.",)
    states = Counter(run.state for run in runs)
    text = f"{format_count(len(runs), 'run')}, {states['running'] or 'none'} in progress."
    bad = [f"{states[s]} {s}" for s in ("diverged", "stopped", "unreadable") if states[s]]
    return (text, f"Check those that failed: {', '.join(bad)}.") if bad else (text,)


def list_state_facts(runs: Sequence[RunSummary]) -> tuple[Fact, ...]:
    """Return a tile for each state with the number of runs in it."""
    states = Counter(run.state for run in runs)
    return tuple(Fact(state, str(states[state])) for state in _STYLES if states[state])


def make_list_table(runs: Sequence[RunSummary]) -> Table:
    """Return a row for each run; ticked ones can be compared."""
    now = time.time()
    return Table(
        make_columns(_TITLES, left=("state", "network", "data", "optimizer")),
        tuple(_make_row(run, now) for run in runs),
        "All runs: tick some to compare them in the same charts",
        has_filter=True,
        hints=_HINTS,
        name=_RUNS,
        compare_address="/compare",
    )


def _make_row(run: RunSummary, now: float) -> tuple[Cell, ...]:
    config = run.config
    changed = Cell(_format_age(now - run.changed), value=run.changed)
    # Nothing in a name can lead elsewhere.
    name = Cell(run.name, link=f"/run/{quote(run.name, safe='')}")
    state = Cell(run.state, _STYLES.get(run.state, ""))
    if config is None:
        problem = Cell(run.problem, "bad")
        return (name, state, *[NO_VALUE] * 3, changed, problem, Cell(""), Cell(""))
    score, value = run.score
    return (
        name,
        state,
        Cell(_format_epochs(run.epoch, config), value=run.epoch),
        NO_VALUE if value is None else Cell(_format_score(score, value), value=value),
        format_number_cell(run.loss, ".3g"),
        changed,
        Cell(config.network),
        Cell(config.data),
        Cell(config.optimizer),
    )


def _format_epochs(epoch: int, config: Config) -> str:
    if config.epochs is not None:
        return f"{epoch} of {config.epochs}"
    return f"{epoch} in {config.budget}" if config.budget is not None else str(epoch)


def _format_score(name: str, value: float) -> str:
    text = format_score([value], name)
    return text if name == "accuracy" else f"{name} {text}"


def _format_age(seconds: float) -> str:
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{format_count(int(seconds // unit), name)} ago"
    return "just now"


def _check_count(names: Sequence[str]) -> None:
    if not 1 <= len(names) <= MOST_RUNS:
        raise ArgumentError(f"Tick 1 to {MOST_RUNS} runs to compare them, not {len(names)}.")


def _hash_list(runs: Sequence[RunSummary]) -> str:
    """Changes with whatever the list shows, including how long ago runs changed."""
    if not runs:
        return _NO_RUNS
    texts = [[cell.text for cell in row] for row in make_list_table(runs).rows]
    return hashlib.sha256(repr(texts).encode("utf-8", "replace")).hexdigest()[:16]


def _parse_cursor(text: str) -> _Cursor | None:
    epoch, _, starts = text.partition(".")
    if not (epoch.isdecimal() and starts.isdecimal()):
        return None
    try:
        return _Cursor(int(epoch), int(starts))
    except ValueError:  # more digits than Python reads
        return None


def _has_dropped_epochs(summary: RunSummary, cursor: _Cursor) -> bool:
    return summary.starts != cursor.starts or summary.epoch < cursor.epoch


def _make_list_address(seen: str) -> str:
    return f"/update?{urlencode({'seen': seen})}"


def _format_run_address(name: str, cursor: _Cursor) -> str:
    return f"/update/run/{quote(name, safe='')}?{urlencode({'seen': cursor})}"


def _make_run_address(name: str, run: Run, starts: int) -> str:
    """Where to ask for the next update; "" when there will be none."""
    if run.status != "unfinished":
        return ""
    return _format_run_address(name, _Cursor(run.epoch, starts))


def _format_comparison_address(names: Sequence[str], cursors: Sequence[_Cursor]) -> str:
    pairs = [("run", name) for name in names] + [("seen", str(cursor)) for cursor in cursors]
    return f"/update/compare?{urlencode(pairs)}"


def _make_comparison_address(runs: Mapping[str, Run], starts: Sequence[int]) -> str:
    if all(run.status != "unfinished" for run in runs.values()):
        return ""
    pairs = zip(runs.values(), starts, strict=True)
    return _format_comparison_address(list(runs), [_Cursor(run.epoch, n) for run, n in pairs])
