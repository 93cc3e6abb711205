"""The pieces that a tensor was split into, and whether they make up the whole of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankwise.errors import CheckpointError

_MAX_GRID = 1024  # pieces of a tensor that is split along several axes: each is compared with each


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor, and where it lies: what ``torch.save`` wrote, inside a larger file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int
    transforms: tuple[str, ...] = ()  # how it is compressed

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.sizes)


def is_inside(shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether a piece lies inside a tensor."""
    return len(offsets) == len(sizes) == len(shape) and all(
        0 <= offset <= offset + size <= side and size >= 0
        for offset, size, side in zip(offsets, sizes, shape, strict=True)
    )


def check_cover(shape: Sequence[int], pieces: Sequence[Piece]) -> None:
    """Raise ``CheckpointError`` unless pieces inside a tensor cover each number once.

    Example:
        >>> from rankwise.checkpoints.distributed.pieces import Piece, check_cover
        >>> rows = [Piece((start, 0), (2, 3), "__0_0.distcp", 0, 24) for start in (0, 2)]
        >>> check_cover((4, 3), rows)
        >>> check_cover((6, 3), rows)
        Traceback (most recent call last):
        ...
        rankwise.errors.CheckpointError: its pieces have 12 numbers, the whole has 18
    """
    stored, count = sum(piece.count for piece in pieces), math.prod(shape)
    axes = [
        axis
        for axis, side in enumerate(shape)
        if any(piece.sizes[axis] != side for piece in pieces)
    ]
    if _overlap_along(axes[0], pieces) if len(axes) == 1 else _overlap(axes, pieces):
        raise CheckpointError("its pieces overlap")
    if stored != count:  # without an overlap, equal numbers mean that all is covered
        raise CheckpointError(f"its pieces have {stored} numbers, the whole has {count}")


def _overlap_along(axis: int, pieces: Sequence[Piece]) -> bool:
    ranges = sorted((piece.offsets[axis], piece.sizes[axis]) for piece in pieces)
    ends = [offset + size for offset, size in ranges]
    return any(start < end for (start, _), end in zip(ranges[1:], ends[:-1], strict=True))


def _overlap(axes: Sequence[int], pieces: Sequence[Piece]) -> bool:
    """Return whether two pieces share a number; on axes that are not given each has all."""
    if len(pieces) > _MAX_GRID:
        raise CheckpointError(f"split along several axes into more than {_MAX_GRID} pieces")
    shared = ~np.eye(len(pieces), dtype=bool)
    for axis in axes:
        starts = np.array([piece.offsets[axis] for piece in pieces])
        ends = starts + np.array([piece.sizes[axis] for piece in pieces])
        shared &= (starts[:, None] < ends) & (starts < ends[:, None])
    return bool(shared.any())
