"""A run in words and tiles: how it ended or how far it is, and what its layers learned."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rankwise._text import format_count, format_percent, sanitize
from rankwise.charts.axes import choose_time_unit, get_score_name
from rankwise.charts.evolution import EpochLayerRow
from rankwise.charts.runs import ScoreRow, make_quality_rows, make_score_rows, make_time_rows
from rankwise.lab.records import Run
from rankwise.lab.scores import is_falling, main_score, score_text
from rankwise.reports.page import Fact
from rankwise.reports.study.words import capital

__all__ = ["run_facts", "run_verdict", "time_text"]

LEAST = 5e-4  # what is less is 0.000 when written
NAMED = 3  # layers named in a sentence
STILL_HIGH = 0.5  # of the rate that a run began with
LOSSES = ("loss", "generator_loss", "frechet")  # a run diverges when one is no number
FULL = math.pi / 2 - 1e-9


def run_verdict(run: Run, rows: Sequence[EpochLayerRow]) -> tuple[str, ...]:
    """The run in plain words.

    Args:
        run: The run.
        rows: Its layers, as `layer_rows` gives them.
    """
    last = _at(rows, rows[-1]["epoch"]) if rows else []
    parts = (
        f"{_what(run)} {_state(run)}",
        _score(run),
        " ".join(filter(None, (_quality(run), _moves(rows, last)))),
        " ".join(filter(None, (_broken(last), _noise(last), _rank_ones(last)))),
        " ".join(filter(None, (_rates(last), _still_high(run, last)))),
    )
    return tuple(part for part in parts if part)


def run_facts(run: Run) -> tuple[Fact, ...]:
    """Tiles: test score, Q, epochs, time an epoch and the probe's share of it."""
    epochs = Fact("Epochs", _epochs(run), run.status)
    return (*_score_fact(run), *_quality_fact(run), epochs, *_times(run))


def time_text(seconds: float) -> str:
    """A time in the unit that suits it.

    Example:
        >>> time_text(90.04), time_text(5_000_000)
        ('90 s', '1389 h')
    """
    unit, size = choose_time_unit(seconds)
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


def _what(run: Run) -> str:
    config = run.config
    rate = "" if config.lr is None else f"rate {config.lr:g}"
    beta = "" if config.beta is None else f"β {config.beta:g}"
    options = ", ".join(filter(None, (rate, beta, f"seed {config.seed}")))
    words = (sanitize(word) for word in (config.network, config.data, config.optimizer))
    return "{} on {}, trained by {} ({}).".format(*words, options)


def _state(run: Run) -> str:
    if not run.epochs:
        return "No epoch is over yet."
    done = run.epoch
    if run.status == "diverged":
        return f"Warning: it diverged in epoch {_lost(run)}, so its last figures mean little."
    if run.status == "finished":
        return f"It finished after {format_count(done, 'epoch')}."
    return f"It is not finished: epoch {_epochs(run)} is over."


def _lost(run: Run) -> int:
    """The first epoch in which a loss is no number; the last where all are."""
    found = (
        record.epoch
        for record in run.epochs
        for scores in (record.train, record.test)
        for name in LOSSES
        if name in scores and scores[name] is None
    )
    return next(found, run.epoch)


def _epochs(run: Run) -> str:
    done = run.epoch
    return str(done) if run.config.epochs is None else f"{done} of {run.config.epochs}"


def _scores(run: Run, score: str) -> list[ScoreRow]:
    rows = make_score_rows(run.epochs)
    return [row for row in rows if row["set"] == "test" and row["score"] == score]


def _best(scores: Sequence[ScoreRow], score: str) -> ScoreRow | None:
    pick = min if is_falling(score) else max
    return pick(scores, key=lambda row: row["value"], default=None)


def _score(run: Run) -> str:
    name = main_score(run.epochs)
    scores = _scores(run, name)
    best = _best(scores, name)
    if best is None:
        return "It has no score on test data." if run.epochs else ""
    last = scores[-1]
    value = score_text([last["value"]], name)
    text = f"{capital(get_score_name(name))} is {value} after epoch {last['epoch']}"
    if best["value"] == last["value"]:
        return f"{text}, the best of the run." if len(scores) > 1 else f"{text}."
    return f"{text}; it was best in epoch {best['epoch']}: {score_text([best['value']], name)}."


def _quality(run: Run) -> str:
    found = make_quality_rows(run.epochs)
    if not found:
        return ""
    first, last = found[0], found[-1]
    if len(found) == 1:
        return f"Network quality Q is {last['quality']:.3f} after epoch {last['epoch']}."
    if abs(last["quality"] - first["quality"]) < LEAST:
        return f"Network quality Q stayed at {last['quality']:.3f}."
    verb = "rose" if last["quality"] > first["quality"] else "fell"
    return (
        f"Network quality Q {verb} from {first['quality']:.3f} (epoch {first['epoch']}) "
        f"to {last['quality']:.3f} (epoch {last['epoch']})."
    )


def _moves(rows: Sequence[EpochLayerRow], last: Sequence[EpochLayerRow]) -> str:
    """Which layers gained and lost most stable rank."""
    first = (
        {row["layer"]: row["stable_rank"] for row in _at(rows, rows[0]["epoch"])} if rows else {}
    )
    moves = [
        (row["stable_rank"] - before, row["layer"])
        for row in last
        if (before := first.get(row["layer"])) is not None and row["stable_rank"] is not None
    ]
    up = sorted((move for move in moves if move[0] >= LEAST), reverse=True)[:NAMED]
    down = sorted(move for move in moves if move[0] <= -LEAST)[:NAMED]
    parts = [
        f"{verb} most in {', '.join(f'{sanitize(n)} ({_signed(gain)})' for gain, n in found)}"
        for verb, found in (("rose", up), ("fell", down))
        if found
    ]
    since = f"Since epoch {rows[0]['epoch']} stable rank" if rows else ""
    return f"{since} {'; it '.join(parts)}." if parts else ""


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _broken(last: Sequence[EpochLayerRow]) -> str:
    broken = [row for row in last if row["stable_rank"] is None]
    return f"Warning: {_some(broken, 'holds', 'hold')} NaN or Inf." if broken else ""


def _noise(last: Sequence[EpochLayerRow]) -> str:
    known = [row for row in last if row["rank"] is not None]
    empty = [row for row in known if row["rank"] == 0]
    if not known:
        return ""
    if len(empty) == len(known):
        return "Nothing stands out from noise in any layer."
    if not empty:
        return "Every layer holds structure that stands out from noise."
    return f"{_some(empty, 'still looks', 'still look')} like noise."


def _rank_ones(last: Sequence[EpochLayerRow]) -> str:
    found = [row for row in last if (row["quality"] or 0.0) >= FULL]
    if not found:
        return ""
    why = "which puts q at its maximum by definition, not by learning, and lifts Q"
    return f"{_some(found, 'has', 'have')} rank 1, {why}."


def _rates(last: Sequence[EpochLayerRow]) -> str:
    rates = [row["rate"] for row in last if row["rate"] is not None]
    if not rates:
        return ""
    low, high = f"{min(rates):.3g}", f"{max(rates):.3g}"
    if low == high:
        return f"All layers move at the rate {low}."
    return f"Rates lie between {low} and {high} after the last epoch."


def _still_high(run: Run, last: Sequence[EpochLayerRow]) -> str:
    """A warning about a run whose rates had no time to fall; only rates that follow β can."""
    rates = [row["rate"] for row in last if row["rate"] is not None]
    config = run.config
    if run.status != "finished" or config.beta is None or not config.lr or not rates:
        return ""
    middle = statistics.median(rates)
    if middle <= STILL_HIGH * config.lr:
        return ""
    return (
        f"Warning: rates were still high at the end (median {middle:.3g}, begun with "
        f"{config.lr:g}): more epochs, or a β below {config.beta:g}, would let them fall."
    )


def _score_fact(run: Run) -> Iterator[Fact]:
    name = main_score(run.epochs)
    scores = _scores(run, name)
    best = _best(scores, name)
    if best is not None:
        text = f"best {score_text([best['value']], name)} in epoch {best['epoch']}"
        value = score_text([scores[-1]["value"]], name)
        yield Fact(capital(get_score_name(name)), value, text if len(scores) > 1 else "")


def _quality_fact(run: Run) -> Iterator[Fact]:
    found = make_quality_rows(run.epochs)
    if found:
        first = f"{found[0]['quality']:.3f} after epoch {found[0]['epoch']}"
        value = f"{found[-1]['quality']:.3f}"
        yield Fact("Network quality Q", value, first if len(found) > 1 else "")


def _times(run: Run) -> Iterator[Fact]:
    rows = make_time_rows(run.epochs)
    total = sum(row["seconds"] for row in rows)
    if total:
        probe = sum(row["seconds"] for row in rows if row["part"] == "probe")
        each = time_text(total / len(run.epochs))
        yield Fact("Time an epoch", each, f"{time_text(total)} in all")
        yield Fact("Share of the probe", format_percent(probe / total), "of that time")


def _at(rows: Sequence[EpochLayerRow], epoch: int) -> list[EpochLayerRow]:
    return [row for row in rows if row["epoch"] == epoch]


def _some(rows: Sequence[Mapping[str, Any]], one: str, many: str) -> str:
    """How many layers, which, and the verb that goes with them: as in "2 layers (a, b) hold"."""
    names = [sanitize(row["layer"]) for row in rows[:NAMED]]
    hidden = len(rows) - len(names)
    listed = ", ".join(names) + (f" and {hidden} more" if hidden else "")
    return f"{format_count(len(rows), 'layer')} ({listed}) {one if len(rows) == 1 else many}"
