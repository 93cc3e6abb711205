"""How well one number tells another over many networks: PLCC, SROCC and KROCC with intervals.

All three are computed from how often each pair of values was drawn, so that one formula serves the
values themselves and every resample of the bootstrap, all resamples at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Correlation", "correlate"]

Array = NDArray[np.float64]

NAMES = ("PLCC", "SROCC", "KROCC")
LEVEL = 0.95  # the share of resamples that an interval holds
_FEWEST = 3  # two points always lie on a line
_FEWEST_GROUPS = 5  # of fewer the resamples are nearly all alike, and an interval would mislead


@dataclass(frozen=True, slots=True)
class Correlation:
    """A coefficient and how far it can be trusted.

    Attributes:
        name: "PLCC" (Pearson), "SROCC" (Spearman) or "KROCC" (Kendall's tau-b).
        value: -1 … 1; None where it is not defined.
        low: The lower end of the bootstrap interval; None where there is none.
        high: The upper end.
        n: How many pairs it is of.
        groups: How many of them are independent: the resamples draw groups.
        reason: Why the value or the interval is missing; "" where neither is.
    """

    name: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    groups: int
    reason: str = ""


def correlate(
    first: Sequence[float | None],
    second: Sequence[float | None],
    *,
    groups: Sequence[Hashable] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Correlation, Correlation, Correlation]:
    """PLCC, SROCC and KROCC of two sequences, each with a percentile bootstrap interval.

    Memory grows with the square of the number of pairs: some thousands are no trouble.

    Args:
        first: Numbers; a pair of which one is None or not finite is left out.
        second: As many.
        groups: A label for each pair; pairs that share one, such as trials of one setting, are
            drawn together. Without it each pair stands for itself.
        resamples: How many times to draw.
        seed: The same seed gives the same interval.

    Raises:
        ValueError: If the lengths differ, or there are no resamples.

    Example:
        >>> from rankwise.study.correlation import correlate
        >>> quality, accuracy = [0.1, 0.2, 0.3, 0.5], [0.6, 0.7, 0.9, 0.8]
        >>> [round(found.value, 3) for found in correlate(quality, accuracy)]
        [0.68, 0.8, 0.667]
    """
    if resamples < 1:
        raise ValueError(f"Expected resamples of 1 or more, got {resamples}.")
    labels = list(range(len(first))) if groups is None else list(groups)
    if not len(first) == len(second) == len(labels):
        lengths = f"{len(first)}, {len(second)} and {len(labels)}"
        raise ValueError(f"Expected as many values in first, second and groups, got {lengths}.")
    x, y = (np.array([np.nan if v is None else v for v in values]) for values in (first, second))
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    clusters = _numbered([label for label, keep in zip(labels, kept, strict=True) if keep])
    count = int(clusters.max(initial=-1)) + 1
    reason = _undefined(x, y)
    if reason:
        none = (Correlation(name, None, None, None, len(x), count, reason) for name in NAMES)
        return next(none), next(none), next(none)
    values = _coefficients(x, y, np.ones((1, len(x))))[:, 0]
    drawn = _coefficients(x, y, _draws(clusters, count, resamples, seed))
    plcc, srocc, krocc = (
        _with_interval(name, value, row, (len(x), count))
        for name, value, row in zip(NAMES, values, drawn, strict=True)
    )
    return plcc, srocc, krocc


def _numbered(labels: Sequence[Hashable]) -> NDArray[np.intp]:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.intp)


def _undefined(x: Array, y: Array) -> str:
    """Why there is no coefficient; "" where there is."""
    if len(x) < _FEWEST:
        return f"{len(x)} pairs are too few: it takes {_FEWEST}"
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return f"the {'first' if np.ptp(x) == 0 else 'second'} of the two is the same for all"
    return ""


def _draws(clusters: NDArray[np.intp], count: int, resamples: int, seed: int) -> Array:
    """How often each pair is in each resample: (resamples, n)."""
    chances = np.full(count, 1 / count)
    times = np.random.default_rng(seed).multinomial(count, chances, size=resamples)
    return times[:, clusters].astype(np.float64)


def _coefficients(x: Array, y: Array, times: Array) -> Array:
    """The three coefficients of each resample, (3, resamples); nan where one is constant."""
    # Before the values are centred, which would make small ones equal beside a very large one.
    above_x, above_y = (np.sign(v[:, None] - v[None, :]) for v in (x, y))  # (n, n)
    x, y = ((v - v.mean()) / np.abs(v - v.mean()).max() for v in (x, y))
    # Counts of pairs of draws, exact in floats; a draw ties with its own repeats.
    apart_x, apart_y, agreeing = (
        np.einsum("rn,rn->r", times @ signs, times)
        for signs in (np.abs(above_x), np.abs(above_y), above_x * above_y)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        kendall = agreeing / np.sqrt(apart_x * apart_y)
    pearson = _pearson(x, y, times)
    # A rank is half of (how many are below) minus (how many are above), up to a constant.
    spearman = _pearson(times @ above_x.T, times @ above_y.T, times)
    # Whether a resample is constant is told by counts: rounding would hide it.
    constant = (apart_x == 0) | (apart_y == 0)
    found = np.stack([pearson, spearman, kendall])
    return np.where(constant, np.nan, np.clip(found, -1, 1))


def _pearson(x: Array, y: Array, times: Array) -> Array:
    """Pearson's coefficient of each resample; x and y are (n,) or (resamples, n)."""
    share = times / times.sum(1, keepdims=True)
    dx, dy = (v - (share * v).sum(1, keepdims=True) for v in (x, y))  # (resamples, n)
    spread = (share * dx**2).sum(1) * (share * dy**2).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((share * dx * dy).sum(1) / np.sqrt(spread))


def _with_interval(name: str, value: float, drawn: Array, sizes: tuple[int, int]) -> Correlation:
    n, count = sizes
    if count < _FEWEST_GROUPS:
        reason = f"{count} independent groups are too few, it takes {_FEWEST_GROUPS}"
        return Correlation(name, float(value), None, None, n, count, reason)
    whole = drawn[np.isfinite(drawn)]
    if not len(whole):
        reason = "in every resample all values are the same"
        return Correlation(name, float(value), None, None, n, count, reason)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(whole, [tail, 1 - tail])
    return Correlation(name, float(value), float(low), float(high), n, count)
