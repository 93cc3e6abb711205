"""The same layers with random weights: what a fresh initialisation would show.

The metrics depend on nothing but the singular values, and not on their scale. So no weights are
drawn: the singular values of a Gaussian matrix have the law of those of a small bidiagonal matrix
with independent χ entries (Dumitriu and Edelman, 2002), which is cheap to sample at any width.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import ArgumentError
from rankwise.numerics.evbmf import LowRank, evbmf
from rankwise.numerics.spectrum import Array, Spectrum
from rankwise.numerics.unfold import Unfolding
from rankwise.probes.measure import means, mode_metrics, rank_caveats
from rankwise.probes.results import LayerMetrics, ModeMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["gaussian_singular_values", "random_layers"]

# Up to so many rows a spectrum is drawn. Larger ones follow their limit to some thousandths, and
# the eigenvalues would take longer than reading a saved probe should.
_DRAWN = 1024
_MOST = 1 << 16  # no matrix with more rows is probed in reasonable time
_GRID = 20_001  # points at which the limit law is integrated

Factors = tuple[Spectrum, LowRank]


def random_layers(layers: Iterable[LayerMetrics], *, p: float, seed: int) -> list[LayerMetrics]:
    """The layers as they would be with Gaussian weights of the same shapes and norms.

    Args:
        layers: Rows of a probe; those that were not probed stay as they are.
        p: The power in the stable rank.
        seed: Of the draw; unfoldings of one size get one spectrum.

    Raises:
        ArgumentError: If the seed is negative, or an unfolding's sides can't be those of a matrix.
    """
    if seed < 0:
        raise ArgumentError(f"Expected a seed of 0 or more, got {seed}.")
    known: dict[tuple[int, int], Factors] = {}

    def factors(rows: int, columns: int) -> Factors:
        if (rows, columns) not in known:
            known[rows, columns] = _unit_factors(rows, columns, seed)
        return known[rows, columns]

    redrawn = partial(_redrawn, factors=factors, p=p)
    return [redrawn(layer) if layer.probed and layer.modes else layer for layer in layers]


def gaussian_singular_values(rows: int, columns: int, seed: int) -> Array:
    """The singular values of a matrix of independent standard normal numbers, descending.

    Args:
        rows: L, the smaller side.
        columns: M, the larger one.
        seed: Of the draw, together with the sides.

    Raises:
        ArgumentError: If these can't be the sides of a matrix that was probed.

    Example:
        >>> len(gaussian_singular_values(3, 400, seed=0))
        3
    """
    if not 0 < rows <= min(columns, _MOST):
        raise ArgumentError(f"Expected 0 < rows <= columns, got {rows} and {columns}.")
    if rows > _DRAWN:
        return _limit(rows, columns)
    generator = np.random.default_rng([seed, rows, columns])
    # χ² of k degrees of freedom: M … M−L+1 on the diagonal, L−1 … 1 beside it.
    diagonal = generator.chisquare(columns - np.arange(rows, dtype=np.float64))
    beside = generator.chisquare(np.arange(rows - 1, 0, -1, dtype=np.float64))
    return _bidiagonal_values(np.sqrt(diagonal), np.sqrt(beside))


def _bidiagonal_values(diagonal: Array, beside: Array) -> Array:
    """The singular values of a lower bidiagonal matrix B, by the eigenvalues of BBᵀ."""
    B = np.diag(diagonal) + np.diag(beside, -1)
    return np.sqrt(np.maximum(np.linalg.eigvalsh(B @ B.T)[::-1], 0.0))


def _limit(rows: int, columns: int) -> Array:
    """The quantiles of the law that the spectrum tends to (Marchenko and Pastur, 1967)."""
    alpha = rows / columns
    angle = np.linspace(0.0, np.pi, _GRID)
    x = 1 + alpha - 2 * np.sqrt(alpha) * np.cos(angle)  # λ/M, from the lower edge to the upper
    # The density is √((x₊−x)(x−x₋))/x; dx adds a second sine. Where α = 1 it is 0/0 at x = 0.
    weight = np.sin(angle) ** 2 / np.maximum(x, sys.float_info.min)
    if rows == columns:
        weight[0] = weight[1]
    below = np.concatenate(([0.0], np.cumsum(weight[1:] + weight[:-1])))
    shares = (np.arange(rows, 0, -1) - 0.5) / rows
    return np.sqrt(columns * np.interp(shares, below / below[-1], x))


def _unit_factors(rows: int, columns: int, seed: int) -> Factors:
    values = gaussian_singular_values(rows, columns, seed)
    values = values / np.linalg.norm(values)
    return Spectrum(values, columns, 0.0), evbmf(values, columns=columns)


def _redrawn(layer: LayerMetrics, factors: Callable[[int, int], Factors], p: float) -> LayerMetrics:
    norm = layer.frobenius_norm or 1.0  # all zeros have no scale to keep
    modes = [
        _mode(mode, *_scaled(*factors(mode.rows, mode.columns), norm), p) for mode in layer.modes
    ]
    figures: dict[str, Any] = {**means(modes), "frobenius_norm": norm, "modes": tuple(modes)}
    return dataclasses.replace(layer, reason="; ".join(rank_caveats(modes)), **figures)


def _scaled(spectrum: Spectrum, part: LowRank, norm: float) -> Factors:
    whole = Spectrum(spectrum.values * norm, spectrum.columns, 0.0)
    return whole, LowRank(
        part.values * norm, part.noise_variance * norm * norm, part.threshold * norm
    )


def _mode(mode: ModeMetrics, spectrum: Spectrum, part: LowRank, p: float) -> ModeMetrics:
    unfolding = Unfolding((mode.mode,), 0, mode.rows, mode.columns)
    keep = mode.spectrum is not None
    return mode_metrics(unfolding, spectrum, part, p=p, spectra=keep)[0]
