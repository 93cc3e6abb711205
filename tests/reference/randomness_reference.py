"""Whether a weight differs from random numbers, written plainly: loops over pairs of filters.

Slow and literal on purpose. The laws come from scipy: r² of two random directions in D dimensions
is Beta(1/2, (D − 1)/2); a gamma variable with the moments of Tracy and Widom's law (β = 1), as
published by Bornemann (2010), stands for the largest eigenvalue, as in Chiani (2014).
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

TRACY_WIDOM = {"mean": -1.2065335745820, "variance": 1.607781034581, "skewness": 0.29346452408}


@dataclass(frozen=True)
class ReferenceTest:
    overlap: float  # Σr² over all pairs, standardised
    more: float  # probabilities under random weights
    less: float
    largest: float


def reference_test(weight):
    """Test a weight whose first axis counts the filters."""
    filters = [row for row in weight.reshape(len(weight), -1).astype(float) if np.any(row)]
    inputs = sum(bool(np.any(column)) for column in np.transpose(filters))
    units = [row / math.sqrt(math.fsum(row * row)) for row in filters]
    squares = [
        float(units[i] @ units[j]) ** 2 for i in range(len(units)) for j in range(i + 1, len(units))
    ]
    pair = stats.beta(0.5, (inputs - 1) / 2)
    mean, variance = len(squares) * pair.mean(), len(squares) * pair.var()
    law = stats.gamma(mean**2 / variance, scale=variance / mean)
    total = math.fsum(squares)
    share = np.linalg.svd(np.array(units), compute_uv=False)[0] ** 2 / len(units)
    return ReferenceTest(
        (total - mean) / math.sqrt(variance),
        float(law.sf(total)),
        float(law.cdf(total)),
        reference_largest(share, len(units), inputs),
    )


def reference_largest(share, filters, inputs):
    """The probability that s₁²/‖W‖² of a random matrix is larger; of an array, each of them.

    The scale is Johnstone's (2001).
    """
    a, b = math.sqrt(filters - 0.5), math.sqrt(inputs - 0.5)
    x = (share * filters * inputs - (a + b) ** 2) / ((a + b) * (1 / a + 1 / b) ** (1 / 3))
    shape = 4 / TRACY_WIDOM["skewness"] ** 2
    scale = math.sqrt(TRACY_WIDOM["variance"] / shape)
    return stats.gamma.sf(x, shape, TRACY_WIDOM["mean"] - shape * scale, scale)
