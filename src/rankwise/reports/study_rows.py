"""Trials of a study's settings → the rows of its charts.

Everywhere a setting has the name that the charts show, and at least one finished trial.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from rankwise.charts.study import OPTIONS, TIME_PARTS
from rankwise.lab.records import Run
from rankwise.study.table import Trials, differing_options, format_options

Row = dict[str, Any]

_MOST, _FEWEST = 120, 20  # points of a line: more are not seen, fewer would have corners
_ROWS = 4000  # of all lines together, so that a page of many settings is still drawn at once
# Options that an epoch's time does not depend on; the optimizer is named anyway.
_TIMELESS = frozenset(
    [
        "optimizer",
        "epochs",
        "budget",
        "lr",
        "beta",
        "momentum",
        "weight_decay",
        "schedule",
        "step_size",
        "gamma",
        "clip",
        "control",
        "zeta",
        "floor",
        "p",
    ]
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """An option that varies with all others the same."""

    series: tuple[str, ...]  # what else distinguishes the lines, the best first
    rows: tuple[Row, ...]  # mean and standard deviation of the score for each series and value


@dataclass(frozen=True, slots=True)
class Grid:
    """Two options that vary over a grid with all others the same."""

    label: str  # what distinguishes it from other grids
    across: str
    up: str
    rows: tuple[Row, ...]


def make_curve_rows(settings: Sequence[Trials]) -> list[Row]:
    """Return the score's mean and range over trials at each epoch that all trials have."""
    rows: list[Row] = []
    for trials in settings:
        curves = [
            {
                record.epoch: value
                for record in run.epochs
                if (value := record.test.get(trials.score)) is not None
            }
            for run in trials.finished
        ]
        epochs = sorted(set(curves[0]).intersection(*curves[1:]))
        step = max(1, math.ceil(len(epochs) / _count_points(settings)))
        kept = epochs[::-1][::step][::-1]  # the last is always there
        rows += [
            {"setting": trials.setting, "epoch": epoch, **_span([c[epoch] for c in curves])}
            for epoch in kept
        ]
    return rows


def make_timed_curve_rows(settings: Sequence[Trials]) -> list[Row]:
    """Return the same against seconds of training, where all trials of a setting are running."""
    rows: list[Row] = []
    for trials in settings:
        curves = [_time_curve(run, trials.score) for run in trials.finished]
        starts, ends = max(times[0] for times, _ in curves), min(times[-1] for times, _ in curves)
        points = _count_points(settings)
        if len(curves) == 1:
            grid = curves[0][0][:: -math.ceil(len(curves[0][0]) / points)][::-1]
        else:
            grid = np.linspace(starts, ends, points) if starts < ends else np.array([])
        scores = [np.interp(grid, times, values) for times, values in curves]
        rows += [
            {"setting": trials.setting, "seconds": float(moment), **_span(list(values))}
            for moment, values in zip(grid, np.transpose(scores), strict=True)
        ]
    return rows


def make_quality_rows(settings: Sequence[Trials]) -> list[Row]:
    """Return Q, score and generalisation gap of each finished run that has a Q."""
    return [
        {
            "setting": trials.setting,
            "optimizer": run.config.optimizer,
            "seed": run.config.seed,
            "quality": run.quality,
            "score": run.test[trials.score],
            "gap": _compute_gap(run, trials),
        }
        for trials in settings
        for run in trials.finished
        if run.quality is not None
    ]


def make_epoch_time_rows(settings: Sequence[Trials]) -> list[Row]:
    """Return seconds per epoch by part, and the total with its deviation over runs."""
    rows: list[Row] = []
    for label, runs in _group_by_time(settings).items():
        parts = [_split_time(run) for run in runs]
        means = {part: statistics.fmean(run[part] for run in parts) for part in TIME_PARTS}
        totals = [sum(run.values()) for run in parts]
        mean = statistics.fmean(totals)
        spread = statistics.stdev(totals) if len(totals) > 1 else 0.0
        rows += [
            {"setting": label, "part": part, "seconds": seconds}
            for part, seconds in means.items()
            if seconds
        ]
        span = {"low": max(mean - spread, 0.0), "high": mean + spread}
        rows.append({"setting": label, "part": "total", "seconds": mean, **span})
    return rows


def find_sweep(settings: Sequence[Trials], option: str) -> Sweep | None:
    """Return what an option does with all others the same; None where it never varies alone."""
    groups = _group_alike(settings, (option,))
    labels = _label_groups(groups, (option,))
    by_label = sorted(zip(labels, groups, strict=True), key=lambda pair: min(map(_cost, pair[1])))
    rows = tuple(
        {"series": label, "value": trials.options[option], **_deviation(trials)}
        for label, group in by_label
        for trials in sorted(group, key=lambda trials: trials.options[option])
    )
    return Sweep(tuple(label for label, _ in by_label), rows) if groups else None


def find_grids(settings: Sequence[Trials]) -> list[Grid]:
    """Return where two options vary over a grid with all others the same, the largest first."""
    grids = []
    for across, up in combinations(OPTIONS, 2):
        pair = (across, up)
        groups = [group for group in _group_alike(settings, pair) if _is_grid(group, pair)]
        labels = _label_groups(groups, pair)
        grids += [
            Grid(label, across, up, _make_grid_rows(group, pair))
            for label, group in zip(labels, groups, strict=True)
        ]
    return sorted(grids, key=lambda grid: -len(grid.rows))


def _count_points(settings: Sequence[Trials]) -> int:
    return max(_FEWEST, min(_MOST, _ROWS // len(settings)))


def _time_curve(run: Run, score: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    pairs = [
        (record.seconds.trained, value)
        for record in run.epochs
        if (value := record.test.get(score)) is not None
    ]
    times, scores = np.array(pairs, dtype=float).T
    return times, scores


def _span(values: Sequence[float]) -> Row:
    return {
        "mean": float(statistics.fmean(values)),
        "low": float(min(values)),
        "high": float(max(values)),
        "n": len(values),
    }


def _compute_gap(run: Run, trials: Trials) -> float | None:
    train, test = run.epochs[-1].train.get(trials.score), run.test[trials.score]
    if train is None or test is None:
        return None
    return float(test - train if trials.lower_is_better else train - test)


def _group_by_time(settings: Sequence[Trials]) -> dict[str, list[Run]]:
    """Finished runs by optimizer and by what else an epoch's time may depend on."""
    options = [trials.options for trials in settings]
    for one in options:
        if one["optimizer"] == "rmsgd":  # both of its rules measure the same
            one["rule"] = None
    names = [name for name in differing_options(options) if name not in _TIMELESS]
    groups: dict[str, list[Run]] = {}
    for trials, own in zip(settings, options, strict=True):
        label = " ".join([own["optimizer"], *format_options(own, names)])
        groups.setdefault(label, []).extend(trials.finished)
    return groups


def _split_time(run: Run) -> dict[str, float]:
    """A run's mean seconds per epoch by part.

    The training time includes the probe only where the optimizer needs it.
    """
    seconds = [record.seconds for record in run.epochs]
    step = statistics.fmean(epoch.step for epoch in seconds)
    data = statistics.fmean(epoch.data for epoch in seconds)
    probe = statistics.fmean(epoch.probe for epoch in seconds)
    is_needed = run.trained / len(seconds) - step - data > probe / 2
    parts = (step, data, probe * is_needed, probe * (not is_needed))
    return dict(zip(TIME_PARTS, parts, strict=True))


def _group_alike(settings: Sequence[Trials], names: Sequence[str]) -> list[list[Trials]]:
    """Groups of two or more that differ in the named options only."""
    groups: dict[str, list[Trials]] = {}
    for trials in settings:
        options = trials.options
        if all(options[name] is not None for name in names):
            rest = {k: v for k, v in options.items() if k not in (*names, "seed")}
            groups.setdefault(repr(rest), []).append(trials)
    return [group for group in groups.values() if len(group) > 1]


def _is_grid(group: Sequence[Trials], pair: Iterable[str]) -> bool:
    """Whether both options vary, and over more than a cross or a diagonal."""
    sizes = [len({trials.options[name] for trials in group}) for name in pair]
    return min(sizes) > 1 and len(group) > max(sum(sizes) - 1, 3)


def _label_groups(groups: Sequence[Sequence[Trials]], varying: Sequence[str]) -> list[str]:
    """Each group's optimizer, and what distinguishes it from others of that optimizer."""
    options = [group[0].options for group in groups]
    labels = []
    for own in options:
        same = [other for other in options if other["optimizer"] == own["optimizer"]]
        names = [name for name in differing_options(same) if name not in varying]
        labels.append(" ".join([own["optimizer"], *format_options(own, names)]))
    return labels


def _get_mean(trials: Trials) -> float:
    if trials.mean is None:
        raise ValueError(f"{trials.setting} has no finished trial.")
    return trials.mean


def _cost(trials: Trials) -> float:
    """The mean score, negated where higher is better."""
    return _get_mean(trials) if trials.lower_is_better else -_get_mean(trials)


def _deviation(trials: Trials) -> Row:
    mean, spread = _get_mean(trials), trials.spread or 0.0
    return {"mean": mean, "low": mean - spread, "high": mean + spread, "n": len(trials.values)}


def _make_grid_rows(group: Sequence[Trials], pair: Sequence[str]) -> tuple[Row, ...]:
    worst, best = max(map(_cost, group)), min(map(_cost, group))
    return tuple(
        {
            "across": trials.options[pair[0]],
            "up": trials.options[pair[1]],
            "mean": _get_mean(trials),
            "spread": trials.spread,
            "n": len(trials.values),
            "share": (worst - _cost(trials)) / (worst - best) if worst > best else 1.0,
        }
        for trials in group
    )
