"""Two settings over the same seeds: by how much they differ, and whether that may be chance.

Runs of one seed begin with the same weights and see the same batches, so their difference says more
than two means do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rankwise.study.student import critical_t, two_sided

__all__ = ["LEVEL", "Paired", "paired"]

LEVEL = 0.05
_FEWEST_FLIPS = 6  # with five pairs even the rarest outcome, 2 of 32, is above 0.05
_MOST_FLIPS = 20  # a million outcomes
_HUGE = 1e100  # whose squares a float still holds
_SAME = 1e-12  # differences this close, as a share of the scores, differ by rounding alone


@dataclass(frozen=True, slots=True)
class Paired:
    """What a paired comparison gives.

    Attributes:
        n: How many seeds both have a score for.
        difference: Mean of the first's scores minus the second's; None without pairs.
        low: The lower end of its 95 % interval, by Student's t; None where there is no test.
        high: The upper end.
        p: The two-sided chance of such a difference between equals, by the paired t-test.
        flips: The same by all 2ⁿ ways of turning signs, for 6 to 20 pairs.
        reason: Why there is no t-test; "" where there is.
    """

    n: int
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    flips: float | None = None
    reason: str = ""


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Paired:
    """Compare two settings by the seeds that both were tried with.

    Args:
        first: Scores by seed.
        second: The other's.

    Example:
        >>> found = paired({0: 0.61, 1: 0.63, 2: 0.62}, {0: 0.60, 1: 0.60, 2: 0.60})
        >>> found.n, round(found.difference, 3), round(found.p, 3)
        (3, 0.02, 0.074)
    """
    seeds = [seed for seed in first if seed in second]
    gaps = np.array([first[seed] - second[seed] for seed in seeds], dtype=np.float64)
    n = len(seeds)
    if n == 0:
        return Paired(0, reason="they share no seed")
    if not np.abs(gaps).max() < _HUGE:
        return Paired(n, reason="scores are beyond what can be compared")
    mean = float(gaps.mean())
    if n == 1:
        return Paired(1, mean, reason="one shared seed tells no chance from merit")
    largest = max(abs(score) for seed in seeds for score in (first[seed], second[seed]))
    flips = _flipped(gaps, _SAME * largest * n)
    error = float(gaps.std(ddof=1)) / math.sqrt(n)
    if error <= _SAME * largest:
        reason = f"all {n} differences are the same, so there is no spread to judge them by"
        return Paired(n, mean, flips=flips, reason=reason)
    reach = critical_t(LEVEL, n - 1) * error
    return Paired(n, mean, mean - reach, mean + reach, two_sided(mean / error, n - 1), flips)


def _flipped(gaps: np.ndarray, tolerance: float) -> float | None:
    """The share of all choices of signs whose sum is as far from 0 as the one observed."""
    if not _FEWEST_FLIPS <= len(gaps) <= _MOST_FLIPS:
        return None
    sums = np.zeros(1)
    for gap in gaps:
        sums = np.concatenate([sums + gap, sums - gap])
    return float(np.mean(np.abs(sums) >= abs(gaps.sum()) - tolerance))
