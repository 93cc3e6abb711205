"""A run as a page, and what is new on that page after some epochs more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any

import altair as alt
import msgspec

from rankwise._text import sanitize
from rankwise.charts.axes import choose_scale
from rankwise.charts.evolution import (
    EpochLayerRow,
    draw_heat_map,
    draw_rates,
    draw_trajectories,
    make_layer_rows,
)
from rankwise.charts.runs import (
    choose_score_scale,
    draw_progress,
    draw_quality,
    draw_time,
    make_quality_rows,
    make_score_rows,
    make_time_rows,
)
from rankwise.lab.records import EpochRecord, Run
from rankwise.lab.scores import main_score
from rankwise.reports.html import rows_html
from rankwise.reports.page import Cell, Link, Page, Picture, Section, Table, Words, number_cell
from rankwise.reports.run_words import run_facts, run_verdict

__all__ = ["run_page", "run_update"]

MOST = 40_000  # rows of layers that are drawn
LAYERS = "layers"  # the table's name, by which an open page brings it up to date
# What to draw of a run's scores: name, title, how to read it.
SCORES = {
    "loss": (
        "Loss",
        "Lower is better. A test loss that rises while the training loss falls: over-fitting.",
    ),
    "generator_loss": ("Generator's loss", "It need not fall: the critic learns as well."),
    "accuracy": (
        "Accuracy",
        "The gap between the two lines is what the network knows of its training data alone.",
    ),
    "perplexity": ("Perplexity", "Lower is better: among how many words the model still wavers."),
    "frechet": ("Fréchet distance", "Lower is better: how far made images are from real ones."),
}
MAPS = {
    "quality": (
        "Quality q",
        "Brighter is better: much structure, evenly spread. Rows that stay dark never leave noise; "
        "a row at the very top of the scale may have rank 1, which is not a well-learned layer.",
    ),
    "stable_rank": (
        "Stable rank s",
        "Brighter: more directions carry structure. Learning shows as a row that brightens.",
    ),
    "condition": (
        "Condition κ",
        "Darker is better: the directions are of like strength. 1 where a layer is noise.",
    ),
    "rate": (
        "Learning rate",
        "Brighter is faster. Under RMSGD a row is bright while its layer gains stable rank.",
    ),
}
HINTS = {
    "rank": "directions that stand out from noise; the mean over the layer's unfoldings",
    "s": "stable rank, 0 … 1: how much of the layer carries structure",
    "κ": "condition, 0 … 1: lower is better, 1 for a layer of noise",
    "q": "quality, arctan(s/κ): higher is better, π/2 at most",
    "rate": "learning rate after the last epoch",
    "highest rate": "the highest of all epochs",
}


def run_page(run: Run, *, back: Link | None = None, updates: str = "") -> Page:
    """A run as a page.

    Args:
        run: The run; it may still go on.
        back: Where a served page leads back to.
        updates: The address that a served page asks for what is new.
    """
    rows = _layers(run)
    sections = [*_learning(run), *_over_time(rows), *_table_section(rows), _about(run)]
    return Page(
        title=sanitize(run.folder.name),
        verdict=run_verdict(run, rows),
        facts=run_facts(run),
        sections=tuple(sections),
        layers=tuple(dict.fromkeys(row["layer"] for row in rows)),
        source=sanitize(str(run.folder)),
        back=back,
        updates=updates,
    )


def run_update(run: Run, after: int) -> dict[str, Any]:
    """What a page of a run needs that shows all up to an epoch.

    Args:
        run: The run as it is now.
        after: The last epoch that the page shows.

    Returns:
        What page.js takes: "datasets", new rows by the data's name; "tables", rows as HTML;
        "facts", "verdict". Where the page has to be drawn anew it is "reload" alone: it had no
        figures yet, or others than it would have now, or epochs were dropped.
    """
    last = run.epoch
    rows = _layers(run)
    shown = [record for record in run.epochs if record.epoch <= after]
    fresh = [record for record in run.epochs if record.epoch > after]
    looks = _looks(shown, [row for row in rows if row["epoch"] <= after])
    if last < after or looks != _looks(run.epochs, rows):
        return {"reload": True}
    return {
        "datasets": {
            "layers": [row for row in thinned(rows) if row["epoch"] > after],
            "epochs": make_score_rows(fresh),
            "quality": make_quality_rows(fresh),
            "time": make_time_rows(fresh),
        },
        "tables": {LAYERS: rows_html(_table(rows))},
        "facts": [astuple(fact) for fact in run_facts(run)],
        "verdict": run_verdict(run, rows),
    }


def _layers(run: Run) -> list[EpochLayerRow]:
    """Rows of the epochs that count: an epoch's layers are written before its own record."""
    last = run.epoch
    return [row for row in make_layer_rows(run.layers()) if row["epoch"] <= last]


def _looks(epochs: Sequence[EpochRecord], rows: Sequence[EpochLayerRow]) -> tuple[object, ...]:
    """What figures there are and how they are drawn: new rows can't change that on an open page."""
    figures, drawn = make_score_rows(epochs), thinned(rows)
    return (
        bool(epochs),
        [(score, _kind(choose_score_scale(figures, score))) for score in _scores(epochs)],
        _maps(rows),
        [_kind(choose_scale(drawn, metric)) for metric in MAPS],
        any(row["quality"] is not None for row in make_quality_rows(epochs)),
        list(dict.fromkeys(row["layer"] for row in rows)),
        _step(rows),
    )


def _kind(scale: alt.Scale) -> tuple[object, object]:
    found = scale.to_dict()
    return found.get("type"), found.get("domain")


def _scores(epochs: Sequence[EpochRecord]) -> list[str]:
    """The scores that are drawn."""
    known = {row["score"] for row in make_score_rows(epochs)} | {main_score(epochs)}
    return [score for score in SCORES if score in known]


def _maps(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics that are drawn."""
    return [metric for metric in MAPS if any(row[metric] is not None for row in rows)]


def _learning(run: Run) -> Iterator[Section]:
    if not run.epochs:
        return
    rows, found = make_score_rows(run.epochs), make_quality_rows(run.epochs)
    pictures = [
        Picture(SCORES[score][0], draw_progress(rows, score), _reading(score, run))
        for score in _scores(run.epochs)
    ]
    if any(row["quality"] is not None for row in found):
        how = "The root mean square of all layers' q. It rises while the network learns."
        pictures.append(Picture("Network quality Q", draw_quality(found), how))
    time = Picture(
        "Where the time went",
        draw_time(make_time_rows(run.epochs)),
        "Seconds of every epoch: reading data, steps, probing layers, evaluation, saving.",
    )
    yield Section("Learning", (*pictures, time))


def _reading(score: str, run: Run) -> str:
    if score == "loss" and main_score(run.epochs) == "frechet":
        return "The critic's loss: how far it tells real images from made ones."
    return SCORES[score][1]


def thinned(rows: Sequence[EpochLayerRow]) -> list[EpochLayerRow]:
    """No more rows than a browser draws in some seconds: every so many epochs, and the last."""
    epochs = sorted({row["epoch"] for row in rows})
    kept = {*epochs[:: _step(rows)], *epochs[-1:]}
    return [row for row in rows if row["epoch"] in kept]


def _step(rows: Sequence[EpochLayerRow]) -> int:
    return max(1, math.ceil(len(rows) / MOST))


def _over_time(all_rows: list[EpochLayerRow]) -> Iterator[Section]:
    if not all_rows:
        return
    rows = thinned(all_rows)
    maps = (
        Picture(MAPS[metric][0], draw_heat_map(rows, metric), MAPS[metric][1])
        for metric in _maps(all_rows)
    )
    how = ["A row is a layer, from the input down; a column is an epoch. Grey: no value."]
    if len(rows) < len(all_rows):
        how.append("Of so many layers and epochs only some epochs are drawn; the records have all.")
    yield Section("Layers over time", (Words(tuple(how)), *maps))
    rates = Picture(
        "Learning rate of every layer",
        draw_rates(rows),
        "A line is a layer; the deeper, the stronger its colour. Layers that learn rise above the "
        "others; where all fall together, no layer gains stable rank any more.",
        wide=True,
    )
    paths = Picture(
        "From noise to structure: s and κ",
        draw_trajectories(rows),
        "A path is a layer, from its ring (first epoch) to its dot (last). Noise is at the upper "
        "left (s = 0, κ = 1); learning leads to the right, and down where it is even.",
        wide=True,
    )
    known = any(row["stable_rank"] is not None for row in all_rows)
    yield Section("Rates and paths", (rates, paths) if known else (rates,))


def _table_section(rows: Sequence[EpochLayerRow]) -> Iterator[Section]:
    if rows:
        yield Section("Layers after the last epoch", (_table(rows),))


def _table(rows: Sequence[EpochLayerRow]) -> Table:
    highest: dict[str, float] = {}
    for row in rows:
        if row["rate"] is not None:
            highest[row["layer"]] = max(row["rate"], highest.get(row["layer"], 0.0))
    last = rows[-1]["epoch"] if rows else 0
    return Table(
        caption="Layers in network order",
        heads=("layer", "rank", "s", "κ", "q", "rate", "highest rate"),
        rows=tuple(_cells(row, highest.get(row["layer"])) for row in rows if row["epoch"] == last),
        filter=True,
        hints=HINTS,
        name=LAYERS,
    )


def _cells(row: EpochLayerRow, highest: float | None) -> tuple[Cell, ...]:
    return (
        Cell(row["layer"], layer=row["layer"]),
        number_cell(row["rank"], "g"),
        number_cell(row["stable_rank"], ".3f", most=1.0),
        number_cell(row["condition"], ".3f", most=1.0),
        number_cell(row["quality"], ".3f", most=math.pi / 2),
        number_cell(row["rate"], ".3g"),
        number_cell(highest, ".3g"),
    )


def _about(run: Run) -> Section:
    options = tuple(f"{name}: {_text(value)}" for name, value in asdict(run.config).items())
    words = [Words(options, summary="All options")]
    starts = run.sessions()
    if starts:
        lines = tuple(_text(msgspec.to_builtins(start)) for start in starts)
        words.append(
            Words(lines, summary=f"Starts: time, commit, versions, hardware ({len(starts)})")
        )
    return Section("About this run", tuple(words))


def _text(value: object) -> str:
    """A value of a record as text, nested ones on one line."""
    if isinstance(value, dict):
        return "; ".join(f"{sanitize(str(key))}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return "–" if value is None else sanitize(str(value))
