"""Spectrum → low-rank singular values: empirical variational Bayes matrix factorisation (EVBMF)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rankwise.errors import ArgumentError
from rankwise.numerics.free_energy import FreeEnergy
from rankwise.numerics.spectrum import Array, Spectrum, Workspace, exact_spectrum, fast_spectrum

__all__ = ["LowRank", "evbmf", "factorise", "low_rank"]


@dataclass(frozen=True, slots=True)
class LowRank:
    """The low-rank part Ŵ of a matrix W, by its singular values.

    Attributes:
        values: d_i, descending: the singular values of Ŵ. Empty where W is noise only.
        noise_variance: σ², the variance of one entry's noise.
        threshold: √(Mσ²x̄): the singular values of W above it were kept.

    Example:
        >>> import rankwise
        >>> rankwise.evbmf([5.0, 4.0, 0.3, 0.2, 0.1], columns=9).rank
        2
    """

    values: Array
    noise_variance: float
    threshold: float

    @property
    def rank(self) -> int:
        """n', the number of singular values of the low-rank part."""
        return len(self.values)


def evbmf(singular_values: npt.ArrayLike, *, columns: int) -> LowRank:
    """Parts a spectrum into signal and noise at the global minimum of the free energy.

    Args:
        singular_values: All L = min(rows, columns) singular values of the matrix, zeros included.
        columns: M, the matrix's larger side.

    Returns:
        The shrunk singular values d_i of the low-rank part, and the noise.

    Raises:
        ArgumentError: If a value is negative or not finite, or if there are more than `columns`.

    Example:
        A rank-1 matrix without noise is its own low-rank part:

        >>> import rankwise
        >>> rankwise.evbmf([3.0, 0.0, 0.0, 0.0], columns=4).values
        array([3.])
    """
    s = _descending(singular_values, columns)  # (L,)
    if len(s) == 0 or s[0] == 0.0:
        return LowRank(np.empty(0), 0.0, 0.0)
    largest = float(s[0])
    energy = FreeEnergy.of((s / largest) ** 2, columns)
    v, rank = energy.minimum()
    sigma = largest * math.sqrt(v / columns)
    d = s[:rank] * energy.shrinkage(v, rank)
    return LowRank(d, sigma * sigma, largest * math.sqrt(v * energy.x_bar))


def _descending(singular_values: npt.ArrayLike, columns: int) -> Array:
    s = np.sort(np.asarray(singular_values, dtype=np.float64).reshape(-1))[::-1]
    if not np.isfinite(s).all() or (s < 0).any():
        raise ArgumentError("Expected finite, non-negative singular values; check the matrix.")
    if len(s) > columns:
        raise ArgumentError(
            f"Expected at most columns={columns} singular values, got {len(s)}; "
            "`columns` is the matrix's larger side."
        )
    return s


def factorise(
    weight: Tensor, stored: torch.dtype | None = None, workspace: Workspace | None = None
) -> tuple[Spectrum, LowRank]:
    """A matrix's spectrum and its low-rank part, by the fastest route that is accurate enough.

    Args:
        weight: A floating tensor on any device, whose first dimension gives the matrix's rows; the
            others, taken together, give its columns.
        stored: The type the numbers come from, where `weight` holds them in a wider one.
        workspace: The calling thread's.

    Returns:
        The spectrum of the matrix and what EVBMF keeps of it.

    Raises:
        NotFiniteError: If the matrix holds NaN or infinity.
    """
    spectrum = fast_spectrum(weight, workspace)
    part = evbmf(spectrum.values, columns=spectrum.columns)
    # What EVBMF looks at lies at the noise's level or above it. Where that is finer than the
    # route resolves, the values below are rounding, not weights.
    if part.threshold < spectrum.resolution:
        spectrum = exact_spectrum(weight)
        part = evbmf(spectrum.values, columns=spectrum.columns)
    epsilon = torch.finfo(stored or weight.dtype).eps
    if part.threshold < _rounding(spectrum, epsilon):
        values = spectrum.values.copy()
        values[_rank_beside_rounding(weight, epsilon) :] = 0.0
        part = evbmf(values, columns=spectrum.columns)
    if part.rank and part.noise_variance == 0.0:
        part = _noise_of_the_living(weight.flatten(1), part)
    return spectrum, part


def _rounding(spectrum: Spectrum, epsilon: float) -> float:
    """Up to what singular value rounding to the stored type can reach.

    The tests try it on matrices of exactly low rank, of every floating type; noise that a network
    learned from is far above it.
    """
    return 2 * epsilon * spectrum.norm / math.sqrt(len(spectrum.values))


def _rank_beside_rounding(weight: Tensor, epsilon: float) -> int:
    """How many directions a matrix has beside those that rounding to the stored type gives it.

    Rounding errors of a matrix of exactly low rank are larger where its entries are, so that EVBMF
    would find structure in them. With all rows scaled to one length the errors are alike, and rows
    that are merely small do not count as rounding.
    """
    matrix = weight.detach().cpu().to(torch.float64).flatten(1)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    lengths = torch.linalg.vector_norm(matrix, dim=1, keepdim=True)
    spectrum = exact_spectrum(matrix / lengths.where(lengths > 0, lengths.new_ones(())))
    return int(np.count_nonzero(spectrum.values > _rounding(spectrum, epsilon)))


def _noise_of_the_living(matrix: Tensor, part: LowRank) -> LowRank:
    """EVBMF without the rows and columns that are zero throughout, where these hide the noise.

    So many dead rows that the smallest singular values are exactly zero leave the free energy
    without a minimum: it falls for ever as σ² → 0, and noise in the living rows would pass for
    structure.
    """
    matrix = matrix.detach().cpu().to(torch.float64)  # the smallest types can't be compared
    rows, columns = (matrix != 0).any(dim=1), (matrix != 0).any(dim=0)
    if bool(rows.all()) and bool(columns.all()):
        return part
    living = exact_spectrum(matrix[rows][:, columns])
    return evbmf(living.values, columns=living.columns)


def low_rank(matrix: Tensor) -> Tensor:
    """Ŵ, the low-rank part of a matrix itself: what EVBMF keeps, shrunk, without the noise.

    Nothing else in rankwise needs singular vectors; this takes a full SVD.

    Args:
        matrix: A 2-D floating tensor.

    Returns:
        A tensor of the same shape, dtype and device.

    Raises:
        ArgumentError: If `matrix` is not a 2-D floating tensor.
        NotFiniteError: If it holds NaN or infinity.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> planted = torch.randn(40, 3) @ torch.randn(3, 90)
        >>> found = rankwise.low_rank(planted + 0.1 * torch.randn(40, 90))
        >>> int(torch.linalg.matrix_rank(found))
        3
    """
    _, part = factorise(matrix)
    host = matrix.detach().to("cpu" if matrix.device.type == "mps" else matrix.device)
    u, _, vh = torch.linalg.svd(host.to(torch.float64), full_matrices=False)
    d = torch.from_numpy(part.values).to(u.device)
    return ((u[:, : part.rank] * d) @ vh[: part.rank]).to(matrix.device, matrix.dtype)
