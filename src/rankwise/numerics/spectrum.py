"""Matrix → singular values, in float64, without singular vectors.

The fast route takes the Gram matrix of the smaller side and its eigenvalues. It squares the matrix,
so a singular value below about 1e-8 of the largest drowns in rounding; `Spectrum.resolution` says
where trust ends, and `exact_spectrum` takes a true SVD for those who need to look below.
docs/numerics.md has the measurements behind both.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rankwise.errors import ArgumentError, NotFiniteError

__all__ = [
    "Spectrum",
    "Workspace",
    "block_entries",
    "exact_spectrum",
    "fast_spectrum",
    "in_float64",
    "singular_values",
]

Array = npt.NDArray[np.float64]

# The Gram route's share of s_1 below which a threshold is not trusted: there an eigenvalue's
# rounding, some 1e-16 of the largest, is 1e-8 of it, and d came out right to 1e-10.
_GRAM_RESOLUTION = 3e-4
# Bytes of float64 that are made of a matrix at a time.
CHUNK = 32 << 20
# Where float64 linear algebra exists; MPS, among others, has none.
_FLOAT64_DEVICES = {"cuda"}
# From this size on torch's eigenvalues come faster than numpy's, below it slower.
_LARGE = 2048
# A sum of squares outside of this range may have lost small or large entries on the way.
_SAFE_TRACE = (1e-200, 1e200)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The singular values of an L × M matrix, L ≤ M.

    Attributes:
        values: All L of them, descending, in float64.
        columns: M.
        resolution: Values below this one may be rounding errors.
    """

    values: Array
    columns: int
    resolution: float

    @property
    def norm(self) -> float:
        """‖W‖_F, the root of the sum of squares."""
        largest = float(self.values[0])
        return largest * float(np.linalg.norm(self.values / largest)) if largest else 0.0


class Workspace:
    """What one thread needs to work: memory for a float64 copy, and how many work beside it.

    Asking the system for fresh memory costs more than filling it; so what `in_float64` made before
    is overwritten by what it makes next.

    Args:
        side_by_side: How many threads work on matrices at the same time.
    """

    def __init__(self, side_by_side: int = 1) -> None:
        self.side_by_side = side_by_side
        self._buffer = torch.empty(0, dtype=torch.float64, device="cpu")

    def take(self, shape: Sequence[int]) -> Tensor:
        """An uninitialised float64 tensor."""
        size = math.prod(shape)
        if self._buffer.numel() < size:
            self._buffer = torch.empty(size, dtype=torch.float64, device="cpu")
        return self._buffer[:size].view(shape)

    def torch_is_faster(self, size: int) -> bool:
        """Whether torch's LAPACK is faster than numpy's for a symmetric matrix of this size.

        numpy's is faster below `_LARGE` rows, but takes a lock in every small step, so that
        threads side by side wait for each other; the more of them, the larger the matrix may be.
        """
        return size >= _LARGE or (self.side_by_side > 1 and size <= 256 * self.side_by_side)


def singular_values(matrix: Tensor) -> Array:
    """All singular values of a matrix, in float64, each to the accuracy of a true SVD.

    Args:
        matrix: A 2-D floating tensor of any dtype, on any device.

    Returns:
        min(rows, columns) values, descending.

    Raises:
        ArgumentError: If `matrix` is not a 2-D floating tensor.
        NotFiniteError: If it holds NaN or infinity.

    Example:
        >>> import torch, rankwise
        >>> rankwise.singular_values(torch.tensor([[3.0, 0.0, 0.0], [0.0, -4.0, 0.0]]))
        array([4., 3.])
    """
    if matrix.ndim != 2:
        raise ArgumentError(
            f"Expected a 2-D tensor, got {matrix.ndim} dimensions; see rankwise.unfold."
        )
    return exact_spectrum(matrix).values


def fast_spectrum(weight: Tensor, workspace: Workspace | None = None) -> Spectrum:
    """The spectrum by the eigenvalues of the smaller side's Gram matrix.

    Args:
        weight: A tensor whose first dimension gives the matrix's rows; the others, taken together,
            give its columns. (Laying it out as a matrix first would cost a copy.)
        workspace: The calling thread's.
    """
    rows, columns = _sides(weight)
    gram, scale = _gram(weight, 1.0), 1.0
    if not _SAFE_TRACE[0] < float(gram.trace()) < _SAFE_TRACE[1]:
        scale = _power_of_two(weight)
        gram = _gram(weight, scale)
    values = np.sqrt(np.maximum(_eigenvalues(gram, workspace or Workspace())[::-1], 0.0))
    return _spectrum(values, max(rows, columns), scale, _GRAM_RESOLUTION)


def exact_spectrum(weight: Tensor) -> Spectrum:
    """The spectrum by a true SVD; what is zero to float64's resolution is exactly zero."""
    columns = max(_sides(weight))
    scale = _power_of_two(weight)
    matrix = _float64(weight.detach(), scale)
    values = _svd_values(matrix)
    resolution = columns * float(np.finfo(np.float64).eps)
    values = np.where(values > resolution * values[0], values, 0.0)
    return _spectrum(values, columns, scale, resolution)


def in_float64(weight: Tensor, workspace: Workspace) -> Tensor:
    """A float64 copy of a small convolution that lies so that both its unfoldings are views.

    The kernel's positions come before the input channels then. Larger weights, and matrices, are
    better converted block by block, and come back as they are.
    """
    if weight.ndim < 3 or 8 * weight.numel() > CHUNK or weight.device.type != "cpu":
        return weight
    channels_last = weight.detach().flatten(2).transpose(1, 2)  # (out, kernel, in)
    return workspace.take(channels_last.shape).copy_(channels_last).transpose(1, 2)


def _spectrum(values: Array, columns: int, scale: float, resolution: float) -> Spectrum:
    with np.errstate(over="ignore"):
        values = scale * values
    if not np.isfinite(values).all():
        raise NotFiniteError("its values are too large for float64")
    return Spectrum(values, columns, resolution * float(values[0]))


def _sides(weight: Tensor) -> tuple[int, int]:
    if weight.ndim < 2 or weight.numel() == 0 or not weight.is_floating_point():
        raise ArgumentError(
            "Expected a floating tensor of two or more dimensions that is not empty, "
            f"got shape {tuple(weight.shape)} of {weight.dtype}."
        )
    return weight.shape[0], weight.numel() // weight.shape[0]


def _gram(weight: Tensor, scale: float) -> Array | Tensor:
    """(W/scale)(W/scale)ᵀ of the smaller side, summed block by block."""
    # What isn't finite, or too large for its square, shows in the trace.
    with np.errstate(over="ignore", invalid="ignore"):
        # numpy sees that both factors are one array and computes one half only.
        return reduce(operator.iadd, (block @ block.T for block in _blocks(weight, scale)))


def _power_of_two(weight: Tensor) -> float:
    """A power of two near the largest entry: dividing by it is exact, and no square overflows."""
    largest = 0.0
    for block in _blocks(weight, 1.0):
        peak = float(_as_tensor(block).abs().max())
        if not math.isfinite(peak):
            raise NotFiniteError("it holds NaN or infinity")
        largest = max(largest, peak)
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0


def block_entries(rows: int, columns: int) -> int:
    """How many entries of a matrix are made float64 at a time."""
    # At least half as many columns as rows: adding up many large products would cost too much.
    return min(rows * columns, max(CHUNK // 8, min(rows, columns) ** 2 // 2))


def _blocks(weight: Tensor, scale: float) -> Iterator[Array | Tensor]:
    """The matrix in float64, some columns at a time, its smaller side upright."""
    weight = weight.detach()
    rows, columns = _sides(weight)
    axis = 1 if rows <= columns else 0  # the one to cut along
    step = max(1, block_entries(rows, columns) * weight.shape[axis] // weight.numel())
    for start in range(0, weight.shape[axis], step):
        block = _float64(weight.narrow(axis, start, min(step, weight.shape[axis] - start)), scale)
        yield block if axis else block.T


def _float64(block: Tensor, scale: float) -> Array | Tensor:
    """A block as a float64 matrix: where it lives if it can be worked on there, else in numpy."""
    if block.device.type not in _FLOAT64_DEVICES:
        block = block.cpu()
    # Columns may stand in any order, so they are taken as they lie in memory: no copy is needed.
    by_stride = sorted(range(1, block.ndim), key=block.stride, reverse=True)
    matrix = block.permute(0, *by_stride).to(torch.float64).flatten(1)
    if scale != 1.0:
        matrix = matrix / scale
    return matrix if block.device.type in _FLOAT64_DEVICES else matrix.numpy()


def _eigenvalues(gram: Array | Tensor, workspace: Workspace) -> Array:
    if isinstance(gram, Tensor) or workspace.torch_is_faster(len(gram)):
        return torch.linalg.eigvalsh(_as_tensor(gram)).cpu().numpy()
    return np.linalg.eigvalsh(gram).astype(np.float64, copy=False)


def _as_tensor(matrix: Array | Tensor) -> Tensor:
    """The matrix where it is; torch.as_tensor would take it to the default device."""
    return matrix if isinstance(matrix, Tensor) else torch.from_numpy(matrix)


def _svd_values(matrix: Array | Tensor) -> Array:
    if isinstance(matrix, Tensor):
        return torch.linalg.svdvals(matrix).cpu().numpy()
    return np.linalg.svd(matrix, compute_uv=False).astype(np.float64, copy=False)
