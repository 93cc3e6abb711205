"""Products of thin factors: singular vectors and truncation by QR, without forming the product.

B·A with B: m × r and A: r × n has, for r much smaller than m and n, its singular values in the
r × r core R_B·R_Aᵀ of B = Q_B·R_B and Aᵀ = Q_A·R_A (METHOD §10). All in float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rankwise.errors import ArgumentError, NotFiniteError

Array = npt.NDArray[np.float64]


class ThinProduct(NamedTuple):
    """The singular value decomposition U·diag(s)·Vᵀ of a product of thin factors.

    Attributes:
        left: U, m × k with orthonormal columns.
        values: s, descending.
        right: Vᵀ, k × n.
    """

    left: Tensor
    values: Tensor
    right: Tensor

    def truncate(self, rank: int, ratio: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return factors of the nearest matrix of a rank, and how their norms compare.

        Args:
            rank: Of the result.
            ratio: ‖B‖/‖A‖ of the result.
        """
        root = self.values[:rank].sqrt()
        balance = math.sqrt(ratio)
        return self.left[:, :rank] * root * balance, self.right[:rank] * (root / balance)[:, None]


def decompose_product(b: Tensor, a: Tensor) -> ThinProduct:
    """Decompose B·A.

    Raises:
        NotFiniteError: If a factor holds NaN or infinity, or the product overflows float64.

    Example:
        >>> import torch
        >>> from rankwise.numerics.thin_product import decompose_product
        >>> b, a = torch.ones(6, 1), torch.ones(1, 6)
        >>> [round(value, 6) for value in decompose_product(b, a).values.tolist()]
        [6.0]
    """
    b, a = _convert(b), _convert(a)
    q_b, r_b = torch.linalg.qr(b)
    q_a, r_a = torch.linalg.qr(a.T)
    core = r_b @ r_a.T
    if not bool(torch.isfinite(core).all()):
        raise NotFiniteError("the product of the factors overflows")
    u, values, v = torch.linalg.svd(core, full_matrices=False)
    return ThinProduct(q_b @ u, values, v @ q_a.T)


def measure_difference(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> float:
    """Return ‖B₁A₁ − B₂A₂‖ (Frobenius), which is the norm of [B₁ −B₂]·[A₁; A₂].

    Example:
        >>> import torch
        >>> from rankwise.numerics.thin_product import measure_difference
        >>> b, a = torch.ones(3, 1), torch.ones(1, 3)
        >>> round(measure_difference((b, a), (2 * b, a)), 6)
        3.0
    """
    (b_1, a_1), (b_2, a_2) = first, second
    left = torch.cat((_convert(b_1), -_convert(b_2)), dim=1)
    right = torch.cat((_convert(a_1), _convert(a_2)))
    r_left = torch.linalg.qr(left, mode="r").R
    r_right = torch.linalg.qr(right.T, mode="r").R
    return float(torch.linalg.matrix_norm(r_left @ r_right.T))


def find_least_rank(values: Array, error: float) -> int:
    """Return the least rank whose error is at most a share of the sum of squares.

    Args:
        values: Singular values, descending.
        error: Of Σs², as in 0.01.

    Example:
        >>> import numpy as np
        >>> from rankwise.numerics.thin_product import find_least_rank
        >>> find_least_rank(np.array([3.0, 1.0, 0.1]), 0.01), find_least_rank(np.zeros(3), 0.01)
        (2, 0)
    """
    if not 0 <= error < 1:
        raise ArgumentError(f"Expected an error of at least 0 and below 1, got {error!r}.")
    if not values.size or not values[0] > 0:
        return 0
    squares = (np.asarray(values, dtype=np.float64) / values[0]) ** 2
    # Summed from the smallest: rest[k] is the error of rank k.
    rest = np.append(np.cumsum(squares[::-1])[::-1], 0.0)
    return int(np.argmax(rest <= error * rest[0]))


def _convert(factor: Tensor) -> Tensor:
    wide = factor.detach().to(torch.float64)
    if not bool(torch.isfinite(wide).all()):
        raise NotFiniteError("a factor holds NaN or infinity")
    return wide
