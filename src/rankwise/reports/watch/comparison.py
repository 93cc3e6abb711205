"""The page with some runs in the same charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any
from urllib.parse import quote

from rankwise.charts.axes import get_score_name
from rankwise.charts.runs import draw_runs
from rankwise.lab.records import EpochRecord, Run
from rankwise.lab.scores import SCORES, find_main_score, format_score, is_falling
from rankwise.reports.page import (
    Cell,
    ChartPanel,
    Link,
    Page,
    Section,
    Table,
    capitalize,
    format_score_cell,
    make_columns,
)

MOST_RUNS = 12  # more lines can't be distinguished
TABLE = "compared"
DATASET = "compared epochs"  # the name of the rows, to which new ones are added
_SHOWN = ("optimizer", "epochs", "budget")  # where runs differ by these, other columns show it
_TITLES = ("", "run", "differs by", "epoch", "test score", "best epoch", "rates")
_CHARTS = {  # by the rows' field: title, format, caption
    "accuracy": ("Test accuracy", ".2%", "Higher is better."),
    "perplexity": ("Test perplexity", ".4~g", "Lower is better."),
    "frechet": ("Fréchet distance", ".4~g", "Lower is better."),
    "test_loss": ("Test loss", ".4~g", "Rising while the training loss falls: over-fitting."),
    "train_loss": ("Training loss", ".4~g", "How well a run fits its training data."),
    "highest": ("Learning rates", ".3~g", "From the lowest rate of a layer to the highest."),
    "stable_rank_by_width": ("Stable rank S", ".3f", "It goes up with training time."),
    "quality": ("The paper's Q", ".3f", "It does not say which run is better."),
}
_BY_TIME = "Which run gets there first by the clock; the time of tests is not counted."
_CAUTION = (
    "Each line is a single run: a small lead may be chance, and runs may be at different epochs. "
    "A report of the whole folder shows how far settings differ over trials."
)

Runs = Mapping[str, Run]  # by the name that the server knows each by


def make_comparison_page(runs: Runs, *, back: Link, updates: str) -> Page:
    """Return the page of `MOST_RUNS` runs at most, in the order to show them."""
    panels = tuple(_draw_charts(make_comparison_rows(runs), _make_labels(runs)))
    sections = [Section("Which is which", (make_comparison_table(runs),))]
    sections += [Section("Epoch by epoch", panels)] if panels else []
    title, summary = make_title(len(runs)), summarize_comparison(runs)
    return Page(title=title, summary=summary, sections=tuple(sections), back=back, updates=updates)


def make_title(count: int) -> str:
    """Return the page's title."""
    return f"{count} runs in the same charts" if count > 1 else "A run in charts"


def make_comparison_rows(runs: Runs) -> list[dict[str, Any]]:
    """Return a row for every epoch of every run."""
    return [
        _make_row(label, name, record)
        for label, (name, run) in zip(_make_labels(runs), runs.items(), strict=True)
        for record in run.epochs
    ]


def list_charted_fields(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the rows' fields that there are charts of: those that any run has."""
    known = {field for row in rows for field in _CHARTS if row[field] is not None}
    return [field for field in _CHARTS if field in known]


def summarize_comparison(runs: Runs) -> tuple[str, ...]:
    """Return which run is ahead, and how far to trust that."""
    scores = {find_main_score(run.epochs) for run in runs.values() if run.epochs}
    if len(scores) > 1:
        return ("These runs have no test score in common; look at each chart on its own.",)
    score = "".join(scores)
    values = {
        label: value
        for label, run in zip(_make_labels(runs), runs.values(), strict=True)
        if (value := run.test.get(score)) is not None
    }
    if not values:
        return ("No run has a test score yet.",)
    if len({(run.config.network, run.config.data) for run in runs.values()}) > 1:
        return (
            "These runs can't be ranked: their networks or data differ. The charts show how each "
            "progresses, not which is better.",
        )
    best = (min if is_falling(score) else max)(values.values())
    name, text = get_score_name(score), format_score([best], score)
    if len(runs) == 1:
        return (f"{capitalize(name)} is {text} after the last epoch.",)
    *others, last = [label for label, value in values.items() if value == best]
    if others:
        equal = f"{', '.join(others)} and {last}"
        return (f"{equal} are equal, with the best {name} of all: {text}.", _CAUTION)
    return (f"{last} has the best {name} after its last epoch: {text}.", _CAUTION)


def make_comparison_table(runs: Runs) -> Table:
    """Return which letter is which run, what distinguishes them, and where each stands."""
    differing = _find_differing([run.config.identity() for run in runs.values()])
    rows = tuple(
        _make_cells(label, name, run, differing)
        for label, (name, run) in zip(_make_labels(runs), runs.items(), strict=True)
    )
    columns = make_columns(_TITLES, left=("run", "differs by"))
    return Table(columns, rows, "The runs, and how they differ", name=TABLE)


def _make_labels(runs: Runs) -> list[str]:
    """What the charts call each run: a letter, and its optimizer."""
    return [f"{ascii_uppercase[i]} {run.config.optimizer}" for i, run in enumerate(runs.values())]


def _make_row(label: str, name: str, record: EpochRecord) -> dict[str, Any]:
    low, high = record.rates or (None, None)
    return {
        "run": label,
        "name": name,
        "epoch": record.epoch,
        "seconds": record.seconds.trained,
        "train_loss": record.train.get("loss"),
        "test_loss": record.test.get("loss"),
        **{score: record.test.get(score) for score in SCORES},
        "stable_rank_by_width": record.stable_rank_by_width,
        "quality": record.quality,
        "lowest": low,
        "highest": high,
    }


def _make_cells(label: str, name: str, run: Run, differing: Iterable[str]) -> tuple[Cell, ...]:
    score = find_main_score(run.epochs)
    values = [v for record in run.epochs if (v := record.test.get(score)) is not None]
    best = (min if is_falling(score) else max)(values, default=None)
    low, high = (run.last and run.last.rates) or (None, None)
    rates = "–" if low is None or high is None else f"{low:.3g} – {high:.3g}"
    total = run.config.epochs
    return (
        Cell(label),
        Cell(name, link=f"/run/{quote(name, safe='')}", wraps=True),
        Cell(_list_differences(run, differing), wraps=True),
        Cell(f"{run.epoch} of {total}" if total else str(run.epoch), value=run.epoch),
        format_score_cell(run.test.get(score), score),
        format_score_cell(best, score),
        Cell(rates, value=high),
    )


def _find_differing(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """The options that have several values among the runs which have them.

    What only some optimizers have, as β, is no difference in addition to that of the optimizers.
    """
    names = [name for name in (options[0] if options else ()) if name not in _SHOWN]
    return [name for name in names if len({o[name] for o in options if o[name] is not None}) > 1]


def _list_differences(run: Run, differing: Iterable[str]) -> str:
    """A run's values of these options, without those that it does not have."""
    options = run.config.identity()
    known = (name for name in differing if options[name] is not None)
    return ", ".join(f"{name}={_format(options[name])}" for name in known) or "–"


def _format(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _draw_charts(rows: list[dict[str, Any]], labels: Sequence[str]) -> Iterator[ChartPanel]:
    """A chart for each field that any run has, and of scores against time as well."""
    fields = list_charted_fields(rows)
    for field in fields:
        title, form, caption = _CHARTS[field]
        down_to = "lowest" if field == "highest" else ""
        chart = draw_runs(
            rows, labels, field, title=title, form=form, down_to=down_to, dataset=DATASET
        )
        yield ChartPanel(title, chart, caption)
    for field in (field for field in fields if field in SCORES):
        title, form, _ = _CHARTS[field]
        chart = draw_runs(
            rows, labels, field, title=title, form=form, across="seconds", dataset=DATASET
        )
        yield ChartPanel(f"{title} against time", chart, _BY_TIME)
