"""Low-rank singular values → stable rank, condition, quality (METHOD §3), and Theorem 1 (§6)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rankwise.errors import ArgumentError
from rankwise.numerics.evbmf import LowRank
from rankwise.numerics.spectrum import Spectrum, singular_values
from rankwise.numerics.unfold import unfold

_ROUNDING = 1e-12


def stable_rank(values: npt.ArrayLike, size: int, *, p: float = 2.0) -> float:
    """Return s = (1/n) Σ (d_i/d_1)^p, Eq. 2: how much of its space a layer uses.

    Args:
        values: d_i, the singular values of the low-rank part.
        size: n, the matrix's smaller side.
        p: 2 is Eq. 2's right-hand side, 1 the nuclear-norm reading.

    Returns:
        A number in [0, 1]; 0 for an empty low-rank part.

    Example:
        >>> import rankwise
        >>> rankwise.stable_rank([4.0, 2.0], size=10)
        0.125
    """
    d = np.asarray(values, dtype=np.float64)
    if len(d) == 0 or d.max() == 0.0:
        return 0.0
    return float(np.sum((d / d.max()) ** p) / size)  # Eq. 2


def condition(values: npt.ArrayLike) -> float:
    """Return κ = 1 − d_n'/d_1, Eq. 3: how unevenly the low-rank part stretches its space.

    Args:
        values: d_i, the singular values of the low-rank part.

    Returns:
        A number in [0, 1], 0 for equal singular values; 1 for an empty low-rank part.

    Example:
        >>> import rankwise
        >>> rankwise.condition([4.0, 3.0, 1.0])
        0.75
    """
    d = np.asarray(values, dtype=np.float64)
    if len(d) == 0 or d.max() == 0.0:
        return 1.0
    return float(1.0 - d.min() / d.max())  # Eq. 3


def quality(stable_rank: float, condition: float) -> float:
    """Return q = arctan(s/κ): stable rank and condition in one number.

    Args:
        stable_rank: s.
        condition: κ.

    Returns:
        An angle in [0, π/2]; 0 for an empty layer.

    Example:
        >>> import rankwise
        >>> round(rankwise.quality(0.5, 0.5), 4)
        0.7854
    """
    return math.atan2(stable_rank, condition)


def network_quality(
    qualities: Iterable[float], *, squared: bool = False, skip_empty: bool = False
) -> float | None:
    """Return Q = ‖q‖₂/√L over a network's L layers.

    Args:
        qualities: q of each probed layer.
        squared: The squared form, ‖q‖₂²/L.
        skip_empty: Leave out layers with q = 0, which hold noise only.

    Returns:
        Q, or None where no layer is left.

    Example:
        >>> import rankwise
        >>> rankwise.network_quality([0.3, 0.4, 0.0], squared=True, skip_empty=True)
        0.125
    """
    q = [value for value in qualities if value != 0.0 or not skip_empty]
    if not q:
        return None
    mean_square = math.fsum(value * value for value in q) / len(q)
    return mean_square if squared else math.sqrt(mean_square)


def noise_fraction(part: LowRank, spectrum: Spectrum) -> float:
    """Return 1 − ‖Ŵ‖²/‖W‖²: the share of a weight's energy that is noise; 1 for an empty Ŵ."""
    if part.rank == 0:
        return 1.0
    largest = float(spectrum.values[0])
    kept, total = (float(np.sum((v / largest) ** 2)) for v in (part.values, spectrum.values))
    return max(0.0, 1.0 - kept / total)


def prominence(largest: float, threshold: float) -> float | None:
    """Return ln(s₁/threshold): how far the strongest direction stands out; None without noise.

    Example:
        >>> from rankwise.numerics.metrics import prominence
        >>> prominence(2.0, 2.0), prominence(1.0, 0.0)
        (0.0, None)
    """
    if largest <= 0.0 or threshold <= 0.0:
        return None
    return math.log(largest) - math.log(threshold)


def effective_rank(values: npt.ArrayLike) -> float:
    """Return exp(−Σ p_i ln p_i) with p_i = s_i/Σs: the exponential of the spectrum's entropy.

    Args:
        values: s_i, the singular values of the weight itself, or of its low-rank part.

    Returns:
        A number from 1 to the number of values; 0 for a zero matrix.

    Example:
        >>> import rankwise
        >>> round(rankwise.effective_rank([1.0, 1.0, 0.0]), 12)
        2.0
    """
    s = np.asarray(values, dtype=np.float64)
    s = s[s > 0]
    if len(s) == 0:
        return 0.0
    share = s / s.max()
    share = share / share.sum()
    share = share[share > 0]
    return float(np.exp(-np.sum(share * np.log(share))))


def theorem_rate_bound(weight: Tensor, gradient: Tensor) -> float:
    """Return the rate above which the stable rank of W − ηG does not fall (Theorem 1).

    A diagnostic; it is not used in the update. The theorem compares ‖W − ηG‖²_F with
    (‖W‖₂ + η‖G‖₂)², so it holds from some η on only where G's own stable rank ‖G‖²_F/‖G‖₂² exceeds
    W's. Where it does not, there is no such rate, and the bound is infinite.

    Args:
        weight: W; more than two dimensions are unfolded by output channels.
        gradient: G, the epoch's accumulated gradient, of the same shape.

    Returns:
        The bound, 0 or more, possibly infinite.

    Raises:
        ArgumentError: If the shapes differ or have fewer than two dimensions.
        NotFiniteError: If either holds NaN or infinity.

    Example:
        >>> import torch, rankwise
        >>> weight, gradient = torch.diag(torch.tensor([2.0, 0.0])), torch.eye(2)
        >>> rankwise.theorem_rate_bound(weight, gradient)
        8.0
    """
    if weight.shape != gradient.shape or weight.ndim < 2:
        raise ArgumentError(
            "Expected a weight and a gradient of one shape with two or more dimensions, "
            f"got {tuple(weight.shape)} and {tuple(gradient.shape)}."
        )
    W, G = (unfold(t.detach()).double().cpu() for t in (weight, gradient))
    s, g = singular_values(W), singular_values(G)
    if s[0] == 0.0 or g[0] == 0.0:
        return 0.0
    ratio = float(g[0] / s[0])  # ‖G‖₂/‖W‖₂
    energy, gradient_energy = float(np.sum(s**2)), float(np.sum(g**2))  # tr(WᵀW), tr(GᵀG)
    numerator = 2 * (float((W * G).sum()) + ratio * energy)
    denominator = gradient_energy - ratio**2 * energy
    # Both vanish where G is a multiple of W, up to rounding errors.
    if denominator <= _ROUNDING * gradient_energy:
        return math.inf if numerator > _ROUNDING * ratio * energy else 0.0
    return max(numerator / denominator, 0.0)
