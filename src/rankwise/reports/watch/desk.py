"""What a server answers about a folder of runs: pages, and what is new on a page that is open.

An open page asks with a cursor for each run: the last epoch it shows, and a figure that grows
with every start of the run, since a run that goes on may drop epochs and run them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from rankwise._text import sanitize
from rankwise.errors import ArgumentError, RunError
from rankwise.lab.records import Run
from rankwise.reports.html import rows_html
from rankwise.reports.page import Link, Page
from rankwise.reports.run import run_page, run_update
from rankwise.reports.watch.compared import (
    MOST,
    ROWS,
    TABLE,
    charted,
    compared_page,
    compared_rows,
    compared_table,
    compared_title,
    compared_verdict,
)
from rankwise.reports.watch.listing import RUNS, list_facts, list_page, list_table, list_verdict
from rankwise.reports.watch.shelf import Shelf, Summary

__all__ = ["Desk", "News"]

News = dict[str, Any]  # what page.js takes

_BACK = Link("All runs", "/")
_RELOAD: News = {"reload": True}
_NO_RUNS = "none"


class _Cursor(NamedTuple):
    """How far a page is with a run."""

    epoch: int
    starts: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.starts}"


class Desk:
    """Answers about the runs in a folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path | str) -> None:
        self.place = Path(folder)  # as it was given, for people
        self.shelf = Shelf(folder)

    def list(self) -> Page:
        """The list of all runs."""
        found = self.shelf.summaries()
        return list_page(found, source=str(self.place), updates=_list_address(_mark(found)))

    def list_news(self, seen: str) -> News:
        """What is new in the list since it was as the mark says."""
        found = self.shelf.summaries()
        mark = _mark(found)
        if mark != seen and _NO_RUNS in (mark, seen):
            return _RELOAD
        news: News = {"updates": _list_address(mark)}
        if mark != seen:
            news["verdict"] = list_verdict(found)
            news["facts"] = [astuple(fact) for fact in list_facts(found)]
            news["tables"] = {RUNS: rows_html(list_table(found))}
        return news

    def run_head(self, name: str) -> Page:
        """What a run's page begins with, known without reading the whole of it.

        Raises:
            UnknownRunError: If there is no run of this name.
            RunError: If it can't be read.
        """
        summary = self.shelf.summary(name)
        if summary.problem:
            raise RunError(f"{sanitize(name)}: {summary.problem}")
        place = sanitize(str(self.place / name))
        return Page(title=sanitize(name), verdict=(), sections=(), source=place, back=_BACK)

    def run(self, name: str) -> Page:
        """A run's page."""
        # Before the run is read: a start in between then makes the page load itself anew.
        starts = self.shelf.summary(name).starts
        run = self.shelf.load(name)
        return run_page(run, back=_BACK, updates=_run_address(name, run, starts))

    def run_news(self, name: str, seen: str) -> News:
        """What is new on a run's page since the cursor."""
        summary, cursor = self.shelf.summary(name), _cursor(seen)
        if cursor is None or _went_back(summary, cursor):
            return _RELOAD
        if summary.epoch == cursor.epoch and not summary.is_over:
            return {"updates": _run_path(name, cursor)}
        run = self.shelf.load(name)
        return {
            **run_update(run, cursor.epoch),
            "updates": _run_address(name, run, summary.starts),
        }

    def compared_head(self, names: Sequence[str]) -> Page:
        """What a page with some runs begins with, known without reading them."""
        _check_count(names)
        for name in names:
            self.run_head(name)
        return Page(title=compared_title(len(names)), verdict=(), sections=(), back=_BACK)

    def compared(self, names: Sequence[str]) -> Page:
        """Some runs in the same charts."""
        _check_count(names)
        starts = [self.shelf.summary(name).starts for name in names]
        runs = {name: self.shelf.load(name) for name in names}
        return compared_page(runs, back=_BACK, updates=_compared_address(runs, starts))

    def compared_news(self, names: Sequence[str], seen: Sequence[str]) -> News:
        """What is new on such a page since the cursors, one for each run."""
        _check_count(names)
        cursors = [cursor for text in seen if (cursor := _cursor(text)) is not None]
        found = [self.shelf.summary(name) for name in names]
        if len(cursors) != len(found):
            return _RELOAD
        pairs = list(zip(found, cursors, strict=True))
        if any(_went_back(summary, cursor) for summary, cursor in pairs):
            return _RELOAD
        if all(s.epoch == c.epoch for s, c in pairs) and not all(s.is_over for s in found):
            return {"updates": _compared_path(names, cursors)}
        runs = {name: self.shelf.load(name) for name in names}
        rows = compared_rows(runs)
        shown = {name: cursor.epoch for name, cursor in zip(names, cursors, strict=True)}
        # New epochs may bring a chart that the page does not have.
        if charted(rows) != charted(row for row in rows if row["epoch"] <= shown[row["name"]]):
            return _RELOAD
        return {
            "updates": _compared_address(runs, [summary.starts for summary in found]),
            "datasets": {ROWS: [row for row in rows if row["epoch"] > shown[row["name"]]]},
            "verdict": compared_verdict(runs),
            "tables": {TABLE: rows_html(compared_table(runs))},
        }


def _check_count(names: Sequence[str]) -> None:
    if not 1 <= len(names) <= MOST:
        raise ArgumentError(f"Tick 1 to {MOST} runs to compare them, not {len(names)}.")


def _mark(found: Sequence[Summary]) -> str:
    """Changes with whatever the list shows, the words for how long ago included."""
    if not found:
        return _NO_RUNS
    shown = [[cell.text for cell in row] for row in list_table(found).rows]
    return hashlib.sha256(repr(shown).encode("utf-8", "replace")).hexdigest()[:16]


def _cursor(text: str) -> _Cursor | None:
    epoch, _, starts = text.partition(".")
    if not (epoch.isdecimal() and starts.isdecimal()):
        return None
    try:
        return _Cursor(int(epoch), int(starts))
    except ValueError:  # more digits than Python reads
        return None


def _went_back(summary: Summary, cursor: _Cursor) -> bool:
    """Whether epochs that the page shows may have been dropped."""
    return summary.starts != cursor.starts or summary.epoch < cursor.epoch


def _list_address(mark: str) -> str:
    return f"/update?{urlencode({'seen': mark})}"


def _run_path(name: str, cursor: _Cursor) -> str:
    return f"/update/run/{quote(name, safe='')}?{urlencode({'seen': cursor})}"


def _run_address(name: str, run: Run, starts: int) -> str:
    """Where to ask for what comes next; "" when nothing will."""
    if run.status != "unfinished":
        return ""
    return _run_path(name, _Cursor(_epoch(run), starts))


def _compared_path(names: Sequence[str], cursors: Sequence[_Cursor]) -> str:
    pairs = [("run", name) for name in names] + [("seen", str(cursor)) for cursor in cursors]
    return f"/update/compare?{urlencode(pairs)}"


def _compared_address(runs: Mapping[str, Run], starts: Sequence[int]) -> str:
    if all(run.status != "unfinished" for run in runs.values()):
        return ""
    epochs = [_epoch(run) for run in runs.values()]
    return _compared_path(list(runs), [_Cursor(*pair) for pair in zip(epochs, starts, strict=True)])


def _epoch(run: Run) -> int:
    return run.epoch
