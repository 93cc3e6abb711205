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
    FigureRow,
    choose_score_scale,
    draw_figure,
    draw_progress,
    draw_time,
    make_figure_rows,
    make_score_rows,
    make_time_rows,
)
from rankwise.lab.records import EpochRecord, Run
from rankwise.lab.scores import find_main_score
from rankwise.reports.html import render_table_rows
from rankwise.reports.network import PAPER
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
from rankwise.reports.run_summary import describe_rank_one, list_run_facts, summarize_run

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
# Figures of the network that are drawn: title, and how to read it.
FIGURES = {
    "stable_rank_by_width": (
        "Stable rank S, weighted by width",
        "It goes up with training time, also while a network overfits.",
    ),
    "total_rank": (
        "Total rank",
        "Directions above the noise, over all layers. It goes up with training time as well.",
    ),
}
HEAT_MAPS = {
    "stable_rank": (
        "Stable rank s",
        "Brighter: the directions above the noise are more, or more alike in strength.",
    ),
    "rate": (
        "Learning rate",
        "Brighter: higher. RMSGD raises the rate of a layer while its stable rank goes up.",
    ),
    "condition": (
        "Condition κ",
        "Brighter: the directions above the noise are less alike in strength; 1 where there are "
        "none.",
    ),
    "quality": (
        "Quality q",
        "q = arctan(s/κ). A row at the very top of the scale may have rank 1.",
    ),
}
HINTS = {
    "#": "the number of the layer in all charts",
    "rank": "directions above the noise; the mean over the layer's unfoldings",
    "s": "stable rank, 0 … 1: how many directions are above the noise, and how alike in strength",
    "κ": "condition, 0 … 1: how unlike in strength they are; 1 where there are none",
    "q": "quality, arctan(s/κ): π/2 at most, by definition for a layer of rank 1",
    "rate": "learning rate after the last epoch",
    "highest rate": "the highest of all epochs",
}


def make_run_page(run: Run, *, back: Link | None = None, updates: str = "") -> Page:
    """Return a run as a page."""
    rows = _make_rows(run)
    figures = make_figure_rows(run.epochs, rows)
    sections = [*_draw_learning(run, figures), *_draw_layers(rows)]
    if rows:
        sections.append(Section("Layers after the last epoch", (_make_table(rows),)))
    sections += [*_describe_paper(rows, figures), _list_options(run)]
    return Page(
        title=sanitize(run.folder.name),
        summary=summarize_run(run, rows),
        facts=tuple(list_run_facts(run, rows)),
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
            "figures": make_figure_rows(new, rows),
            "time": make_time_rows(new),
        },
        "tables": {LAYERS: render_table_rows(_make_table(rows))},
        "facts": [astuple(fact) for fact in list_run_facts(run, rows)],
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
        _list_figures(make_figure_rows(epochs, rows)),
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


def _list_figures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    drawn = (*FIGURES, "quality")
    return [name for name in drawn if any(row[name] is not None for row in rows)]


def _thin(rows: Sequence[EpochLayerRow]) -> list[EpochLayerRow]:
    """As many rows as a browser draws in some seconds: every so many epochs, and the last."""
    epochs = sorted({row["epoch"] for row in rows})
    kept = {*epochs[:: _compute_step(rows)], *epochs[-1:]}
    return [row for row in rows if row["epoch"] in kept]


def _compute_step(rows: Sequence[EpochLayerRow]) -> int:
    return max(1, math.ceil(len(rows) / MOST))


def _draw_learning(run: Run, figures: list[FigureRow]) -> Iterator[Section]:
    if not run.epochs:
        return
    rows = make_score_rows(run.epochs)
    has_critic = find_main_score(run.epochs) == "frechet"
    panels = [
        ChartPanel(
            SCORES[score][0],
            draw_progress(rows, score),
            CRITIC_LOSS if score == "loss" and has_critic else SCORES[score][1],
        )
        for score in _list_scores(run.epochs)
    ]
    panels += [
        ChartPanel(FIGURES[name][0], _draw_figure(figures, name), FIGURES[name][1])
        for name in _list_figures(figures)
        if name in FIGURES
    ]
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
    maps = _draw_heat_maps(all_rows, rows, ("stable_rank", "rate"))
    lines = ["A row is a layer, a column an epoch. Grey: no value."]
    if len(rows) < len(all_rows):
        lines.append("With so many layers and epochs only some epochs are drawn.")
    yield Section("Layers over time", (Text(tuple(lines)), *maps))
    caption = "A line is a layer. RMSGD raises the rate of a layer while its stable rank goes up."
    rates = ChartPanel("Learning rate of every layer", draw_rates(rows), caption, wide=True)
    yield Section("Rates", (rates,))


def _describe_paper(all_rows: list[EpochLayerRow], figures: list[FigureRow]) -> Iterator[Section]:
    rows, panels = _thin(all_rows), []
    if "quality" in _list_figures(figures):
        panels.append(ChartPanel("Q", _draw_figure(figures, "quality"), wide=True))
    panels += _draw_heat_maps(all_rows, rows, ("condition", "quality"))
    if any(row["stable_rank"] is not None for row in all_rows):
        caption = (
            "A path is a layer, from its ring (first epoch) to its dot (last). A layer in which no "
            "direction stands out is at the upper left (s = 0, κ = 1)."
        )
        panels.append(ChartPanel("Paths of s and κ", draw_trajectories(rows), caption, wide=True))
    if panels:
        last = [row for row in all_rows if row["epoch"] == all_rows[-1]["epoch"]]
        lines = (PAPER, *filter(None, [describe_rank_one(last)]))
        yield Section("The paper's figures", (Text(lines), *panels))


def _draw_heat_maps(
    all_rows: list[EpochLayerRow], rows: list[EpochLayerRow], metrics: Sequence[str]
) -> list[ChartPanel]:
    return [
        ChartPanel(HEAT_MAPS[metric][0], draw_heat_map(rows, metric), HEAT_MAPS[metric][1])
        for metric in _list_heat_maps(all_rows)
        if metric in metrics
    ]


def _draw_figure(rows: list[FigureRow], name: str) -> alt.Chart:
    titles = {"stable_rank_by_width": "S", "total_rank": "total rank", "quality": "Q"}
    return draw_figure(rows, name, title=titles[name])


def _make_table(rows: Sequence[EpochLayerRow]) -> Table:
    highest: dict[str, float] = {}
    for row in rows:
        if row["rate"] is not None:
            highest[row["layer"]] = max(row["rate"], highest.get(row["layer"], 0.0))
    last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
    return Table(
        make_columns(("#", "layer", "s", "rank", "rate", "highest rate", "κ", "q"), name_column=1),
        tuple(_make_cells(row, highest.get(row["layer"])) for row in last),
        "The layers, as the run recorded them; click a name to select the layer.",
        has_filter=True,
        name_column=1,
        hints=HINTS,
        name=LAYERS,
    )


def _make_cells(row: EpochLayerRow, highest: float | None) -> tuple[Cell, ...]:
    return (
        Cell(str(row["depth"]), "dim", float(row["depth"])),
        Cell(row["layer"], layer=row["layer"]),
        format_number_cell(row["stable_rank"], ".3f", most=1.0),
        format_number_cell(row["rank"], "g"),
        format_number_cell(row["rate"], ".3g"),
        format_number_cell(highest, ".3g"),
        format_number_cell(row["condition"], ".3f"),
        format_number_cell(row["quality"], ".3f"),
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
