"""Rounding to the stored type: how many directions of a matrix are more than its errors.

A stored number is off by up to half a step of its type, so its error has the variance step²/12.
Steps are larger where numbers are larger, which is not the even noise that EVBMF assumes: it finds
structure in the errors of a matrix of low rank. With rows and columns scaled so that each has the
same mean variance, the errors are even, and the rank stays the same (Landa, Zhang and Kluger,
"Biwhitening reveals the rank of a count matrix", 2022). docs/numerics.md has the measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankwise.numerics.free_energy import Array, FreeEnergy, compute_limits
from rankwise.numerics.spectrum import (
    RANK_RESOLUTION,
    Spectrum,
    compute_gram_spectrum,
    compute_spectrum,
    find_scale,
    split_blocks,
)

# Where errors repeat from row to row, as in a matrix of rank 1, they exceed the edge by this share.
_MARGIN = 1.05
# How far the variance of the noise may be from 1 after scaling, and the steps to get there.
_TOLERANCE = 1.1
_STEPS = 16
# How much more energy than step²/12 the errors of a small matrix may have.
_ENERGY_MARGIN = 0.2
# Scaling rows and columns in turn: three rounds leave some percent of unevenness.
_ROUNDS = 3
# From this precision on the errors are too small for the Gram matrix.
_FINE = 1e-5


# torch.finfo gives 0.125 for this type, whose next number after 1 is 1.25.
_EPSILONS = {torch.float8_e5m2fnuz: 0.25}


@dataclass(frozen=True, slots=True)
class StoredType:
    """The steps between neighbouring numbers of a floating type."""

    epsilon: float
    smallest_step: float  # that of numbers close to zero

    @classmethod
    def from_dtype(cls, dtype: torch.dtype, *, scaled: bool = False) -> StoredType:
        """Return the steps of a torch type; of numbers that were scaled later, by their size."""
        info = torch.finfo(dtype)
        epsilon = _EPSILONS.get(dtype, info.eps)
        # In float64 the rank must not depend on the scale, down to the smallest number.
        is_relative = scaled or dtype == torch.float64
        return cls(epsilon, 0.0 if is_relative else info.smallest_normal * epsilon)

    def compute_variances(self, values: Array, scale: float) -> Array:
        """Return the variance of each number's error, both in units of `scale`."""
        exponents = np.frexp(values)[1]
        steps = np.ldexp(self.epsilon / 2, exponents)
        # A zero may have been any number below the smallest step.
        steps[values == 0] = 0.0
        floor = max(self.smallest_step / scale, 1e-140)  # whose square is not zero
        return np.square(np.maximum(steps, floor)) / 12


def can_explain(
    value: float,
    rounded: Tensor,
    stored: StoredType,
    spectrum: Spectrum,
    threshold: float,
    *,
    is_own: bool = True,
) -> bool:
    """Return whether noise and rounding together can cause a singular value of this size.

    Args:
        value: The singular value.
        rounded: The numbers that were rounded, the first dimension the rows: the matrix itself, or
            those that its numbers are differences of.
        stored: The type that they were stored in.
        spectrum: Its spectrum.
        threshold: EVBMF's threshold, which tells the variance of the noise.
        is_own: Whether `rounded` is the matrix itself.
    """
    largest = float(spectrum.values[0])
    alpha = len(spectrum.values) / spectrum.columns
    by_row = threshold / math.sqrt(compute_limits(alpha)[1])  # √(Mσ²), a row's noise
    by_column = by_row * math.sqrt(alpha)
    # No row or column is longer than s₁. Nearly always this shows enough.
    smallest = stored.smallest_step * math.sqrt(spectrum.columns)
    rounding = math.hypot(stored.epsilon * largest, smallest) / math.sqrt(12)
    bound = _MARGIN * (math.hypot(by_row, rounding) + math.hypot(by_column, rounding))
    if is_own and value > bound:
        return False
    row, column = _measure_rounding(rounded, stored)
    return value <= _MARGIN * (math.hypot(by_row, row) + math.hypot(by_column, column))


def _measure_rounding(weight: Tensor, stored: StoredType) -> tuple[float, float]:
    """Return the largest standard deviation of rounding over any row, and over any column.

    Their sum bounds the spectral norm of independent errors.
    """
    scale = find_scale(weight)
    rows, column = np.zeros(1), 0.0
    for block in split_blocks(weight, scale):
        values = block.cpu().numpy() if isinstance(block, Tensor) else block
        variances = stored.compute_variances(values, scale)
        rows = rows + variances.sum(1)
        column = max(column, float(variances.sum(0).max()))
    return scale * math.sqrt(rows.max()), scale * math.sqrt(column)


@dataclass(frozen=True, slots=True)
class _Fit:
    """EVBMF of a matrix whose noise was scaled to variance 1."""

    lam: Array  # (L,) λ_i, descending
    variance: float
    rank: int


def count_directions(weight: Tensor, stored: StoredType, rounded: Tensor | None = None) -> int:
    """Count the directions of a matrix that neither rounding nor noise explains.

    The noise has the variance step²/12 of rounding plus an unknown ν², the same for all numbers:
    the one that gives the noise variance 1 after scaling.

    Args:
        weight: The matrix, its first dimension the rows.
        stored: The type that its numbers were stored in.
        rounded: The numbers that were rounded, where these are not the matrix's own.
    """
    scale = find_scale(weight)
    matrix = _to_float64(weight) / scale
    rows, columns = matrix.any(1), matrix.any(0)
    matrix = matrix[rows][:, columns]
    values = matrix if rounded is None else (_to_float64(rounded) / scale)[rows][:, columns]
    variances = stored.compute_variances(values, scale)
    if matrix.shape[0] > matrix.shape[1]:
        matrix, variances = matrix.T, variances.T
    is_fine = stored.epsilon < _FINE

    fit = _fit(matrix, variances, is_fine=is_fine)
    unexplained = _count_unexplained(fit.lam, matrix.shape[1])
    if fit.variance > _TOLERANCE:
        low, high = math.log(variances.mean(1).min()), math.log(np.square(matrix).mean())
        for _ in range(_STEPS):
            middle = (low + high) / 2
            fit = _fit(matrix, variances + math.exp(middle), is_fine=is_fine)
            if 1 / _TOLERANCE <= fit.variance <= _TOLERANCE:
                break
            low, high = (middle, high) if fit.variance > 1 else (low, middle)
    return min(fit.rank, unexplained)


def _to_float64(weight: Tensor) -> Array:
    return weight.detach().cpu().to(torch.float64).flatten(1).numpy()


def _fit(matrix: Array, variances: Array, *, is_fine: bool) -> _Fit:
    """Run EVBMF with rows and columns scaled so that the variances of each have the mean 1."""
    by_row, by_column = np.ones(matrix.shape[0]), np.ones(matrix.shape[1])
    for _ in range(_ROUNDS):
        by_row = 1 / (variances @ by_column / len(by_column))
        by_column = 1 / (by_row @ variances / len(by_row))
    even = torch.from_numpy(np.sqrt(by_row)[:, None] * matrix * np.sqrt(by_column))
    spectrum = compute_gram_spectrum(even)
    # The noise now has singular values near √M; a finer type has them below the Gram matrix's.
    if is_fine and RANK_RESOLUTION * spectrum.values[0] > math.sqrt(spectrum.columns):
        spectrum = compute_spectrum(even)
    lam = np.square(spectrum.values)
    energy = FreeEnergy.from_spectrum(lam / lam[0], spectrum.columns)
    v, rank = energy.find_minimum(*energy.find_bounds())
    return _Fit(lam, float(lam[0]) * v / spectrum.columns, rank)


def _count_unexplained(lam: Array, columns: int) -> int:
    """Return the least rank beyond which rounding explains all energy, whatever its structure.

    Errors of few mantissa bits follow the numbers: those of a matrix of rank 1 have directions of
    their own, but no more energy than others.
    """
    kept = np.arange(len(lam))
    rest = np.cumsum(lam[::-1])[::-1]
    enough = rest <= (1 + _ENERGY_MARGIN) * (len(lam) - kept) * (columns - kept)
    return int(np.argmax(enough)) if enough.any() else len(lam)
