"""Spectrum → low-rank singular values: empirical variational Bayes matrix factorisation (EVBMF).

METHOD §2; the free energy and its minimum are in `free_energy`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rankwise.errors import ArgumentError
from rankwise.numerics.free_energy import FreeEnergy
from rankwise.numerics.rounding import StoredType, can_explain, count_directions
from rankwise.numerics.spectrum import (
    RANK_RESOLUTION,
    Array,
    Spectrum,
    Workspace,
    compute_gram_spectrum,
    compute_spectrum,
)


@dataclass(frozen=True, slots=True)
class LowRank:
    """The low-rank part Ŵ of a matrix W, by its singular values.

    Attributes:
        values: d_i, descending: the singular values of Ŵ. Empty if W is noise only.
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

    def __repr__(self) -> str:
        return (
            f"<LowRank: rank {self.rank}, noise variance {self.noise_variance:.4g}, "
            f"threshold {self.threshold:.4g}>"
        )

    @property
    def rank(self) -> int:
        """n', the number of singular values of the low-rank part."""
        return len(self.values)


def evbmf(singular_values: npt.ArrayLike, *, columns: int) -> LowRank:
    """Split a spectrum into signal and noise at the global minimum of the free energy.

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
    return _split(_sort_descending(singular_values, columns), columns)[0]


def _split(s: Array, columns: int, most: int | None = None) -> tuple[LowRank, float]:
    """Run EVBMF on sorted values; return also the lowest threshold that its search allows.

    `most` is the number of values that may be kept: the threshold is not below the next one.
    """
    if len(s) == 0 or s[0] == 0.0:
        return LowRank(np.empty(0), 0.0, 0.0), 0.0
    largest = float(s[0])
    energy = FreeEnergy.from_spectrum((s / largest) ** 2, columns)
    lower, upper = energy.find_bounds()
    floor = 0.0
    if most is not None:
        lower, floor = max(lower, float(energy.lam[most]) / energy.x_bar), float(s[most])
    v, rank = energy.find_minimum(lower, upper)  # v = Mσ²
    rank = rank if most is None else min(rank, most)
    sigma = largest * math.sqrt(v / columns)
    d = s[:rank] * energy.shrinkage(v, rank)
    part = LowRank(d, sigma * sigma, max(floor, largest * math.sqrt(v * energy.x_bar)))
    return part, largest * math.sqrt(lower * energy.x_bar)


def _sort_descending(singular_values: npt.ArrayLike, columns: int) -> Array:
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
    weight: Tensor,
    stored: StoredType | None = None,
    workspace: Workspace | None = None,
    *,
    rounded: Tensor | None = None,
    overlap: bool = False,
    rank_only: bool = False,
) -> tuple[Spectrum, LowRank]:
    """Compute a matrix's spectrum and its low-rank part by the fastest accurate route.

    Args:
        weight: A floating tensor on any device, whose first dimension gives the matrix's rows; the
            others, taken together, give its columns.
        stored: The type the numbers were stored in, where that is not the type of `weight`.
        workspace: That of the calling thread.
        rounded: The numbers whose rounding to `stored` is in the matrix, where these are not its
            own, as in the difference of two weights.
        overlap: Whether to compute `Spectrum.overlap` where that costs little.
        rank_only: Whether the rank is enough, and small singular values may be less accurate.

    Returns:
        The spectrum of the matrix, and what EVBMF keeps of it.

    Raises:
        NotFiniteError: If the matrix holds NaN or infinity.
    """
    spectrum = compute_gram_spectrum(weight, workspace, overlap=overlap)
    part, lowest = _split(spectrum.values, spectrum.columns)
    # EVBMF depends on the values at its lowest threshold and above. Where that is below the
    # resolution of the Gram matrix, the values there are rounding errors, not weights.
    finest = RANK_RESOLUTION * float(spectrum.values[0]) if rank_only else math.inf
    if lowest < min(spectrum.resolution, finest):
        spectrum = compute_spectrum(weight)
        part, _ = _split(spectrum.values, spectrum.columns)
    if part.rank == 0:
        return spectrum, part
    stored = stored or StoredType.from_dtype(weight.dtype)
    if part.noise_variance == 0.0 and (alive := _find_alive(weight)) is not None:
        rest = None if rounded is None else _select(rounded, *alive)
        alone = _select(weight, *alive)
        return spectrum, factorise(alone, stored, rounded=rest, rank_only=rank_only)[1]
    smallest = float(spectrum.values[part.rank - 1])
    numbers = weight if rounded is None else rounded
    is_own = rounded is None
    if can_explain(smallest, numbers, stored, spectrum, part.threshold, is_own=is_own):
        count = count_directions(weight, stored, rounded)
        if count < part.rank:
            part, _ = _split(spectrum.values, spectrum.columns, count)
    return spectrum, part


def _find_alive(weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return which rows and columns are not entirely zero; None if all are.

    Where so many rows are zero that the smallest singular values are exactly zero, the free energy
    has no minimum: it falls without bound as σ² → 0, and noise in the other rows would count as
    structure.
    """
    matrix = weight.detach().cpu().to(torch.float64).flatten(1)
    rows, columns = (matrix != 0).any(dim=1), (matrix != 0).any(dim=0)
    return None if bool(rows.all()) and bool(columns.all()) else (rows, columns)


def _select(weight: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return weight.detach().cpu().to(torch.float64).flatten(1)[rows][:, columns]


def low_rank(matrix: Tensor) -> Tensor:
    """Return Ŵ, the low-rank part of a matrix: what EVBMF keeps, shrunk, without the noise.

    This is the only function that needs singular vectors; it computes a full SVD.

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
        >>> cleaned = rankwise.low_rank(planted + 0.1 * torch.randn(40, 90))
        >>> int(torch.linalg.matrix_rank(cleaned))
        3
    """
    _, part = factorise(matrix)
    host = matrix.detach().to("cpu" if matrix.device.type == "mps" else matrix.device)
    u, _, vh = torch.linalg.svd(host.to(torch.float64), full_matrices=False)
    d = torch.from_numpy(part.values).to(u.device)
    return ((u[:, : part.rank] * d) @ vh[: part.rank]).to(matrix.device, matrix.dtype)
