"""Errors of storing weights in short types, as far as they are in the difference of two tensors."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rankwise.numerics.rounding import StoredType
from rankwise.numerics.spectrum import CHUNK, find_scale
from rankwise.probes.measure import find_stored_type
from rankwise.weights.tensor import Array, Weight

_SHORT = (torch.bfloat16, torch.float16)
_BLOCK = CHUNK // 8  # entries that are converted to float64 at a time
# Errors of rounding are even between ± half a step; their mean square is this close to step²/12.
_USUAL = (0.5, 1.5)


def find_precision(weight: Weight, tensor: Tensor) -> StoredType:
    """Return the type that the numbers were rounded to, which may be stored in a longer one.

    Example:
        >>> import torch
        >>> from rankwise.weights.module import describe_tensor
        >>> upcast = torch.randn(8, 8).bfloat16().float()
        >>> find_precision(describe_tensor("w", upcast), upcast).epsilon
        0.0078125
    """
    stored = find_stored_type(weight, tensor)
    if tensor.dtype not in (torch.float32, torch.float64) or weight.rounded_to is not None:
        return stored
    for dtype in _SHORT:
        blocks = torch.split(tensor.reshape(-1), _BLOCK)
        # Equal numbers, such as the ones of a new norm, tell nothing of the others' type.
        if all(torch.equal(x, x.to(dtype).to(x.dtype)) for x in blocks) and _varies(tensor):
            return StoredType.from_dtype(dtype)
    return stored


def is_rounding(
    base: Tensor, tuned: Tensor, change: Tensor, before: StoredType, after: StoredType
) -> bool:
    """Return whether both sides can be the same numbers, rounded to two types.

    No number may differ by more than half a step of each type. Where the base has the shorter type,
    the network may also have been trained a little from the stored base: only differences that are
    as large on average as errors of rounding are taken for these.

    Example:
        >>> import torch
        >>> whole, short = torch.randn(100), StoredType.from_dtype(torch.bfloat16)
        >>> long, rounded = StoredType.from_dtype(torch.float32), whole.bfloat16()
        >>> is_rounding(rounded, whole, whole - rounded, short, long)
        True
        >>> is_rounding(rounded, rounded + 1e-9, torch.full((100,), 1e-9), short, long)
        False
    """
    if before.epsilon == after.epsilon:
        return False
    squares, expected = [0.0], [0.0]
    for old, new, moved in zip(*map(split_blocks, (base, tuned, change)), strict=True):
        sizes = np.maximum(np.abs(old), np.abs(new))
        first, second = (kind.compute_variances(sizes, 1.0) for kind in (before, after))
        # Each is off by half a step of its type at most; step²/12 is the variance of that.
        most = np.sqrt(3 * first) + np.sqrt(3 * second)
        if (np.abs(moved) > 1.000001 * most).any():
            return False
        squares.append(float(np.square(moved).sum()))
        expected.append(float((first + second).sum()))
    if after.epsilon > before.epsilon:
        return True
    low, high = (limit * math.fsum(expected) for limit in _USUAL)
    return low <= math.fsum(squares) <= high


def estimate_rounding(tensor: Tensor, stored: StoredType) -> float:
    """Return the Frobenius norm that the errors of storing a tensor are expected to have."""
    blocks = (stored.compute_variances(block, 1.0) for block in split_blocks(tensor))
    return math.sqrt(math.fsum(float(block.sum()) for block in blocks))


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


def _varies(tensor: Tensor) -> bool:
    low, high = tensor.aminmax()
    return bool(low != high)
