"""A run as a page, and the update of an open page after more epochs."""

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
from rankwise.lab.scores import find_main_score
from rankwise.reports.html import render_table_rows
from rankwise.reports.page import (
    Cell,
    ChartPanel,
    Link,
    Page,
    Section,
    Table,
    Text,
    Update,
    format_number_cell,
    make_columns,
)
from rankwise.reports.run_summary import list_run_facts, summarize_run

MOST = 40_000  # rows of layers that are drawn
LAYERS = "layers"  # the table's name, by which an open page updates it
# The scores of a run that are drawn: title, and how to read it.
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
    "perplexity": (
        "Perplexity",
        "Lower is better: the effective number of words the model still chooses between.",
    ),
    "frechet": (
        "Fréchet distance",
        "Lower is better: how far generated images are from real ones.",
    ),
}
CRITIC_LOSS = "The critic's loss: how well it separates real images from generated ones."
HEAT_MAPS = {
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
        "Darker is better: the directions are of similar strength. 1 where a layer is noise.",
    ),
    "rate": (
        "Learning rate",
        "Brighter is faster. Under RMSGD a row is bright while its layer gains stable rank.",
    ),
}
HINTS = {
    "rank": "directions above the noise; the mean over the layer's unfoldings",
    "s": "stable rank, 0 … 1: how much of the layer carries structure",
    "κ": "condition, 0 … 1: lower is better, 1 for a layer of noise",
    "q": "quality, arctan(s/κ): higher is better, π/2 at most",
    "rate": "learning rate after the last epoch",
    "highest rate": "the highest of all epochs",
}


def make_run_page(run: Run, *, back: Link | None = None, updates: str = "") -> Page:
    """Return a run as a page."""
    rows = _make_rows(run)
    sections = [*_draw_learning(run), *_draw_layers(rows), _list_options(run)]
    if rows:
        sections.insert(-1, Section("Layers after the last epoch", (_make_table(rows),)))
    return Page(
        title=sanitize(run.folder.name),
        summary=summarize_run(run, rows),
        facts=tuple(list_run_facts(run)),
        sections=tuple(sections),
        layers=tuple(dict.fromkeys(row["layer"] for row in rows)),
        source=sanitize(str(run.folder)),
        back=back,
        updates=updates,
    )


def make_run_update(run: Run, after: int) -> Update:
    """Return the update of a page that shows a run up to the epoch `after`.

    The page reloads where it needs other charts or axes than it has, or epochs were dropped.
    """
    rows = _make_rows(run)
    old = [record for record in run.epochs if record.epoch <= after]
    new = [record for record in run.epochs if record.epoch > after]
    layout = _describe_layout(old, [row for row in rows if row["epoch"] <= after])
    if run.epoch < after or layout != _describe_layout(run.epochs, rows):
        return {"reload": True}
    return {
        "datasets": {
            "layers": [row for row in _thin(rows) if row["epoch"] > after],
            "epochs": make_score_rows(new),
            "quality": make_quality_rows(new),
            "time": make_time_rows(new),
        },
        "tables": {LAYERS: render_table_rows(_make_table(rows))},
        "facts": [astuple(fact) for fact in list_run_facts(run)],
        "summary": summarize_run(run, rows),
    }


def _make_rows(run: Run) -> list[EpochLayerRow]:
    """Rows of the epochs that count: an epoch's layers are written before its own record."""
    return [row for row in make_layer_rows(run.layers()) if row["epoch"] <= run.epoch]


def _describe_layout(
    epochs: Sequence[EpochRecord], rows: Sequence[EpochLayerRow]
) -> tuple[object, ...]:
    """Which charts and scales there are: new rows can't change these on an open page."""
    scores, thinned = make_score_rows(epochs), _thin(rows)
    return (
        bool(epochs),
        [(score, _get_kind(choose_score_scale(scores, score))) for score in _list_scores(epochs)],
        _list_heat_maps(rows),
        [_get_kind(choose_scale(thinned, metric)) for metric in HEAT_MAPS],
        bool(make_quality_rows(epochs)),
        list(dict.fromkeys(row["layer"] for row in rows)),
        _compute_step(rows),
    )


def _get_kind(scale: alt.Scale) -> tuple[object, object]:
    fields = scale.to_dict()
    return fields.get("type"), fields.get("domain")


def _list_scores(epochs: Sequence[EpochRecord]) -> list[str]:
    known = {row["score"] for row in make_score_rows(epochs)} | {find_main_score(epochs)}
    return [score for score in SCORES if score in known]


def _list_heat_maps(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [metric for metric in HEAT_MAPS if any(row[metric] is not None for row in rows)]


def _thin(rows: Sequence[EpochLayerRow]) -> list[EpochLayerRow]:
    """As many rows as a browser draws in some seconds: every so many epochs, and the last."""
    epochs = sorted({row["epoch"] for row in rows})
    kept = {*epochs[:: _compute_step(rows)], *epochs[-1:]}
    return [row for row in rows if row["epoch"] in kept]


def _compute_step(rows: Sequence[EpochLayerRow]) -> int:
    return max(1, math.ceil(len(rows) / MOST))


def _draw_learning(run: Run) -> Iterator[Section]:
    if not run.epochs:
        return
    rows, qualities = make_score_rows(run.epochs), make_quality_rows(run.epochs)
    has_critic = find_main_score(run.epochs) == "frechet"
    panels = [
        ChartPanel(
            SCORES[score][0],
            draw_progress(rows, score),
            CRITIC_LOSS if score == "loss" and has_critic else SCORES[score][1],
        )
        for score in _list_scores(run.epochs)
    ]
    if qualities:
        caption = "The root mean square of all layers' q. It rises while the network learns."
        panels.append(ChartPanel("Network quality Q", draw_quality(qualities), caption))
    time = ChartPanel(
        "Where the time went",
        draw_time(make_time_rows(run.epochs)),
        "Seconds of every epoch: reading data, steps, probing layers, evaluation, saving.",
    )
    yield Section("Learning", (*panels, time))


def _draw_layers(all_rows: list[EpochLayerRow]) -> Iterator[Section]:
    if not all_rows:
        return
    rows = _thin(all_rows)
    maps = (
        ChartPanel(HEAT_MAPS[metric][0], draw_heat_map(rows, metric), HEAT_MAPS[metric][1])
        for metric in _list_heat_maps(all_rows)
    )
    lines = ["A row is a layer, from the input down; a column is an epoch. Grey: no value."]
    if len(rows) < len(all_rows):
        lines.append("With so many layers and epochs only some epochs are drawn.")
    yield Section("Layers over time", (Text(tuple(lines)), *maps))
    rates = ChartPanel(
        "Learning rate of every layer",
        draw_rates(rows),
        "A line is a layer; the deeper, the stronger its colour. Layers that learn rise above the "
        "others; where all fall together, no layer gains stable rank any more.",
        wide=True,
    )
    paths = ChartPanel(
        "From noise to structure: s and κ",
        draw_trajectories(rows),
        "A path is a layer, from its ring (first epoch) to its dot (last). Noise is at the upper "
        "left (s = 0, κ = 1); learning leads to the right, and down where directions are of "
        "similar strength.",
        wide=True,
    )
    has_metrics = any(row["stable_rank"] is not None for row in all_rows)
    yield Section("Rates and paths", (rates, paths) if has_metrics else (rates,))


def _make_table(rows: Sequence[EpochLayerRow]) -> Table:
    highest: dict[str, float] = {}
    for row in rows:
        if row["rate"] is not None:
            highest[row["layer"]] = max(row["rate"], highest.get(row["layer"], 0.0))
    last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
    return Table(
        make_columns(("layer", "rank", "s", "κ", "q", "rate", "highest rate")),
        tuple(_make_cells(row, highest.get(row["layer"])) for row in last),
        "Layers in network order",
        has_filter=True,
        hints=HINTS,
        name=LAYERS,
    )


def _make_cells(row: EpochLayerRow, highest: float | None) -> tuple[Cell, ...]:
    return (
        Cell(row["layer"], layer=row["layer"]),
        format_number_cell(row["rank"], "g"),
        format_number_cell(row["stable_rank"], ".3f", most=1.0),
        format_number_cell(row["condition"], ".3f", most=1.0),
        format_number_cell(row["quality"], ".3f", most=math.pi / 2),
        format_number_cell(row["rate"], ".3g"),
        format_number_cell(highest, ".3g"),
    )


def _list_options(run: Run) -> Section:
    options = (f"{name}: {_format(value)}" for name, value in asdict(run.config).items())
    texts = [Text(tuple(options), collapsed_under="All options")]
    sessions = run.sessions()
    if sessions:
        lines = tuple(_format(msgspec.to_builtins(session)) for session in sessions)
        title = f"Starts: time, commit, versions, hardware ({len(sessions)})"
        texts.append(Text(lines, collapsed_under=title))
    return Section("About this run", tuple(texts))


def _format(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{sanitize(str(key))}: {_format(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_format, value)) or "none"
    return "–" if value is None else sanitize(str(value))
