"""Runs side by side: mean and spread over trials of each setting, and the layers of one run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from rankwise.lab.defaults import omit_derived
from rankwise.lab.records import Run
from rankwise.lab.scores import is_falling, main_score, mean_text, score_text

__all__ = ["Comparison", "compare", "comparison_table", "layer_table"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The trials of one setting.

    Attributes:
        setting: What tells it from the others.
        score: Which score of the test it is, as in "accuracy".
        values: The last epoch's score of each trial that finished.
        diverged: How many trials diverged.
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
    def by_seed(self) -> dict[int, float]:
        """The values by their trials' seeds, for comparing settings pair by pair."""
        return {run.config.seed: v for run, v in zip(self.finished, self.values, strict=True)}

    @property
    def unscored(self) -> int:
        """How many finished without a score: it is beyond all numbers, or its record was lost."""
        return sum(run.status == "finished" for run in self.runs) - len(self.values)

    @property
    def unfinished(self) -> int:
        """How many runs go on still, or were broken off."""
        return sum(run.status == "unfinished" for run in self.runs)

    @property
    def falling(self) -> bool:
        """Whether less is better."""
        return is_falling(self.score)

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
        >>> from rankwise.lab import load_runs
        >>> from rankwise.study import compare
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
    options = [omit_derived(run.config) for run in runs]
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
        " ".join(
            [
                o["optimizer"],
                *(f"{name}={_short(o[name])}" for name in shown if o[name] is not None),
            ]
        )
        for o in options
    ]


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _compared(setting: str, runs: Sequence[Run]) -> Comparison:
    score = main_score([run.last for run in runs], otherwise="accuracy")
    over = [run for run in runs if _is_scored(run, score)]
    pick = min if is_falling(score) else max
    return Comparison(
        setting,
        score,
        tuple(value for run in over if (value := run.scores[score]) is not None),
        sum(run.status == "diverged" for run in runs),
        tuple(pick(_scores(run, score)) for run in over),
        tuple(run.quality for run in over if run.quality is not None),
        tuple(run.trained / len(run.epochs) for run in over),
        tuple(runs),
    )


def _is_scored(run: Run, score: str) -> bool:
    """Whether a run counts."""
    return run.scores.get(score) is not None


def _scores(run: Run, score: str) -> list[float]:
    return [value for epoch in run.epochs if (value := epoch.test.get(score)) is not None]


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
    lost = [f"{c.diverged} diverged"] if c.diverged else []
    lost += [f"{c.unscored} without a score"] if c.unscored else []
    return [
        c.setting,
        str(len(c.values)) + (f" ({', '.join(lost)})" if lost else ""),
        score_text(c.values, c.score),
        score_text(c.best, c.score),
        mean_text(c.quality, ".3f"),
        mean_text(c.seconds, ".2f"),
    ]


def layer_table(run: Run) -> str:
    """Every layer after a run's last epoch: rank, s, κ, q, and its rate at the end and at most."""
    rows = run.layers()
    last = [row for row in rows if row.epoch == run.epoch]
    most: dict[str, float] = {}
    for row in rows:
        if row.rate is not None:
            most[row.name] = max(row.rate, most.get(row.name, 0.0))
    lines = [f"{'layer':28} {'rank':>6} {'s':>6} {'κ':>6} {'q':>6} {'rate':>9} {'highest':>9}"]
    for row in last:
        cells = [
            f"{_tail(row.name, 28):28}",
            _cell(row.rank, "6.1f"),
            *(_cell(value, "6.3f") for value in (row.stable_rank, row.condition, row.quality)),
            _cell(row.rate, "9.4f"),
            _cell(most.get(row.name), "9.4f"),
        ]
        lines.append(" ".join(cells))
    return "\n".join(lines)


def _tail(name: str, width: int) -> str:
    """A long name's end, which tells it from its neighbours."""
    return name if len(name) <= width else "…" + name[1 - width :]


def _cell(value: float | None, form: str) -> str:
    return f"{'–':>{form.split('.', maxsplit=1)[0]}}" if value is None else f"{value:{form}}"
