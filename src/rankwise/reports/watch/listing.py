"""The page with the list of all runs in a folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

from rankwise._text import format_count
from rankwise.lab.config import Config
from rankwise.lab.scores import score_text
from rankwise.reports.page import NOTHING, Cell, Fact, Page, Section, Table, Words, number_cell
from rankwise.reports.watch.shelf import Summary

__all__ = ["RUNS", "list_facts", "list_page", "list_table", "list_verdict", "run_address"]

RUNS = "runs"  # the table's name, by which an open page brings it up to date
_STATES = ("running", "finished", "diverged", "stopped", "unreadable")
_TONES = {"running": "best", "diverged": "bad", "unreadable": "bad", "stopped": "dim"}
# A name tells network, data and optimizer as well: what comes next to it should be news.
_HEADS = ("run", "state", "epoch", "test score", "Q", "changed", "network", "data", "optimizer")
_NUMERIC = (2, 3, 4, 5)
_HINTS = {
    "state": "running: records still come; stopped: it did not end, and no records come",
    "test score": "of the last epoch: accuracy, perplexity (less is better) or Fréchet distance",
    "Q": "network quality after the last epoch",
    "changed": "when its records last changed",
}
_EMPTY = Words(
    (
        "No run is in this folder yet. A run appears here as soon as it begins, as by "
        "`rankwise train --out` with this folder.",
    )
)
_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


def list_page(summaries: Sequence[Summary], *, source: str, updates: str) -> Page:
    """The page.

    Args:
        summaries: The runs, in the order to show them.
        source: The folder.
        updates: The address that the page asks for what is new.
    """
    items = (list_table(summaries),) if summaries else (_EMPTY,)
    return Page(
        title="Runs",
        verdict=list_verdict(summaries),
        facts=list_facts(summaries),
        sections=(Section("All runs", items),),
        source=source,
        updates=updates,
    )


def list_verdict(summaries: Sequence[Summary]) -> tuple[str, ...]:
    """How many runs there are, and which need a look."""
    counts = _counts(summaries)
    if not summaries:
        return ("There are no runs yet.",)
    going = counts["running"]
    verb = "is" if going < 2 else "are"
    text = f"{format_count(len(summaries), 'run')}; {going or 'none'} {verb} going on."
    lost = [f"{counts[s]} {s}" for s in ("diverged", "stopped", "unreadable") if counts[s]]
    return (text, f"Look at those that did not end well: {', '.join(lost)}.") if lost else (text,)


def list_facts(summaries: Sequence[Summary]) -> tuple[Fact, ...]:
    """How many runs are in each state that there is."""
    counts = _counts(summaries)
    return tuple(Fact(state, str(counts[state])) for state in _STATES if counts[state])


def list_table(summaries: Sequence[Summary]) -> Table:
    """A row for each run; ticked ones can be compared."""
    now = time.time()
    return Table(
        caption="Every run: tick some to compare them in the same charts",
        heads=_HEADS,
        rows=tuple(_row(summary, now) for summary in summaries),
        numeric=_NUMERIC,
        filter=True,
        hints=_HINTS,
        name=RUNS,
        picks="/compare",
    )


def run_address(name: str) -> str:
    """Where a run's page is; nothing in a name can lead elsewhere."""
    return f"/run/{quote(name, safe='')}"


def _row(summary: Summary, now: float) -> tuple[Cell, ...]:
    config = summary.config
    state = Cell(summary.state, tone=_TONES.get(summary.state, ""))
    head = (Cell(summary.name, link=run_address(summary.name)), state)
    changed = Cell(_ago(now - summary.changed), value=summary.changed)
    if config is None:
        return (
            *head,
            *[NOTHING] * 3,
            changed,
            Cell(summary.problem, tone="bad"),
            Cell(""),
            Cell(""),
        )
    name, score = summary.score
    return (
        *head,
        Cell(_epochs(summary.epoch, config), value=summary.epoch),
        NOTHING if score is None else Cell(_scored(name, score), value=score),
        number_cell(summary.last and summary.last.quality, ".3f"),
        changed,
        Cell(config.network),
        Cell(config.data),
        Cell(config.optimizer),
    )


def _epochs(epoch: int, config: Config) -> str:
    if config.epochs is not None:
        return f"{epoch} of {config.epochs}"
    return f"{epoch} in {config.budget}" if config.budget is not None else str(epoch)


def _scored(name: str, score: float) -> str:
    text = score_text([score], name)
    return text if name == "accuracy" else f"{name} {text}"


def _ago(seconds: float) -> str:
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{format_count(int(seconds // unit), name)} ago"
    return "just now"


def _counts(summaries: Sequence[Summary]) -> Counter[str]:
    return Counter(summary.state for summary in summaries)
