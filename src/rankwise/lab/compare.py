"""Runs side by side: mean and spread over trials of each setting, and the layers of one run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rankwise.lab.records import Run

__all__ = ["Comparison", "compare", "comparison_table", "layer_table"]

# Scores of which less is better.
_FALLING = ("perplexity", "frechet")
_SCORES = ("accuracy", "perplexity", "frechet")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The trials of one setting.

    Attributes:
        setting: What tells it from the others.
        score: Which score of the test it is, as in "accuracy".
        values: The last epoch's score of each trial that finished.
        diverged: How many trials diverged, or ended without a score.
        best: The best epoch's score of each trial that finished.
        quality: The last epoch's Q of each trial, where known.
        seconds: Of training an epoch, mean over epochs, of each trial.
        runs: Those that it is of, finished or not.
    """

    setting: str
    score: str
    values: tuple[float, ...]
    diverged: int
    best: tuple[float, ...]
    quality: tuple[float, ...]
    seconds: tuple[float, ...]
    runs: tuple[Run, ...] = ()

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that the values are of."""
        return tuple(run for run in self.runs if _is_scored(run, self.score))

    @property
    def unfinished(self) -> int:
        """How many runs go on still, or were broken off."""
        return sum(run.status == "unfinished" for run in self.runs)

    @property
    def falling(self) -> bool:
        """Whether less is better."""
        return self.score in _FALLING

    @property
    def mean(self) -> float | None:
        """Over the trials that finished."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over trials; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """Runs that differ by nothing but their seed make one comparison; the best come first.

    Args:
        runs: Runs that are over.

    Example:
        >>> from rankwise.lab import compare, load_runs
        >>> compare(load_runs("no/such/folder"))
        []
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = repr({k: v for k, v in run.config.identity().items() if k != "seed"})
        groups.setdefault(key, []).append(run)
    names = _settings([group[0] for group in groups.values()])
    found = [_compared(n, group) for n, group in zip(names, groups.values(), strict=True)]
    return sorted(found, key=_order)


def _order(found: Comparison) -> tuple[bool, str, float]:
    if found.mean is None:
        return True, found.score, 0.0
    return False, found.score, found.mean if found.falling else -found.mean


def _settings(runs: Sequence[Run]) -> list[str]:
    """A name for each setting: its optimizer, and what tells it from others of that optimizer.

    Rates and the like differ from optimizer to optimizer anyway; network and data always count.
    """
    options = [run.config.identity() for run in runs]
    shown = [
        name
        for name in (options[0] if options else ())
        if name not in ("optimizer", "seed")
        and any(
            a[name] != b[name]
            for a, b in combinations(options, 2)
            if name in ("network", "data") or a["optimizer"] == b["optimizer"]
        )
    ]
    return [
        " ".join([o["optimizer"], *(f"{name}={_short(o[name])}" for name in shown)])
        for o in options
    ]


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _compared(setting: str, runs: Sequence[Run]) -> Comparison:
    score = next(
        (s for s in _SCORES if any(s in run.last.get("test", {}) for run in runs)), "accuracy"
    )
    over = [run for run in runs if _is_scored(run, score)]
    pick = min if score in _FALLING else max
    return Comparison(
        setting,
        score,
        tuple(run.last["test"][score] for run in over),
        sum(run.status != "unfinished" for run in runs) - len(over),
        tuple(pick(_scores(run, score)) for run in over),
        tuple(run.last["quality"] for run in over if run.last["quality"] is not None),
        tuple(run.last["seconds"]["trained"] / len(run.epochs) for run in over),
        tuple(runs),
    )


def _is_scored(run: Run, score: str) -> bool:
    """Whether a run counts: a finished one may have no score, a perplexity beyond all numbers."""
    return run.status == "finished" and _score(run.last, score) is not None


def _scores(run: Run, score: str) -> list[float]:
    found = (_score(epoch, score) for epoch in run.epochs)
    return [value for value in found if value is not None]


def _score(epoch: Mapping[str, Any], score: str) -> float | None:
    return epoch.get("test", {}).get(score)


def comparison_table(found: Sequence[Comparison]) -> str:
    """Comparisons as text: mean ± standard deviation over n trials."""
    if not found:
        return "No run is over yet."
    scores = {c.score for c in found}
    shown = scores.pop() if len(scores) == 1 else "score"
    head = ["setting", "n", f"test {shown}", "best epoch", "Q", "s/epoch"]
    rows = [head, *(_row(c) for c in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def _row(c: Comparison) -> list[str]:
    percent = c.score == "accuracy"
    trials = str(len(c.values)) + (f" ({c.diverged} diverged)" if c.diverged else "")
    return [
        c.setting,
        trials,
        _spread(c.values, percent=percent),
        _spread(c.best, percent=percent),
        _spread(c.quality, digits=3),
        _spread(c.seconds, digits=2),
    ]


def _spread(values: Sequence[float], *, digits: int = 2, percent: bool = False) -> str:
    """Mean ± standard deviation; the mean alone of a single value."""
    if not values:
        return "–"
    scale, unit = (100, " %") if percent else (1, "")
    text = f"{statistics.fmean(values) * scale:.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values) * scale:.{digits}f}"
    return text + unit


def layer_table(run: Run) -> str:
    """Every layer after a run's last epoch: rank, s, κ, q, and its rate at the end and at most."""
    rows = run.layers()
    last = [row for row in rows if row["epoch"] == run.last.get("epoch")]
    most: dict[str, float] = {}
    for row in rows:
        if row["rate"] is not None:
            most[row["name"]] = max(row["rate"], most.get(row["name"], 0.0))
    lines = [f"{'layer':28} {'rank':>6} {'s':>6} {'κ':>6} {'q':>6} {'rate':>9} {'highest':>9}"]
    for row in last:
        cells = [
            f"{_tail(row['name'], 28):28}",
            _cell(row["rank"], "6.1f"),
            *(_cell(row[metric], "6.3f") for metric in ("stable_rank", "condition", "quality")),
            _cell(row["rate"], "9.4f"),
            _cell(most.get(row["name"]), "9.4f"),
        ]
        lines.append(" ".join(cells))
    return "\n".join(lines)


def _tail(name: str, width: int) -> str:
    """A long name's end, which tells it from its neighbours."""
    return name if len(name) <= width else "…" + name[1 - width :]


def _cell(value: float | None, form: str) -> str:
    return f"{'–':>{form.split('.', maxsplit=1)[0]}}" if value is None else f"{value:{form}}"
