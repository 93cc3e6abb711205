"""Whether a weight differs from independent random numbers (METHOD §9).

Both tests look at the weight's filters (the rows along its output axis) scaled to unit norm, since
unequal norms alone make random weights look structured. Filters that are entirely zero, and inputs
that no filter uses, are left out.

Overlap: the cosines r of two random filters of dimension D have E r² = 1/D and are pairwise
independent, so that Σ r² over all pairs has a known mean and variance, whatever the number of
filters (Schott, 2005). Training leaves filters more alike, or more unlike, than chance.

Largest direction: λ₁ of the Gram matrix of random numbers follows the Tracy–Widom law (Johnstone,
2001; here by the gamma approximation of Chiani, 2014). With filters of unit norm it varies less, so
that the test is cautious. One strong direction shows here even where the overlap of all pairs does
not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from rankwise.numerics.spectrum import Array, Workspace, compute_eigenvalues, compute_unit_gram

# The least number of filters and inputs for which a verdict is given. Below it, about a fifth of
# trained layers look like random ones.
MIN_WIDTH = 16
# The probability with which random weights are said to differ.
SIGNIFICANCE = 1e-3
# Of more filters than this, some evenly spaced ones are compared: more than enough for the tests,
# and the cost of a second Gram matrix of a large layer is saved.
_MAX_FILTERS = 2048
# What a Tracy–Widom variable exceeds with half of that probability.
_TRACY_WIDOM_LIMIT = 3.58294


class Verdict(str, Enum):
    """Whether a layer's weights differ from independent random numbers.

    Only `RANDOM` is compatible with an untrained layer, and it proves nothing by itself: healthy
    layers can have a flat spectrum.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> rankwise.probe(torch.nn.Linear(64, 32)).layers[0].verdict.value
        'no direction stands out'
    """

    DIFFERS = "differs from random"
    FLAT = "flatter than random"
    NORMS_ONLY = "differs only in its filters' norms"
    RANDOM = "no direction stands out"
    TOO_SMALL = "too small to tell"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class RandomnessTest:
    """The result of comparing a weight with random numbers.

    Attributes:
        verdict: What the numbers below come to.
        chance: The probability that random weights differ from the expectation as much, by their
            overlap, or by their largest direction where only that stands out; 0 where it is too
            small for float64, 1 where there was nothing to test.
        overlap: (Σr² − its mean) / its standard deviation, over all pairs of filters, or of 2,048
            of them.
    """

    verdict: Verdict
    chance: float
    overlap: float


def compare_with_random(
    weight: Tensor,
    spectral_share: float,
    overlap: float | None = None,
    workspace: Workspace | None = None,
) -> RandomnessTest:
    """Compare a weight with independent random numbers.

    Args:
        weight: A floating tensor whose first axis counts the filters.
        spectral_share: s₁²/‖W‖² of the weight as it is, to recognise a spectrum that stands out
            only by the norms of the filters.
        overlap: Σr² over all pairs of filters, where it is known; then most trained layers need
            no further matrix product.
        workspace: That of the calling thread.

    Raises:
        NotFiniteError: If the weight holds NaN or infinity.
    """
    inputs = _count_used(weight)
    if min(len(weight), inputs) < MIN_WIDTH:
        return RandomnessTest(Verdict.TOO_SMALL, 1.0, 0.0)
    if overlap is not None:
        pairs = _test_overlap(overlap, len(weight), inputs)
        if 2 * pairs.more < SIGNIFICANCE:
            return RandomnessTest(Verdict.DIFFERS, 2 * pairs.more, pairs.excess)
    gram, filters = compute_unit_gram(weight[:: -(-len(weight) // _MAX_FILTERS)])
    if filters < MIN_WIDTH:
        return RandomnessTest(Verdict.TOO_SMALL, 1.0, 0.0)
    if overlap is None:
        overlap = (float((gram * gram).sum()) - filters) / 2  # Σ r² over pairs
        pairs = _test_overlap(overlap, filters, inputs)
        if 2 * pairs.more < SIGNIFICANCE:
            return RandomnessTest(Verdict.DIFFERS, 2 * pairs.more, pairs.excess)
    chance = min(1.0, 2 * pairs.more)
    if _exceeds(gram, filters * _limit_share(filters, inputs)):
        largest = float(compute_eigenvalues(gram, workspace or Workspace())[-1])
        chance = min(chance, 2 * _test_largest(largest / filters, filters, inputs))
        return RandomnessTest(Verdict.DIFFERS, chance, pairs.excess)
    if 2 * pairs.less < SIGNIFICANCE:
        return RandomnessTest(Verdict.FLAT, 2 * pairs.less, pairs.excess)
    # The weight as it is has all its filters.
    if spectral_share > _limit_share(len(weight), inputs):
        return RandomnessTest(Verdict.NORMS_ONLY, chance, pairs.excess)
    return RandomnessTest(Verdict.RANDOM, chance, pairs.excess)


class _Pairs(NamedTuple):
    """The probabilities that random filters overlap more, and less; the standardised excess."""

    more: float
    less: float
    excess: float


def _test_overlap(overlap: float, filters: int, inputs: int) -> _Pairs:
    """Compare Σr² with that of random filters."""
    pairs = filters * (filters - 1) / 2
    mean = pairs / inputs
    variance = pairs * 2 * (inputs - 1) / (inputs**2 * (inputs + 2))
    # Each D·r² is nearly χ² of one degree of freedom; their sum gets its exact mean and variance.
    shape, scale = mean * mean / variance, variance / mean
    more = _gamma_tail(shape, overlap / scale)
    return _Pairs(more, 1 - more, (overlap - mean) / math.sqrt(variance))


def _count_used(weight: Tensor) -> int:
    """Count the inputs that some filter uses."""
    if weight.dtype.itemsize == 1:  # the smallest types can't be compared
        weight = weight.to(torch.float32)
    return int(torch.count_nonzero((weight.detach() != 0).flatten(1).any(0)))


def _exceeds(gram: Array | Tensor, limit: float) -> bool:
    """Return whether the largest eigenvalue is above a limit: limit·I − G has no root then."""
    shifted = -(gram if isinstance(gram, Tensor) else torch.from_numpy(gram))
    shifted.diagonal().add_(limit)
    return int(torch.linalg.cholesky_ex(shifted).info) > 0


def _limit_share(filters: int, inputs: int) -> float:
    """Return the share of λ₁ in the squared norm that random weights rarely exceed."""
    center, spread = _locate_largest(filters, inputs)
    return (center + _TRACY_WIDOM_LIMIT * spread) / (filters * inputs)


def _locate_largest(filters: int, inputs: int) -> tuple[float, float]:
    """Return where λ₁ of standard normal numbers lies, and its scale (Johnstone, 2001)."""
    root, other = math.sqrt(filters - 0.5), math.sqrt(inputs - 0.5)
    return (root + other) ** 2, (root + other) * (1 / root + 1 / other) ** (1 / 3)


def _test_largest(share: float, filters: int, inputs: int) -> float:
    """Return the probability that λ₁ of a random matrix is a larger share of its squared norm."""
    center, spread = _locate_largest(filters, inputs)
    x = (share * filters * inputs - center) / spread
    return _gamma_tail(46.446, max(0.0, x + 9.84801) / 0.186054)


def _gamma_tail(shape: float, x: float) -> float:
    """Return the probability that a gamma variable of unit scale is larger than x."""
    a, b = (torch.tensor(value, dtype=torch.float64, device="cpu") for value in (shape, x))
    return float(torch.special.gammaincc(a, b))
