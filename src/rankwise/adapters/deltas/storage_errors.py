"""Errors of storing weights in short types, as far as they are in the difference of two tensors."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankwise.numerics.rounding import StoredType
from rankwise.numerics.spectrum import CHUNK, find_scale
from rankwise.probes.measure import find_stored_type
from rankwise.weights.tensor import Array, Weight

_SHORT = (torch.bfloat16, torch.float16)
_BLOCK = CHUNK // 8  # entries that are converted to float64 at a time
_DIVISORS = (1, 2, 3, 4)  # of the least gap in a run: it may be of several steps
_TOLERANCE = 0.02  # of a step
_RUN = 16  # numbers in a row that share a scale in all known layouts of quantised weights
# Errors of rounding are even between ± half a step; their mean square is this close to step²/12.
_USUAL = (0.5, 1.5)


@dataclass(frozen=True, slots=True)
class KnownSteps(StoredType):
    """Steps that are known for each number: they are given in place of the numbers."""

    def compute_variances(self, values: Array, scale: float) -> Array:
        """Return the variance of each error from its step; both are in units of `scale`."""
        # Of numbers that show no step at least this much, whose square is not zero.
        return np.square(np.maximum(values, max(self.smallest_step / scale, 1e-140))) / 12


@dataclass(frozen=True, slots=True)
class StorageErrors:
    """What is known of the errors that storing a tensor has made.

    Attributes:
        stored: The type that it was rounded to.
        numbers: What `stored` computes the errors from: the tensor itself, or steps.
        are_bounded: Whether no error is larger than half a step; codes can also clip.
    """

    stored: StoredType
    numbers: Tensor
    are_bounded: bool = True

    @property
    def epsilon(self) -> float:
        """How coarse the type is."""
        return self.stored.epsilon

    def split_variances(self) -> Iterator[Array]:
        """Yield the variance of each number's error, some at a time."""
        for block in split_blocks(self.numbers):
            yield self.stored.compute_variances(block, 1.0)

    def estimate_norm(self) -> float:
        """Return the Frobenius norm that the errors are expected to have."""
        return math.sqrt(math.fsum(float(block.sum()) for block in self.split_variances()))


def find_errors(weight: Weight, tensor: Tensor) -> StorageErrors:
    """Return what storing a tensor has done to it, which may be stored in a longer type since.

    Example:
        >>> import torch
        >>> from rankwise.weights.module import describe_tensor
        >>> upcast = torch.randn(8, 8).bfloat16().float()
        >>> find_errors(describe_tensor("w", upcast), upcast).epsilon
        0.0078125
    """
    if weight.stored is not None and weight.rounded_to is None and tensor.ndim == 2:
        steps = _find_steps(tensor)
        if steps is not None:
            smallest = 1e-3 * float(steps.mean())
            return StorageErrors(KnownSteps(1.0, smallest), steps, are_bounded=False)
    stored = find_stored_type(weight, tensor)
    if tensor.dtype in (torch.float32, torch.float64) and weight.rounded_to is None:
        for dtype in _SHORT:
            blocks = torch.split(tensor.reshape(-1), _BLOCK)
            # Equal numbers, such as the ones of a new norm, tell nothing of the others' type.
            if all(torch.equal(x, x.to(dtype).to(x.dtype)) for x in blocks) and _varies(tensor):
                return StorageErrors(StoredType.from_dtype(dtype), tensor)
    return StorageErrors(stored, tensor)


def is_rounding(change: Tensor, before: StorageErrors, after: StorageErrors) -> bool:
    """Return whether both sides can be the same numbers, rounded to two types.

    No number may differ by more than half a step of each type. Where the base has the shorter type,
    the network may also have been trained a little from the stored base: only differences that are
    as large on average as errors of rounding are taken for these. Of quantised weights, which clip,
    the average alone counts.

    Example:
        >>> import torch
        >>> whole = torch.randn(100)
        >>> long = StorageErrors(StoredType.from_dtype(torch.float32), whole)
        >>> rounded = whole.bfloat16().float()
        >>> short = StorageErrors(StoredType.from_dtype(torch.bfloat16), rounded)
        >>> is_rounding(whole - rounded, short, long), is_rounding(0.01 * whole, short, long)
        (True, False)
    """
    if before.epsilon == after.epsilon:
        return False
    are_bounded = before.are_bounded and after.are_bounded
    squares, expected = [0.0], [0.0]
    sides = (before.split_variances(), after.split_variances())
    for moved, first, second in zip(split_blocks(change), *sides, strict=True):
        # Each is off by half a step of its type at most; step²/12 is the variance of that.
        most = np.sqrt(3 * first) + np.sqrt(3 * second)
        if are_bounded and (np.abs(moved) > 1.000001 * most).any():
            return False
        squares.append(float(np.square(moved).sum()))
        expected.append(float((first + second).sum()))
    if are_bounded and after.epsilon > before.epsilon:
        return True
    low, high = (limit * math.fsum(expected) for limit in _USUAL)
    return low <= math.fsum(squares) <= high


def compute_norm(tensor: Tensor) -> float:
    """Return ‖W‖_F in float64, without an overflow of squares.

    Example:
        >>> import torch
        >>> compute_norm(torch.full((2, 2), 1e200, dtype=torch.float64))
        2e+200
    """
    scale = find_scale(tensor)
    squares = math.fsum(float(np.square(block / scale).sum()) for block in split_blocks(tensor))
    return min(scale * math.sqrt(squares), sys.float_info.max)


def split_blocks(tensor: Tensor) -> Iterator[Array]:
    """Yield all numbers in float64, some at a time."""
    for block in torch.split(tensor.reshape(-1), _BLOCK):
        yield block.cpu().to(torch.float64).numpy()


def _find_steps(tensor: Tensor) -> Tensor | None:
    """Return the step of each number of a quantised matrix, as its neighbours show it.

    None where rows are no whole number of runs, or most runs have no two different numbers.
    """
    rows, columns = tensor.shape
    if columns % _RUN:
        return None
    steps = torch.empty(rows, columns // _RUN, dtype=torch.float32, device=tensor.device)
    for start in range(0, rows, max(1, _BLOCK // columns)):
        part = tensor[start : start + max(1, _BLOCK // columns)].float()
        steps[start : start + part.shape[0]] = _measure_steps(part.reshape(len(part), -1, _RUN))
    if float((steps > 0).float().mean()) < 0.5:
        return None
    return steps[..., None].expand(-1, -1, _RUN).reshape(rows, columns)


def _measure_steps(runs: Tensor) -> Tensor:
    """Return the largest step of which all gaps of a run are multiples, else its least gap."""
    ordered = runs.sort(dim=-1).values
    gaps = ordered.diff(dim=-1)
    # Less is an error of the arithmetic that computed equal numbers from different codes.
    is_gap = gaps > 1e-4 * ordered.abs().amax(dim=-1, keepdim=True)
    least = torch.where(is_gap, gaps, torch.inf).amin(dim=-1)
    found = least.clone()
    for divisor in reversed(_DIVISORS):
        multiples = gaps * (divisor / least[..., None])
        fits = ((multiples - multiples.round()).abs() < _TOLERANCE) | ~is_gap
        found = torch.where(fits.all(dim=-1), least / divisor, found)
    return torch.where(least.isinf(), 0.0, found)


def _varies(tensor: Tensor) -> bool:
    low, high = tensor.aminmax()
    return bool(low != high)
