"""Statistics of runs and networks: paired tests, rank correlations, bootstrap intervals, Holm."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

SIGNIFICANCE = 0.05
CONFIDENCE = 0.95
_MIN_POINTS = 3  # two points always lie on a line
_MIN_GROUPS = 5  # with fewer the resamples are nearly all alike, and an interval would mislead
_MIN_FLIPS = 6  # with five pairs even the rarest outcome, 2 of 32, is above 0.05
_FLIPS = 2**15  # up to 15 pairs all sign flips are counted, beyond that so many random ones
_LARGEST = 1e100  # whose square a float still holds
_NAMES = ("PLCC", "SROCC", "KROCC")
_ROUNDING = 1e-12  # differences below this share of the scores are rounding errors


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Two settings compared over the seeds that both were run with."""

    n: int  # seeds
    difference: float | None = None  # mean of the first's scores minus the second's
    low: float | None = None  # its 95 % interval, by Student's t
    high: float | None = None
    p: float | None = None  # two-sided, of the paired t-test
    flips: float | None = None  # p of the sign-flip permutation test; None for fewer than 6 pairs
    reason: str = ""  # why there is no t-test


def paired_test(first: Mapping[int, float], second: Mapping[int, float]) -> PairedTest:
    """Compare two settings by the seeds they share; runs of one seed share weights and batches.

    Example:
        >>> test = paired_test({0: 0.61, 1: 0.63, 2: 0.62}, {0: 0.60, 1: 0.60, 2: 0.60})
        >>> test.n, round(test.difference, 3), round(test.p, 3)
        (3, 0.02, 0.074)
    """
    seeds = [seed for seed in first if seed in second]
    differences = np.array([first[seed] - second[seed] for seed in seeds], dtype=np.float64)
    n = len(seeds)
    if n == 0:
        return PairedTest(0, reason="they share no seed")
    if not np.abs(differences).max() < _LARGEST:
        return PairedTest(n, reason="the scores are too large to compare")
    mean = float(differences.mean())
    if n == 1:
        return PairedTest(1, mean, reason="one shared seed is too few for a test")
    largest = max(abs(scores[seed]) for seed in seeds for scores in (first, second))
    flips = _flip_signs(differences, _ROUNDING * largest * n) if n >= _MIN_FLIPS else None
    if differences.std(ddof=1) / math.sqrt(n) <= _ROUNDING * largest:
        reason = f"all {n} differences are equal, so their spread is 0"
        return PairedTest(n, mean, flips=flips, reason=reason)
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(CONFIDENCE)
    return PairedTest(n, mean, float(low), float(high), float(test.pvalue), flips)


def _flip_signs(differences: Array, tolerance: float) -> float:
    """Return the share of sign flips whose sum is at least as far from 0 as the observed one."""
    limit = abs(differences.sum()) - tolerance
    test = stats.permutation_test(
        (differences,),
        lambda sample, axis: (np.abs(sample.sum(axis=axis)) >= limit).astype(np.float64),
        permutation_type="samples",
        alternative="greater",
        n_resamples=_FLIPS,
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def adjust_holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for the number of tests by Holm's rule, which holds for dependent tests too.

    None stands for a test that was not made, and is not counted.

    Example:
        >>> adjust_holm([0.01, None, 0.04, 0.03])
        [0.03, None, 0.06, 0.06]
    """
    tested = sorted((p, place) for place, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for number, (p, place) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - number) * p))
        adjusted[place] = largest
    return adjusted


def permutation_test(
    first: Sequence[float | None],
    second: Sequence[float | None],
    *,
    groups: Sequence[Hashable] | None = None,
    permutations: int = 9999,
    seed: int = 0,
) -> float | None:
    """Return the two-sided p of a rank correlation (SROCC) by a permutation test over groups.

    What is shuffled must be exchangeable. Pairs of one group are not: the best and the last epoch
    of one run are nearly the same network. So each group counts as one point, the mean of its
    pairs. The test is exact where the groups are of one size. Where there are fewer orders than
    permutations, each is taken once. None with fewer than three points, or where all values are
    the same. A pair of which one is None or not finite is skipped.

    Example:
        >>> rising, falling = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [9.0, 8.0, 7.0, 5.0, 4.0, 1.0]
        >>> permutation_test(rising, falling) < 0.01
        True
    """
    if permutations < 1:
        raise ValueError(f"Expected permutations of 1 or more, got {permutations}.")
    x, y, labels = _finite_pairs(first, second, groups)
    count = int(labels.max(initial=-1)) + 1
    if count < _MIN_POINTS:
        return None
    size = np.bincount(labels)
    x, y = (stats.rankdata(np.bincount(labels, values) / size) for values in (x, y))
    x, y = x - x.mean(), y - y.mean()
    if not x.any() or not y.any():
        return None
    test = stats.permutation_test(
        (y,),
        lambda shuffled, axis: np.abs(np.tensordot(shuffled, x, axes=(axis, 0))),
        permutation_type="pairings",
        alternative="greater",
        n_resamples=permutations,
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)


def _finite_pairs(
    first: Sequence[float | None],
    second: Sequence[float | None],
    groups: Sequence[Hashable] | None,
) -> tuple[Array, Array, NDArray[np.intp]]:
    """Return the pairs in which both numbers are finite, and the number of each one's group."""
    labels = list(range(len(first))) if groups is None else list(groups)
    if not len(first) == len(second) == len(labels):
        lengths = f"{len(first)}, {len(second)} and {len(labels)}"
        raise ValueError(f"Expected as many values in first, second and groups, got {lengths}.")
    x, y = (np.array(values, dtype=np.float64) for values in (first, second))  # None becomes nan
    finite = np.isfinite(x) & np.isfinite(y)
    numbers: dict[Hashable, int] = {}
    for label, keep in zip(labels, finite, strict=True):
        if keep:
            numbers.setdefault(label, len(numbers))
    kept = [numbers[label] for label, keep in zip(labels, finite, strict=True) if keep]
    return x[finite], y[finite], np.array(kept, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Correlation:
    """A coefficient and its 95 % bootstrap interval; None where they are not defined."""

    name: str  # "PLCC" (Pearson), "SROCC" (Spearman) or "KROCC" (Kendall's tau-b)
    value: float | None
    low: float | None
    high: float | None
    n: int  # pairs
    groups: int  # independent groups of pairs: the resamples draw groups
    reason: str = ""  # why the value or the interval is missing


def correlate(
    first: Sequence[float | None],
    second: Sequence[float | None],
    *,
    groups: Sequence[Hashable] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Correlation, Correlation, Correlation]:
    """Return PLCC, SROCC and KROCC of two sequences, each with a percentile bootstrap interval.

    Pairs that share a group, such as trials of one setting, are drawn together; without groups
    each pair is its own. A pair of which one is None or not finite is skipped. Memory grows with
    the square of the number of pairs: some thousands are no trouble.

    Example:
        >>> quality, accuracy = [0.1, 0.2, 0.3, 0.5], [0.6, 0.7, 0.9, 0.8]
        >>> [round(one.value, 3) for one in correlate(quality, accuracy)]
        [0.68, 0.8, 0.667]
    """
    if resamples < 1:
        raise ValueError(f"Expected resamples of 1 or more, got {resamples}.")
    x, y, labels = _finite_pairs(first, second, groups)
    n, count = len(x), int(labels.max(initial=-1)) + 1
    reason = ""
    if n < _MIN_POINTS:
        reason = f"{n} pairs are too few: it takes {_MIN_POINTS}"
    elif np.ptp(x) == 0 or np.ptp(y) == 0:
        reason = f"all values of the {'first' if np.ptp(x) == 0 else 'second'} are the same"
    if reason:
        plcc, srocc, krocc = (
            Correlation(name, None, None, None, n, count, reason) for name in _NAMES
        )
        return plcc, srocc, krocc
    values = (
        stats.pearsonr(_scale(x), _scale(y)).statistic,
        stats.spearmanr(x, y).statistic,
        stats.kendalltau(x, y).statistic,
    )
    resampled = _resample(x, y, labels, resamples, seed)
    plcc, srocc, krocc = (
        _with_interval(name, float(value), drawn, (n, count))
        for name, value, drawn in zip(_NAMES, values, resampled, strict=True)
    )
    return plcc, srocc, krocc


def _scale(values: Array) -> Array:
    """Center values and scale them to at most 1, so that no square is lost to rounding."""
    centered = values - values.mean()
    return centered / np.abs(centered).max()


def _with_interval(name: str, value: float, drawn: Array, sizes: tuple[int, int]) -> Correlation:
    n, count = sizes
    if count < _MIN_GROUPS:
        reason = f"{count} independent groups are too few: it takes {_MIN_GROUPS}"
        return Correlation(name, value, None, None, n, count, reason)
    defined = drawn[np.isfinite(drawn)]
    if not len(defined):
        reason = "in every resample all values are the same"
        return Correlation(name, value, None, None, n, count, reason)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Correlation(name, value, float(low), float(high), n, count)


def _resample(x: Array, y: Array, labels: NDArray[np.intp], resamples: int, seed: int) -> Array:
    """Return the coefficients of bootstrap resamples of whole groups, (3, resamples).

    All resamples are computed at once from how often each pair was drawn, which scipy's
    coefficients can't do: thousands of calls would take minutes. nan where one side is constant.
    """
    count = int(labels.max()) + 1
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), resamples)
    times = draws[:, labels].astype(np.float64)  # (resamples, n)
    # Before the values are centred, which would make small ones equal where one is very large.
    above_x, above_y = (np.sign(v[:, None] - v[None, :]) for v in (x, y))  # (n, n)
    x, y = _scale(x), _scale(y)
    # Counts of pairs of draws, exact in floats; a draw ties with its own repeats.
    untied_x, untied_y, concordant = (
        np.einsum("rn,rn->r", times @ signs, times)
        for signs in (np.abs(above_x), np.abs(above_y), above_x * above_y)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        kendall = concordant / np.sqrt(untied_x * untied_y)
        pearson = _weighted_pearson(x, y, times)
        # A rank is half of (how many are below) minus (how many are above), up to a constant.
        spearman = _weighted_pearson(times @ above_x.T, times @ above_y.T, times)
    # Whether a resample is constant is known by counts: rounding would hide it.
    constant = (untied_x == 0) | (untied_y == 0)
    return np.where(constant, np.nan, np.clip([pearson, spearman, kendall], -1, 1))


def _weighted_pearson(x: Array, y: Array, times: Array) -> Array:
    """Return Pearson's coefficient of each resample; x and y are (n,) or (resamples, n)."""
    share = times / times.sum(1, keepdims=True)
    dx, dy = (v - (share * v).sum(1, keepdims=True) for v in (x, y))  # (resamples, n)
    spread = (share * dx**2).sum(1) * (share * dy**2).sum(1)
    return np.asarray((share * dx * dy).sum(1) / np.sqrt(spread))
