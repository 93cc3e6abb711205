"""Is a rank correlation more than chance? A permutation test that knows groups, and Holm's rule."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["holm", "permutation_test"]

Array = NDArray[np.float64]

_FEWEST = 3
_ROUNDING = 1e-12


def permutation_test(
    first: Sequence[float | None],
    second: Sequence[float | None],
    *,
    groups: Sequence[Hashable] | None = None,
    permutations: int = 9999,
    seed: int = 0,
) -> float | None:
    """How often chance alone gives a rank correlation (SROCC) as far from 0, two-sided.

    What is shuffled must be exchangeable. Pairs of one group are not: the best and the last epoch
    of one run are nearly one network. So each group counts as one point, the mean of its pairs,
    and the points are shuffled freely. Groups of unlike sizes are then exchangeable as far as means
    of few and of many pairs are alike; where all are of one size the test is exact. Without groups
    it is the usual test.

    Args:
        first: Numbers; a pair of which one is None or not finite is left out.
        second: As many.
        groups: A label for each pair; without it each pair stands for itself.
        permutations: How many shuffles, m.
        seed: The same seed gives the same p.

    Returns:
        p = (b + 1)/(m + 1), where b of the m shuffles are as far from 0; None where there are fewer
        than three points, or all values are the same.

    Raises:
        ValueError: If the lengths differ, or there are no permutations.

    Example:
        >>> from rankwise.study.permutation import permutation_test
        >>> rising, falling = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [9.0, 8.0, 7.0, 5.0, 4.0, 1.0]
        >>> permutation_test(rising, falling) < 0.01
        True
    """
    if permutations < 1:
        raise ValueError(f"Expected permutations of 1 or more, got {permutations}.")
    labels = list(range(len(first))) if groups is None else list(groups)
    if not len(first) == len(second) == len(labels):
        lengths = f"{len(first)}, {len(second)} and {len(labels)}"
        raise ValueError(f"Expected as many values in first, second and groups, got {lengths}.")
    x, y = (_centred_ranks(values) for values in _group_means(first, second, labels))
    scale = np.sqrt((x @ x) * (y @ y))
    if len(x) < _FEWEST or scale == 0:
        return None
    random = np.random.default_rng(seed)
    orders = random.permuted(np.tile(np.arange(len(y)), (permutations, 1)), axis=1)  # (m, groups)
    as_far = np.abs(y[orders] @ x) >= abs(y @ x) - _ROUNDING * scale
    return float((as_far.sum() + 1) / (permutations + 1))


def _group_means(
    first: Sequence[float | None], second: Sequence[float | None], labels: Sequence[Hashable]
) -> tuple[Array, Array]:
    """The mean of either number over each group's whole pairs."""
    members: dict[Hashable, list[tuple[float, float]]] = {}
    for a, b, label in zip(first, second, labels, strict=True):
        if a is not None and b is not None and np.isfinite(a) and np.isfinite(b):
            members.setdefault(label, []).append((a, b))
    means = np.array([np.mean(pairs, axis=0) for pairs in members.values()]).reshape(-1, 2)
    return means[:, 0], means[:, 1]


def _centred_ranks(values: Array) -> Array:
    """Half of (how many are below) minus (how many are above): ranks up to a constant."""
    ranks: Array = np.sign(values[:, None] - values[None, :]).sum(1) / 2
    return ranks


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Values of p adjusted for being many, by Holm's rule, which holds however tests hang together.

    Args:
        values: One p a test; None where there was no test, which then counts for nothing.

    Returns:
        The chance that any of the tests would look this good, were all of them chance.

    Example:
        >>> from rankwise.study.permutation import holm
        >>> holm([0.01, None, 0.04, 0.03])
        [0.03, None, 0.06, 0.06]
    """
    tested = sorted((p, place) for place, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    worst = 0.0
    for number, (p, place) in enumerate(tested):
        worst = max(worst, min(1.0, (len(tested) - number) * p))
        adjusted[place] = worst
    return adjusted
