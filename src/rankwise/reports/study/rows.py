"""Comparisons → the rows of a study's figures.

Everywhere a comparison's setting is the name that the figures show, and those without a finished
trial have been left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.charts.study import TIME_PARTS as PARTS
from rankwise.lab.records import Run
from rankwise.study.table import Trials, differing_options, format_options

__all__ = ["epoch_rows", "quality_rows", "time_rows", "wall_clock_rows"]

Row = dict[str, Any]

_MOST, _FEWEST = 120, 20  # points of a line: more are not seen, fewer would have corners
_ROWS = 4000  # of all lines together, so that a page of many settings is still drawn at once
# Options that an epoch's time does not depend on.
_TIMELESS = (
    "optimizer",  # named anyway
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
    "rule",
    "zeta",
    "floor",
    "p",
)


def epoch_rows(found: Sequence[Trials]) -> list[Row]:
    """The score's mean and range over trials at each epoch that all trials have."""
    rows: list[Row] = []
    for one in found:
        curves = [dict(_curve(run, one.score)) for run in one.finished]
        epochs = sorted(set(curves[0]).intersection(*curves[1:]))
        step = max(1, math.ceil(len(epochs) / _points(found)))
        kept = epochs[::-1][::step][::-1]  # the last is always there
        rows += [
            {"setting": one.setting, "epoch": epoch, **_range([c[epoch] for c in curves])}
            for epoch in kept
        ]
    return rows


def wall_clock_rows(found: Sequence[Trials]) -> list[Row]:
    """The same against seconds of training, where all trials of a setting are under way."""
    rows: list[Row] = []
    for one in found:
        curves = [_timed(run, one.score) for run in one.finished]
        starts, ends = max(times[0] for times, _ in curves), min(times[-1] for times, _ in curves)
        if len(curves) == 1:
            grid = curves[0][0][:: -math.ceil(len(curves[0][0]) / _points(found))][::-1]
        else:
            grid = np.linspace(starts, ends, _points(found)) if starts < ends else np.array([])
        scores = [np.interp(grid, times, values) for times, values in curves]
        rows += [
            {"setting": one.setting, "seconds": float(moment), **_range(list(values))}
            for moment, values in zip(grid, np.transpose(scores), strict=True)
        ]
    return rows


def _points(found: Sequence[Trials]) -> int:
    return max(_FEWEST, min(_MOST, _ROWS // len(found)))


def _curve(run: Run, score: str) -> list[tuple[int, float]]:
    return [
        (epoch.epoch, value) for epoch in run.epochs if (value := epoch.test.get(score)) is not None
    ]


def _timed(run: Run, score: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    pairs = [
        (epoch.seconds.trained, value)
        for epoch in run.epochs
        if (value := epoch.test.get(score)) is not None
    ]
    times, scores = np.array(pairs, dtype=float).T
    return times, scores


def _range(values: Sequence[float]) -> Row:
    return {
        "mean": float(statistics.fmean(values)),
        "low": float(min(values)),
        "high": float(max(values)),
        "n": len(values),
    }


def quality_rows(found: Sequence[Trials]) -> list[Row]:
    """Q, score and generalisation gap of each finished run that has a Q."""
    return [
        {
            "setting": one.setting,
            "optimizer": run.config.optimizer,
            "seed": run.config.seed,
            "quality": run.quality,
            "score": run.test[one.score],
            "gap": _gap(run, one),
        }
        for one in found
        for run in one.finished
        if run.quality is not None
    ]


def _gap(run: Run, found: Trials) -> float | None:
    """By how much training is better than the test."""
    train, test = run.epochs[-1].train.get(found.score), run.test[found.score]
    if train is None or test is None:
        return None
    return float(test - train if found.lower_is_better else train - test)


def time_rows(found: Sequence[Trials]) -> list[Row]:
    """Seconds an epoch by what they went into, and the whole with its deviation over runs."""
    rows: list[Row] = []
    for label, runs in _timed_alike(found).items():
        trials = [_parts(run) for run in runs]
        means = {part: statistics.fmean(trial[part] for trial in trials) for part in PARTS}
        wholes = [sum(trial.values()) for trial in trials]
        middle = statistics.fmean(wholes)
        spread = statistics.stdev(wholes) if len(wholes) > 1 else 0.0
        rows += [
            {"setting": label, "part": part, "seconds": seconds}
            for part, seconds in means.items()
            if seconds
        ]
        span = {"low": max(middle - spread, 0.0), "high": middle + spread}
        rows.append({"setting": label, "part": "total", "seconds": middle, **span})
    return rows


def _timed_alike(found: Sequence[Trials]) -> dict[str, list[Run]]:
    """Finished runs by optimizer and by what else an epoch's time may depend on."""
    options = [one.options for one in found]
    names = [name for name in differing_options(options) if name not in _TIMELESS]
    groups: dict[str, list[Run]] = {}
    for one, own in zip(found, options, strict=True):
        label = " ".join([own["optimizer"], *format_options(own, names)])
        groups.setdefault(label, []).extend(one.finished)
    return groups


def _parts(run: Run) -> dict[str, float]:
    """A run's mean seconds an epoch by part.

    The time of training holds the probe only where the optimizer needs it.
    """
    clocks = [epoch.seconds for epoch in run.epochs]
    step, data, probe = (
        statistics.fmean(getattr(clock, name) for clock in clocks)
        for name in ("step", "data", "probe")
    )
    counted = clocks[-1].trained / len(clocks) - step - data
    needed = counted > probe / 2
    return dict(zip(PARTS, (step, data, probe * needed, probe * (not needed)), strict=True))
