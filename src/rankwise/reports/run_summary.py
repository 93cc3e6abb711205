"""A run in sentences and tiles: how it ended or how far it is, and how its layers changed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from rankwise._text import format_count, format_percent, sanitize
from rankwise.charts.axes import choose_time_unit, get_score_name
from rankwise.charts.evolution import EpochLayerRow
from rankwise.charts.runs import ScoreRow, make_figure_rows, make_score_rows
from rankwise.lab.records import Run
from rankwise.lab.scores import find_main_score, format_score, is_falling
from rankwise.reports.page import Fact, capitalize

VISIBLE = 5e-4  # the least change that three digits show
NAMED = 3  # layers named in a sentence
STILL_HIGH = 0.5  # of the rate that a run began with
LOSSES = ("loss", "generator_loss", "frechet")  # a run diverges when one is not a number
HIGHEST_QUALITY = math.pi / 2 - 1e-9


def summarize_run(run: Run, rows: Sequence[EpochLayerRow]) -> tuple[str, ...]:
    """Return the run, and its layers after each epoch, in plain sentences."""
    last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
    first = [row for row in rows if row["epoch"] == rows[0]["epoch"]]
    paragraphs = (
        (_describe_options(run), _describe_state(run)),
        (_describe_score(run),),
        (_describe_gains(first, last),),
        (_warn_of_broken(last), _describe_flat(last)),
        (_describe_rates(last), _warn_of_high_rates(run, last)),
    )
    return tuple(text for part in paragraphs if (text := " ".join(filter(None, part))))


def list_run_facts(run: Run, rows: Sequence[EpochLayerRow]) -> Iterator[Fact]:
    """Yield tiles: test score, figures of the layers, epochs, time, and the probe's share of it."""
    name = find_main_score(run.epochs)
    scores = _list_scores(run, name)
    best = _find_best(scores, name)
    if best is not None:
        remark = f"best {format_score([best['value']], name)} in epoch {best['epoch']}"
        value = format_score([scores[-1]["value"]], name)
        yield Fact(capitalize(get_score_name(name)), value, remark if len(scores) > 1 else "")
    yield from _list_figures(run, rows)
    yield Fact("Epochs", _format_epochs(run), run.status)
    total = sum(record.seconds.total for record in run.epochs)
    if total:
        probe = sum(record.seconds.probe for record in run.epochs)
        per_epoch = format_time(total / len(run.epochs))
        yield Fact("Time per epoch", per_epoch, f"{format_time(total)} in all")
        yield Fact("Share of the probe", format_percent(probe / total), "of that time")


def _list_figures(run: Run, rows: Sequence[EpochLayerRow]) -> Iterator[Fact]:
    """Tiles of the layers' figures, with their value after the first epoch that has one."""
    figures = make_figure_rows(run.epochs, rows)
    stable_ranks = [(row["epoch"], row["stable_rank_by_width"]) for row in figures]
    totals = [(row["epoch"], row["total_rank"]) for row in figures]
    for label, values, form in (
        ("Stable rank S", stable_ranks, ".3f"),
        ("Total rank", totals, ",g"),
    ):
        known = [(epoch, value) for epoch, value in values if value is not None]
        if known:
            epoch, first = known[0]
            remark = f"{first:{form}} after epoch {epoch}" if len(known) > 1 else ""
            yield Fact(label, f"{known[-1][1]:{form}}", remark)


def format_time(seconds: float) -> str:
    """Return a time in the unit that suits it.

    Example:
        >>> format_time(90.04), format_time(5_000_000)
        ('90 s', '1389 h')
    """
    unit, size = choose_time_unit(seconds)
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


def _describe_options(run: Run) -> str:
    config = run.config
    rate = "" if config.lr is None else f"rate {config.lr:g}"
    beta = "" if config.beta is None else f"β {config.beta:g}"
    options = ", ".join(filter(None, (rate, beta, f"seed {config.seed}")))
    network, data, optimizer = map(sanitize, (config.network, config.data, config.optimizer))
    return f"{network} on {data}, trained by {optimizer} ({options})."


def _describe_state(run: Run) -> str:
    if not run.epochs:
        return "No epoch has finished yet."
    if run.status == "diverged":
        epoch = _find_divergence(run)
        return f"Warning: it diverged in epoch {epoch}, so its last values mean little."
    if run.status == "finished":
        return f"It finished after {format_count(run.epoch, 'epoch')}."
    return f"In progress: epoch {_format_epochs(run)} is done."


def _find_divergence(run: Run) -> int:
    """The first epoch in which a loss is not a number; the last where all are."""
    for record in run.epochs:
        for scores in (record.train, record.test):
            if any(name in scores and scores[name] is None for name in LOSSES):
                return record.epoch
    return run.epoch


def _format_epochs(run: Run) -> str:
    return f"{run.epoch} of {run.config.epochs}" if run.config.epochs else str(run.epoch)


def _list_scores(run: Run, score: str) -> list[ScoreRow]:
    rows = make_score_rows(run.epochs)
    return [row for row in rows if row["set"] == "test" and row["score"] == score]


def _find_best(scores: Sequence[ScoreRow], score: str) -> ScoreRow | None:
    pick = min if is_falling(score) else max
    return pick(scores, key=lambda row: row["value"], default=None)


def _describe_score(run: Run) -> str:
    name = find_main_score(run.epochs)
    scores = _list_scores(run, name)
    best = _find_best(scores, name)
    if best is None:
        return "It has no test score." if run.epochs else ""
    last = scores[-1]
    value = format_score([last["value"]], name)
    text = f"{capitalize(get_score_name(name))} is {value} after epoch {last['epoch']}"
    if best["value"] == last["value"]:
        return f"{text}, the best of the run." if len(scores) > 1 else f"{text}."
    return f"{text}; the best was {format_score([best['value']], name)} in epoch {best['epoch']}."


def _describe_gains(first: Sequence[EpochLayerRow], last: Sequence[EpochLayerRow]) -> str:
    before = {row["layer"]: row["stable_rank"] for row in first}
    gains = [
        (row["stable_rank"] - old, row["layer"])
        for row in last
        if (old := before.get(row["layer"])) is not None and row["stable_rank"] is not None
    ]
    up = sorted((gain for gain in gains if gain[0] >= VISIBLE), reverse=True)[:NAMED]
    down = sorted(gain for gain in gains if gain[0] <= -VISIBLE)[:NAMED]
    parts = []
    for verb, layers in (("rose", up), ("fell", down)):
        names = (f"{name} ({f'{gain:+.3f}'.replace('-', '−')})" for gain, name in layers)
        parts += [f"{verb} most in {', '.join(names)}"] if layers else []
    return f"Since epoch {first[0]['epoch']} stable rank {'; it '.join(parts)}." if parts else ""


def _warn_of_broken(last: Sequence[EpochLayerRow]) -> str:
    broken = [row["layer"] for row in last if row["stable_rank"] is None]
    return f"Warning: {_name_layers(broken, 'has', 'have')} NaN or Inf." if broken else ""


def _describe_flat(last: Sequence[EpochLayerRow]) -> str:
    known = [row for row in last if row["rank"] is not None]
    flat = [row["layer"] for row in known if row["rank"] == 0]
    if not flat:
        return ""
    count = format_count(len(known), "layer")
    return f"No direction stands out from noise in {len(flat)} of {count} ({_list_names(flat)})."


def describe_rank_one(last: Sequence[EpochLayerRow]) -> str:
    """Return which layers have rank 1, which puts their q at its maximum; "" where none has."""
    layers = [row["layer"] for row in last if (row["quality"] or 0.0) >= HIGHEST_QUALITY]
    if not layers:
        return ""
    return f"After the last epoch {_name_layers(layers, 'has', 'have')} rank 1."


def _describe_rates(last: Sequence[EpochLayerRow]) -> str:
    rates = [row["rate"] for row in last if row["rate"] is not None]
    if not rates:
        return ""
    low, high = f"{min(rates):.3g}", f"{max(rates):.3g}"
    if low == high:
        return f"All layers have the rate {low}."
    return f"Rates are between {low} and {high} after the last epoch."


def _warn_of_high_rates(run: Run, last: Sequence[EpochLayerRow]) -> str:
    """A warning about a run whose rates had no time to fall; only rates that follow β can."""
    rates = [row["rate"] for row in last if row["rate"] is not None]
    config = run.config
    if run.status != "finished" or config.beta is None or not config.lr or not rates:
        return ""
    median = statistics.median(rates)
    if median <= STILL_HIGH * config.lr:
        return ""
    return (
        f"Warning: rates were still high at the end (median {median:.3g}, initially "
        f"{config.lr:g}): more epochs, or a β below {config.beta:g}, would let them fall."
    )


def _name_layers(layers: Sequence[str], one: str, many: str) -> str:
    """How many layers, which, and the verb that goes with them: as in "2 layers (a, b) have"."""
    count = format_count(len(layers), "layer")
    return f"{count} ({_list_names(layers)}) {one if len(layers) == 1 else many}"


def _list_names(layers: Sequence[str]) -> str:
    hidden = len(layers) - NAMED
    return ", ".join(layers[:NAMED]) + (f" and {hidden} more" if hidden > 0 else "")
