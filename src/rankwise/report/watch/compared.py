"""The page with some runs in the same charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from rankwise.figures.run_rows import main_score
from rankwise.figures.side_by_side import runs_figure
from rankwise.lab.records import Run
from rankwise.report.page import Cell, Link, Page, Picture, Section, Table
from rankwise.report.watch.listing import run_address
from rankwise.report.watch.shelf import number

__all__ = [
    "MOST",
    "ROWS",
    "TABLE",
    "compared_page",
    "compared_rows",
    "compared_table",
    "compared_title",
    "compared_verdict",
]

MOST = 12  # runs; more lines can't be told apart
TABLE = "compared"
ROWS = "compared epochs"  # the name of the rows, to which new ones are added
_SCORES = ("accuracy", "perplexity", "frechet")
_FALLING = ("perplexity", "frechet", "loss")  # less is better
_SHOWN = ("optimizer", "epochs", "budget")  # where runs differ by these, other columns show it
_HEADS = ("", "run", "epoch", "test score", "best epoch", "Q", "rates", "differs by")
_NUMERIC = (2, 3, 4, 5, 6)
_CHARTS = (  # field, title, format, reading; the scores first
    ("accuracy", "Test accuracy", ".2%", "Higher is better."),
    ("perplexity", "Test perplexity", ".4~g", "Lower is better."),
    ("frechet", "Fréchet distance", ".4~g", "Lower is better."),
    ("test_loss", "Test loss", ".4~g", "Rising while the training loss falls: it overfits."),
    ("train_loss", "Training loss", ".4~g", "How well a run fits what it has seen."),
    ("quality", "Network quality Q", ".3f", "How much structure all layers hold together."),
    ("highest", "Learning rates", ".3~g", "From the lowest rate of a layer to the highest."),
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


def compared_rows(runs: Runs, after: Sequence[int] = ()) -> list[dict[str, Any]]:
    """A row for every epoch of every run.

    Args:
        runs: The runs, in the page's order.
        after: The last epoch of each that is known already; none where it is empty.
    """
    known = after or [0] * len(runs)
    return [
        _row(label, name, record)
        for label, (name, run), last in zip(labels(runs), runs.items(), known, strict=True)
        for record in run.epochs
        if record["epoch"] > last
    ]


def compared_verdict(runs: Runs) -> tuple[str, ...]:
    """Which run is ahead, and how far to trust that."""
    scores = {main_score(run.epochs) for run in runs.values() if run.epochs}
    if len(scores) != 1:
        return ("These runs have no test score in common; look at each chart on its own.",)
    score = scores.pop()
    found = [
        (value, label)
        for label, run in zip(labels(runs), runs.values(), strict=True)
        if (value := _test(run.last, score)) is not None
    ]
    if not found:
        return ("No run has a test score yet.",)
    value, label = min(found) if score in _FALLING else max(found)
    if len(runs) == 1:
        return (f"Test {score} is {_scored(score, value)} after the last epoch.",)
    return (
        f"{label} has the best test {score} after its last epoch: {_scored(score, value)}.",
        "Each line is a single run: a small lead may be chance, and runs may be at different "
        "epochs. How far settings differ over trials is told by a report of the whole folder.",
    )


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


def _row(label: str, name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    low, high = _rates(record)
    return {
        "run": label,
        "name": name,
        "epoch": record["epoch"],
        "seconds": _of(record, "seconds", "trained"),
        "train_loss": _of(record, "train", "loss"),
        "test_loss": _of(record, "test", "loss"),
        **{score: _test(record, score) for score in _SCORES},
        "quality": number(record.get("quality")),
        "lowest": low,
        "highest": high,
    }


def _cells(label: str, name: str, run: Run, differing: Iterable[str]) -> tuple[Cell, ...]:
    options = run.config.identity()
    score = main_score(run.epochs)
    found = [v for record in run.epochs if (v := _test(record, score)) is not None]
    best = (min if score in _FALLING else max)(found, default=None)
    low, high = _rates(run.last)
    rates = "–" if low is None or high is None else f"{low:.3g} – {high:.3g}"
    epoch, whole = run.last.get("epoch", 0), run.config.epochs
    return (
        Cell(label),
        Cell(name, link=run_address(name)),
        Cell(f"{epoch} of {whole}" if whole else str(epoch), value=epoch),
        _figure(_test(run.last, score), score),
        _figure(best, score),
        _figure(number(run.last.get("quality")), "Q"),
        Cell(rates, value=high),
        Cell(" ".join(f"{option}={_short(options[option])}" for option in differing) or "nothing"),
    )


def _figure(value: float | None, score: str) -> Cell:
    return Cell("–", tone="dim") if value is None else Cell(_scored(score, value), value=value)


def _scored(score: str, value: float) -> str:
    if score == "accuracy":
        return f"{100 * value:.2f} %"
    return f"{value:.3f}" if score == "Q" else f"{value:.4g}"


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _of(record: Mapping[str, Any], part: str, score: str) -> float | None:
    found = record.get(part)
    return number(found.get(score)) if isinstance(found, dict) else None


def _test(record: Mapping[str, Any], score: str) -> float | None:
    return _of(record, "test", score)


def _rates(record: Mapping[str, Any]) -> tuple[float | None, float | None]:
    match record.get("rates"):
        case [low, high]:
            return number(low), number(high)
    return None, None


def _pictures(rows: list[dict[str, Any]], names: Sequence[str]) -> Iterator[Picture]:
    """A chart for each figure that any run has."""
    for field, title, form, reading in _CHARTS:
        if any(row[field] is not None for row in rows):
            down_to = "lowest" if field == "highest" else ""
            figure = runs_figure(
                rows, names, field, title=title, form=form, down_to=down_to, name=ROWS
            )
            yield Picture(title, figure, reading)
    for field, title, form, _ in _CHARTS[: len(_SCORES)]:
        if any(row[field] is not None and row["seconds"] is not None for row in rows):
            figure = runs_figure(
                rows, names, field, title=title, form=form, across="seconds", name=ROWS
            )
            reading = "Who gets there first by the clock; the time of tests is not counted."
            yield Picture(f"{title} against time", figure, reading)
