"""The page with some runs in the same charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from rankwise.charts.axes import get_score_name
from rankwise.charts.runs import draw_runs
from rankwise.lab.records import EpochRecord, Run
from rankwise.lab.scores import SCORES, is_falling, main_score, score_text
from rankwise.reports.page import NOTHING, Cell, Link, Page, Picture, Section, Table, number_cell
from rankwise.reports.study.words import capital
from rankwise.reports.watch.listing import run_address

__all__ = [
    "MOST",
    "ROWS",
    "TABLE",
    "charted",
    "compared_page",
    "compared_rows",
    "compared_table",
    "compared_title",
    "compared_verdict",
]

MOST = 12  # runs; more lines can't be told apart
TABLE = "compared"
ROWS = "compared epochs"  # the name of the rows, to which new ones are added
_SHOWN = ("optimizer", "epochs", "budget")  # where runs differ by these, other columns show it
_HEADS = ("", "run", "epoch", "test score", "best epoch", "Q", "rates", "differs by")
_NUMERIC = (2, 3, 4, 5, 6)
_CHARTS = {  # by the rows' field: title, format, reading
    "accuracy": ("Test accuracy", ".2%", "Higher is better."),
    "perplexity": ("Test perplexity", ".4~g", "Lower is better."),
    "frechet": ("Fréchet distance", ".4~g", "Lower is better."),
    "test_loss": ("Test loss", ".4~g", "Rising while the training loss falls: it overfits."),
    "train_loss": ("Training loss", ".4~g", "How well a run fits what it has seen."),
    "quality": ("Network quality Q", ".3f", "How much structure all layers hold together."),
    "highest": ("Learning rates", ".3~g", "From the lowest rate of a layer to the highest."),
}
_CAUTION = (
    "Each line is a single run: a small lead may be chance, and runs may be at different epochs. "
    "How far settings differ over trials is told by a report of the whole folder."
)

Runs = Mapping[str, Run]  # by the name that the server knows each by


def compared_page(runs: Runs, *, back: Link, updates: str) -> Page:
    """The page.

    Args:
        runs: The runs, in the order to show them; `MOST` at most.
        back: Where it leads back to.
        updates: The address that the page asks for what is new.
    """
    pictures = tuple(_pictures(compared_rows(runs), labels(runs)))
    sections = (
        Section("Which is which", (compared_table(runs),)),
        *((Section("Epoch by epoch", pictures),) if pictures else ()),
    )
    title, verdict = compared_title(len(runs)), compared_verdict(runs)
    return Page(title=title, verdict=verdict, sections=sections, back=back, updates=updates)


def compared_title(count: int) -> str:
    """What the page is called."""
    return f"{count} runs in the same charts" if count > 1 else "A run in charts"


def labels(runs: Runs) -> list[str]:
    """What the charts call each run: a letter, and its optimizer."""
    return [f"{ascii_uppercase[i]} {run.config.optimizer}" for i, run in enumerate(runs.values())]


def compared_rows(runs: Runs) -> list[dict[str, Any]]:
    """A row for every epoch of every run.

    Args:
        runs: The runs, in the page's order.
    """
    return [
        _row(label, name, record)
        for label, (name, run) in zip(labels(runs), runs.items(), strict=True)
        for record in run.epochs
    ]


def charted(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The rows' fields that there are charts of: those that any run has."""
    known = {field for row in rows for field in _CHARTS if row[field] is not None}
    return [field for field in _CHARTS if field in known]


def compared_verdict(runs: Runs) -> tuple[str, ...]:
    """Which run is ahead, and how far to trust that."""
    scores = {main_score(run.epochs) for run in runs.values() if run.epochs}
    if len(scores) > 1:
        return ("These runs have no test score in common; look at each chart on its own.",)
    score = "".join(scores)
    found = {
        label: value
        for label, run in zip(labels(runs), runs.values(), strict=True)
        if (value := run.test.get(score)) is not None
    }
    if not found:
        return ("No run has a test score yet.",)
    if len({(run.config.network, run.config.data) for run in runs.values()}) > 1:
        return (
            "These runs can't be ranked: they are of different networks or data. How each gets on "
            "can be seen, not which is better.",
        )
    best = (min if is_falling(score) else max)(found.values())
    what, text = get_score_name(score), score_text([best], score)
    if len(runs) == 1:
        return (f"{capital(what)} is {text} after the last epoch.",)
    first, *others = [label for label, value in found.items() if value == best]
    said = f"{first} has the best {what} after its last epoch: {text}."
    if others:
        said = f"{_listed(first, *others)} are equal, with the best {what} of all: {text}."
    return (said, _CAUTION)


def _listed(*labels: str) -> str:
    return f"{', '.join(labels[:-1])} and {labels[-1]}"


def compared_table(runs: Runs) -> Table:
    """Which letter is which run, what tells them apart, and where each stands."""
    options = [run.config.identity() for run in runs.values()]
    differing = [
        name
        for name in (options[0] if options else ())
        if name not in _SHOWN and any(o[name] != options[0][name] for o in options)
    ]
    rows = tuple(
        _cells(label, name, run, differing)
        for label, (name, run) in zip(labels(runs), runs.items(), strict=True)
    )
    caption = "The runs, and what tells them apart"
    return Table(caption=caption, heads=_HEADS, rows=rows, numeric=_NUMERIC, name=TABLE)


def _row(label: str, name: str, record: EpochRecord) -> dict[str, Any]:
    low, high = record.rates or (None, None)
    return {
        "run": label,
        "name": name,
        "epoch": record.epoch,
        "seconds": record.seconds.trained,
        "train_loss": record.train.get("loss"),
        "test_loss": record.test.get("loss"),
        **{score: record.test.get(score) for score in SCORES},
        "quality": record.quality,
        "lowest": low,
        "highest": high,
    }


def _cells(label: str, name: str, run: Run, differing: Iterable[str]) -> tuple[Cell, ...]:
    options = run.config.identity()
    score = main_score(run.epochs)
    found = [v for record in run.epochs if (v := record.test.get(score)) is not None]
    best = (min if is_falling(score) else max)(found, default=None)
    low, high = (run.last and run.last.rates) or (None, None)
    rates = "–" if low is None or high is None else f"{low:.3g} – {high:.3g}"
    epoch, whole = run.epoch, run.config.epochs
    return (
        Cell(label),
        Cell(name, link=run_address(name)),
        Cell(f"{epoch} of {whole}" if whole else str(epoch), value=epoch),
        _scored(run.test.get(score), score),
        _scored(best, score),
        number_cell(run.quality, ".3f"),
        Cell(rates, value=high),
        Cell(" ".join(f"{option}={_short(options[option])}" for option in differing) or "nothing"),
    )


def _scored(value: float | None, score: str) -> Cell:
    return NOTHING if value is None else Cell(score_text([value], score), value=value)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pictures(rows: list[dict[str, Any]], names: Sequence[str]) -> Iterator[Picture]:
    """A chart for each figure that any run has."""
    fields = charted(rows)
    for field in fields:
        title, form, reading = _CHARTS[field]
        down_to = "lowest" if field == "highest" else ""
        figure = draw_runs(
            rows, names, field, title=title, form=form, down_to=down_to, dataset=ROWS
        )
        yield Picture(title, figure, reading)
    for field in (field for field in fields if field in SCORES):
        title, form, _ = _CHARTS[field]
        figure = draw_runs(
            rows, names, field, title=title, form=form, across="seconds", dataset=ROWS
        )
        reading = "Who gets there first by the clock; the time of tests is not counted."
        yield Picture(f"{title} against time", figure, reading)
