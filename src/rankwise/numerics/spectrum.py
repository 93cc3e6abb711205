"""Matrix → singular values, in float64, without singular vectors.

The fast route computes the eigenvalues of the smaller side's Gram matrix. It squares the matrix, so
singular values below about 1e-8 of the largest are lost in rounding errors; `Spectrum.resolution`
is the smallest value to trust, and `compute_spectrum` takes a true SVD. docs/numerics.md has the
measurements behind both.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rankwise.errors import ArgumentError, NotFiniteError

Array = npt.NDArray[np.float64]

# The share of s_1 below which a threshold from the Gram matrix is not trusted: there the rounding
# error of an eigenvalue, some 1e-16 of the largest, is 1e-8 of it, and d was right to 1e-10.
_GRAM_RESOLUTION = 3e-4
# The same where only a rank is wanted: down to here the noise was right to 0.3 %, the rank too.
RANK_RESOLUTION = 4e-8
# Bytes of float64 that a matrix is converted to at a time.
CHUNK = 32 << 20
# Devices with float64 linear algebra; MPS, among others, has none.
_FLOAT64_DEVICES = {"cuda"}
# From this size on torch computes eigenvalues faster than numpy, below it slower.
_LARGE = 2048
# From this many rows on, finding out that a matrix is zero costs a small share of its Gram matrix.
_SCANNED = 64
# A sum of squares outside of this range may have lost small entries or overflowed.
_SAFE_TRACE = (1e-200, 1e200)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The singular values of an L × M matrix, L ≤ M.

    Attributes:
        values: All L of them, descending, in float64.
        columns: M.
        resolution: Values below this one may be rounding errors.
        overlap: Σr² over all pairs of rows, r their cosine, where that was asked for; None where
            the rows are not the smaller side, or one is zero.
    """

    values: Array
    columns: int
    resolution: float
    overlap: float | None = None

    @property
    def norm(self) -> float:
        """‖W‖_F, the root of the sum of squares."""
        largest = float(self.values[0])
        return largest * float(np.linalg.norm(self.values / largest)) if largest else 0.0


class Workspace:
    """One thread's memory for a float64 copy, and how many threads work at the same time.

    Asking the system for fresh memory costs more than filling it, so each copy that
    `convert_to_float64` makes overwrites the one before.

    Args:
        workers: How many threads work on matrices at the same time.
    """

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self._buffer = torch.empty(0, dtype=torch.float64, device="cpu")

    def allocate(self, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised float64 tensor."""
        size = math.prod(shape)
        if self._buffer.numel() < size:
            self._buffer = torch.empty(size, dtype=torch.float64, device="cpu")
        return self._buffer[:size].view(shape)

    def is_torch_faster(self, size: int) -> bool:
        """Return whether torch's LAPACK is faster than numpy's for a symmetric matrix of this size.

        numpy's is faster below `_LARGE` rows, but takes a lock in every small step, so that
        parallel threads wait for each other; the more threads, the larger the matrix.
        """
        return size >= _LARGE or (self.workers > 1 and size <= 256 * self.workers)


def singular_values(matrix: Tensor) -> Array:
    """Return all singular values of a matrix, in float64, to the accuracy of a true SVD.

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
    return compute_spectrum(matrix).values


def compute_gram_spectrum(
    weight: Tensor, workspace: Workspace | None = None, *, overlap: bool = False
) -> Spectrum:
    """Compute a spectrum from the eigenvalues of the smaller side's Gram matrix.

    Args:
        weight: A tensor whose first dimension gives the matrix's rows; the others, taken together,
            give its columns. (Reshaping it to a matrix first would cost a copy.)
        workspace: That of the calling thread.
        overlap: Whether to compute `Spectrum.overlap` from the Gram matrix as well.
    """
    rows, columns = _check_sides(weight)
    if _is_zero(weight):
        return Spectrum(np.zeros(min(rows, columns)), max(rows, columns), 0.0)
    gram, scale = _compute_gram(weight, 1.0), 1.0
    if not _SAFE_TRACE[0] < float(gram.trace()) < _SAFE_TRACE[1]:
        scale = find_scale(weight)
        gram = _compute_gram(weight, scale)
    values = np.sqrt(np.maximum(compute_eigenvalues(gram, workspace or Workspace())[::-1], 0.0))
    spectrum = _make_spectrum(values, max(rows, columns), scale, _GRAM_RESOLUTION)
    if overlap and rows <= columns:
        return replace(spectrum, overlap=_compute_overlap(gram))
    return spectrum


def _compute_overlap(gram: Array | Tensor) -> float | None:
    squares = gram.diagonal()
    if not bool((squares > 0).all()):
        return None
    cosines = gram / squares[:, None] ** 0.5
    cosines /= squares**0.5
    cosines *= cosines
    return (float(cosines.sum()) - len(squares)) / 2


def compute_spectrum(weight: Tensor) -> Spectrum:
    """Compute a spectrum by a true SVD; values below float64's resolution become exactly zero."""
    columns = max(_check_sides(weight))
    scale = find_scale(weight)
    matrix = _to_matrix(weight.detach(), scale)
    values = _compute_svd(matrix)
    resolution = columns * float(np.finfo(np.float64).eps)
    values = np.where(values > resolution * values[0], values, 0.0)
    return _make_spectrum(values, columns, scale, resolution)


def compute_unit_gram(weight: Tensor) -> tuple[Array | Tensor, int]:
    """Compute the Gram matrix of the smaller side with every filter scaled to unit norm.

    Args:
        weight: A tensor whose first axis counts the filters.

    Returns:
        The matrix, and how many filters are not entirely zero.

    Raises:
        NotFiniteError: If the weight holds NaN or infinity.
    """
    rows, columns = _check_sides(weight)
    scale = find_scale(weight)
    if rows > columns:
        units = _scale_filters(split_blocks(weight, scale))
        gram = reduce(operator.iadd, (unit @ unit.T for unit in units))
        return gram, round(float(gram.trace()))
    gram = _compute_gram(weight, scale)
    norms = gram.diagonal() ** 0.5
    alive = norms > 0
    if not bool(alive.all()):
        norms, gram = norms[alive], gram[alive][:, alive]
    gram /= norms[:, None]
    gram /= norms
    return gram, len(norms)


def _scale_filters(blocks: Iterator[Array | Tensor]) -> Iterator[Array | Tensor]:
    """Scale whole filters, the columns of each block, to unit norm, and drop those of zeros."""
    for block in blocks:
        norms = (block * block).sum(0) ** 0.5
        alive = norms > 0
        yield block / norms if bool(alive.all()) else block[:, alive] / norms[alive]


def convert_to_float64(weight: Tensor, workspace: Workspace) -> Tensor:
    """Copy a small convolution to float64, laid out so that both its unfoldings are views.

    In the copy the kernel's positions come before the input channels. Larger weights and matrices
    are returned unchanged: they are better converted block by block.
    """
    if weight.ndim < 3 or 8 * weight.numel() > CHUNK or weight.device.type != "cpu":
        return weight
    channels_last = weight.detach().flatten(2).transpose(1, 2)  # (out, kernel, in)
    return workspace.allocate(channels_last.shape).copy_(channels_last).transpose(1, 2)


def _make_spectrum(values: Array, columns: int, scale: float, resolution: float) -> Spectrum:
    with np.errstate(over="ignore"):
        values = scale * values
    if not np.isfinite(values).all():
        raise NotFiniteError("its singular values are too large for float64")
    return Spectrum(values, columns, resolution * float(values[0]))


def _check_sides(weight: Tensor) -> tuple[int, int]:
    if weight.ndim < 2 or weight.numel() == 0 or not weight.is_floating_point():
        raise ArgumentError(
            "Expected a floating tensor of two or more dimensions that is not empty, "
            f"got shape {tuple(weight.shape)} of {weight.dtype}."
        )
    return weight.shape[0], weight.numel() // weight.shape[0]


def _compute_gram(weight: Tensor, scale: float) -> Array | Tensor:
    """Compute (W/scale)(W/scale)ᵀ of the smaller side, summed block by block."""
    # Entries that are not finite, or whose squares overflow, show in the trace.
    with np.errstate(over="ignore", invalid="ignore"):
        # numpy detects that both factors are one array and computes only one half.
        return reduce(operator.iadd, (block @ block.T for block in split_blocks(weight, scale)))


def _is_zero(weight: Tensor) -> bool:
    """Return whether a matrix is all zeros, where looking at it costs less than its spectrum."""
    if min(weight.shape[0], weight.numel() // weight.shape[0]) < _SCANNED:
        return False
    if weight.dtype.itemsize == 1:  # the smallest types can't be compared
        weight = weight.view(torch.int8) << 1  # without the sign, so that −0 is zero too
    return not bool(weight[(0,) * weight.ndim]) and not bool(weight.any())


def find_scale(weight: Tensor) -> float:
    """Return a power of two near the largest entry: dividing by it is exact and avoids overflow."""
    if weight.dtype.itemsize == 1:  # the smallest types can't be compared
        weight = weight.to(torch.float32)
    ends = [float(end) for end in weight.detach().aminmax()]
    if not all(map(math.isfinite, ends)):
        raise NotFiniteError("it holds NaN or infinity")
    largest = max(map(abs, ends))
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0


def count_block_entries(rows: int, columns: int) -> int:
    """Return how many entries of a matrix are converted to float64 at a time."""
    # At least half as many columns as rows: adding up many large products would cost too much.
    return min(rows * columns, max(CHUNK // 8, min(rows, columns) ** 2 // 2))


def split_blocks(weight: Tensor, scale: float) -> Iterator[Array | Tensor]:
    """Yield the matrix in float64, some columns at a time, its smaller side as rows."""
    weight = weight.detach()
    rows, columns = _check_sides(weight)
    axis = 1 if rows <= columns else 0  # the one to cut along
    step = max(1, count_block_entries(rows, columns) * weight.shape[axis] // weight.numel())
    for start in range(0, weight.shape[axis], step):
        block = _to_matrix(weight.narrow(axis, start, min(step, weight.shape[axis] - start)), scale)
        yield block if axis else block.T


def _to_matrix(block: Tensor, scale: float) -> Array | Tensor:
    """Return a block as a float64 matrix: on its device if that has float64, else in numpy."""
    if block.device.type not in _FLOAT64_DEVICES:
        block = block.cpu()
    # The order of the columns does not matter; taken as they are in memory, they need no copy.
    by_stride = sorted(range(1, block.ndim), key=block.stride, reverse=True)
    matrix = block.permute(0, *by_stride).to(torch.float64).flatten(1)
    if scale != 1.0:
        matrix = matrix / scale
    return matrix if block.device.type in _FLOAT64_DEVICES else matrix.numpy()


def compute_eigenvalues(gram: Array | Tensor, workspace: Workspace) -> Array:
    """Return the eigenvalues of a symmetric matrix, ascending, by the faster of two libraries."""
    if isinstance(gram, Tensor) or workspace.is_torch_faster(len(gram)):
        return torch.linalg.eigvalsh(_as_tensor(gram)).cpu().numpy()
    return np.linalg.eigvalsh(gram).astype(np.float64, copy=False)


def _as_tensor(matrix: Array | Tensor) -> Tensor:
    """Return the matrix where it is; torch.as_tensor would move it to the default device."""
    return matrix if isinstance(matrix, Tensor) else torch.from_numpy(matrix)


def _compute_svd(matrix: Array | Tensor) -> Array:
    if isinstance(matrix, Tensor):
        return torch.linalg.svdvals(matrix).cpu().numpy()
    return np.linalg.svd(matrix, compute_uv=False).astype(np.float64, copy=False)
