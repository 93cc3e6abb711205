"""A matrix → thin factors of its strongest directions, and what they keep of it.

The exact way takes the eigenvectors of the smaller side's Gram matrix, in float64. It squares the
matrix: directions below 1e-8 of the strongest are lost in rounding errors, which is 1e-16 of ‖Δ‖².
Where few directions of a large matrix are wanted, a randomised range finder (Halko, Martinsson and
Tropp 2011) is faster. What it keeps is measured after each step, ‖QᵀΔ‖², and if it does not come to
what the singular values promise, the exact way is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankwise.numerics.spectrum import CHUNK, find_scale

# From this smaller side on eigenvectors cost more than a few products with a thin matrix.
_LARGE = 2048
_OVERSAMPLED = 16
_MOST_STEPS = 8
# What the range finder may miss of ‖Δ‖² at most.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Factors:
    """Two matrices whose product is close to a third.

    Attributes:
        left: out × r, U√d: LoRA's B.
        right: r × in, √d·Vᵀ: LoRA's A.
    """

    left: Tensor
    right: Tensor

    def to(self, dtype: torch.dtype) -> Factors:
        """Return both factors rounded to a type."""
        return Factors(self.left.to(dtype), self.right.to(dtype))


def compute_factors(
    matrix: Tensor, rank: int, *, energy: float = 1.0, values: Sequence[float] | None = None
) -> Factors:
    """Compute the best factors of a rank, in float64.

    Args:
        matrix: Of two dimensions, any floating type.
        rank: At most the smaller side.
        energy: The share of ‖matrix‖² in its first `rank` singular values, to check the range
            finder by; more than there is means that the exact way is taken.
        values: The singular values that the product gets; the matrix's own if not given.

    Example:
        >>> import torch
        >>> from rankwise.adapters.extraction.low_rank import compute_factors
        >>> factors = compute_factors(torch.diag(torch.tensor([3.0, 2.0, 1.0])), 2)
        >>> (factors.left @ factors.right).round(decimals=6).abs()
        tensor([[3., 0., 0.],
                [0., 2., 0.],
                [0., 0., 0.]], dtype=torch.float64)
    """
    scale = find_scale(matrix)
    is_wide = matrix.shape[0] <= matrix.shape[1]
    wide = _Scaled(matrix if is_wide else matrix.T, scale)
    basis, projected = _find_basis(wide, rank, energy)
    # UUᵀΔ is the projection itself, whatever the accuracy of U: σ is measured on its rows.
    own = torch.linalg.vector_norm(projected, dim=1)
    wanted = own if values is None else torch.tensor(list(values), dtype=torch.float64) / scale
    root = torch.sqrt(wanted * scale)
    first = basis * root
    second = projected * (root / torch.where(own > 0, own, 1.0))[:, None]
    return Factors(first, second) if is_wide else Factors(second.T, first.T)


def measure_error(matrix: Tensor, factors: Factors) -> float:
    """Return ‖matrix − left·right‖², computed in float64, some rows at a time.

    Example:
        >>> measure_error(torch.eye(2), Factors(torch.eye(2)[:, :1], torch.eye(2)[:1]))
        1.0
    """
    right = factors.right.to(torch.float64)
    error = 0.0
    for start, block in _split_rows(matrix):
        left = factors.left[start : start + len(block)].to(torch.float64)
        error += float(torch.addmm(block, left, right, alpha=-1).square().sum())
    return error


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A matrix divided by a power of two, converted to float64 some rows at a time."""

    matrix: Tensor
    scale: float

    def multiply(self, right: Tensor) -> Tensor:
        """Return W·X."""
        return torch.cat([block @ right for _, block in _split_rows(self.matrix, self.scale)])

    def multiply_transposed(self, left: Tensor) -> Tensor:
        """Return Xᵀ·W."""
        blocks = _split_rows(self.matrix, self.scale)
        products = (left[start : start + len(block)].T @ block for start, block in blocks)
        total = next(products)
        for product in products:
            total += product
        return total

    def compute_gram(self) -> Tensor:
        """Return W·Wᵀ, summed over some columns at a time."""
        rows = len(self.matrix)
        gram = torch.zeros(rows, rows, dtype=torch.float64)
        for _, block in _split_rows(self.matrix.T, self.scale):
            gram.addmm_(block.T, block)
        return gram


def _split_rows(matrix: Tensor, scale: float = 1.0) -> Iterator[tuple[int, Tensor]]:
    step = max(1, CHUNK // (8 * matrix.shape[1]))
    for start in range(0, len(matrix), step):
        block = matrix[start : start + step].detach().cpu().to(torch.float64)
        yield start, block / scale if scale != 1.0 else block


def _find_basis(wide: _Scaled, rank: int, energy: float) -> tuple[Tensor, Tensor]:
    """Return U of the strongest directions, and UᵀW."""
    side = len(wide.matrix)
    if side >= _LARGE and 8 * (rank + _OVERSAMPLED) <= side:
        found = _find_range(wide, rank, energy)
        if found is not None:
            return found
    _, vectors = torch.linalg.eigh(wide.compute_gram())
    basis = vectors.flip(1)[:, :rank].contiguous()
    return basis, wide.multiply_transposed(basis)


def _find_range(wide: _Scaled, rank: int, energy: float) -> tuple[Tensor, Tensor] | None:
    """Return U and UᵀW by power iterations on a random start, or None if too much is missing."""
    total = sum(float(block.square().sum()) for _, block in _split_rows(wide.matrix, wide.scale))
    generator = torch.Generator().manual_seed(0)
    columns = wide.matrix.shape[1]
    start = torch.randn(
        columns, rank + _OVERSAMPLED, generator=generator, dtype=torch.float64, device="cpu"
    )
    for _ in range(_MOST_STEPS):
        basis, _ = torch.linalg.qr(wide.multiply(start))
        projected = wide.multiply_transposed(basis)  # QᵀW
        squares, vectors = torch.linalg.eigh(projected @ projected.T)
        if float(squares[-rank:].sum()) >= (energy - _TOLERANCE) * total:
            best = vectors.flip(1)[:, :rank]
            return basis @ best, best.T @ projected
        start = projected.T
    return None
