"""Singular values of random Gaussian matrices, without drawing the matrices.

The singular values of a Gaussian matrix have the law of those of a small bidiagonal matrix with
independent χ entries (Dumitriu and Edelman, 2002), which is cheap to sample at any width.
"""

from __future__ import annotations

import sys

import numpy as np

from rankwise.errors import ArgumentError
from rankwise.numerics.spectrum import Array

# The largest number of rows for which a spectrum is drawn. Larger ones equal their limit law to
# some thousandths, and the eigenvalues would take longer than reading a saved probe should.
_MAX_DRAWN_ROWS = 1024
_MAX_ROWS = 1 << 16  # no matrix with more rows is probed in reasonable time
_GRID = 20_001  # points at which the limit law is integrated


def check_seed(seed: int) -> None:
    """Raise an ArgumentError if a seed is negative."""
    if seed < 0:
        raise ArgumentError(f"Expected a seed of 0 or more, got {seed}.")


def draw_gaussian_spectrum(rows: int, columns: int, seed: int) -> Array:
    """Draw the singular values of a matrix of independent standard normal numbers, descending.

    Args:
        rows: L, the smaller side.
        columns: M, the larger one.
        seed: Seed of the draw, together with the sides.

    Raises:
        ArgumentError: If these can't be the sides of a matrix that was probed.

    Example:
        >>> len(draw_gaussian_spectrum(3, 400, seed=0))
        3
    """
    if not 0 < rows <= min(columns, _MAX_ROWS):
        raise ArgumentError(f"Expected 0 < rows <= columns, got {rows} and {columns}.")
    if rows > _MAX_DRAWN_ROWS:
        return _marchenko_pastur_quantiles(rows, columns)
    generator = np.random.default_rng([seed, rows, columns])
    # χ² of k degrees of freedom: M … M−L+1 on the diagonal, L−1 … 1 below it.
    diagonal = generator.chisquare(columns - np.arange(rows, dtype=np.float64))
    below = generator.chisquare(np.arange(rows - 1, 0, -1, dtype=np.float64))
    B = np.diag(np.sqrt(diagonal)) + np.diag(np.sqrt(below), -1)
    return np.sqrt(np.maximum(np.linalg.eigvalsh(B @ B.T)[::-1], 0.0))


def _marchenko_pastur_quantiles(rows: int, columns: int) -> Array:
    """Return the quantiles of the law that the spectrum tends to (Marchenko and Pastur, 1967)."""
    alpha = rows / columns
    angle = np.linspace(0.0, np.pi, _GRID)
    x = 1 + alpha - 2 * np.sqrt(alpha) * np.cos(angle)  # λ/M, from the lower edge to the upper
    # The density is √((x₊−x)(x−x₋))/x; dx adds a second sine. Where α = 1 it is 0/0 at x = 0.
    weight = np.sin(angle) ** 2 / np.maximum(x, sys.float_info.min)
    if rows == columns:
        weight[0] = weight[1]
    cumulative = np.concatenate(([0.0], np.cumsum(weight[1:] + weight[:-1])))
    shares = (np.arange(rows, 0, -1) - 0.5) / rows
    return np.sqrt(columns * np.interp(shares, cumulative / cumulative[-1], x))
