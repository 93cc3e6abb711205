"""Matrix → Hill exponent: how fast the larger half of its eigenvalues falls off (METHOD §8)."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from rankwise.errors import ArgumentError
from rankwise.numerics.spectrum import (
    Array,
    Workspace,
    compute_gram_spectrum,
    compute_spectrum,
)

_FEWEST = 3  # eigenvalues that a tail can be fitted to
# The mean of ln(λ_j/λ_i) below which the eigenvalues are equal but for rounding errors.
_EQUAL = 1e-12


def hill_exponent(weight: Tensor, workspace: Workspace | None = None) -> float | None:
    """Return α, the Hill exponent of a weight's spectrum; None where it has none.

    λ are the squared singular values, ascending, N of them, i = ⌊N/2⌋ and n = N − i:
    α = 1 + n / (Σ_{j≥i} ln λ_j − n·ln λ_i). A convolution has the squared singular values of the
    outputs × inputs matrices at all positions of its kernel, pooled. A low α means a heavy tail.

    Args:
        weight: `[out, in]` or `[out, in, *kernel]`, of any floating type, on any device.
        workspace: That of the calling thread.

    Returns:
        A number above 1. None for fewer than three eigenvalues, where λ_i is 0, and where all
        eigenvalues from λ_i on are equal, so that α would be infinite.

    Raises:
        ArgumentError: If `weight` has fewer than two dimensions.
        NotFiniteError: If it holds NaN or infinity.

    Example:
        >>> import torch, rankwise
        >>> diagonal = torch.tensor([1.0, 2.0, 4.0, 8.0])  # λ: 1, 4, 16, 64
        >>> round(rankwise.hill_exponent(torch.diag(diagonal)), 4)  # 1 + 2/ln(64/16)
        2.4427
        >>> rankwise.hill_exponent(torch.eye(4)) is None
        True
    """
    if weight.ndim < 2:
        raise ArgumentError(f"Expected two dimensions or more, got {weight.ndim}.")
    positions = weight.detach().flatten(2).unbind(2) if weight.ndim > 2 else (weight,)
    spectra = [compute_gram_spectrum(matrix, workspace) for matrix in positions]
    values = np.sort(np.concatenate([spectrum.values for spectrum in spectra]))
    # Squaring a matrix loses its small singular values; only those above the median count.
    if values[len(values) // 2] < max(spectrum.resolution for spectrum in spectra):
        values = np.sort(np.concatenate([compute_spectrum(matrix).values for matrix in positions]))
    return fit_hill_exponent(values)


def fit_hill_exponent(values: Array) -> float | None:
    """Return the Hill exponent of singular values, ascending."""
    i = len(values) // 2
    if len(values) < _FEWEST or values[i] <= 0.0:
        return None
    n = len(values) - i
    excess = 2.0 * math.fsum(np.log(values[i:] / values[i]))  # λ = s²
    return None if excess <= n * _EQUAL else 1.0 + n / excess


def count_eigenvalues(shape: tuple[int, ...]) -> int:
    """Return N, the number of eigenvalues of a weight of this shape.

    Example:
        >>> count_eigenvalues((64, 32, 3, 3))
        288
    """
    return min(shape[:2]) * math.prod(shape[2:]) if len(shape) > 1 else 0
