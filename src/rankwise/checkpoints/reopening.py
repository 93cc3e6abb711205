"""A file that is read piece by piece, opened anew so that read pages don't pile up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Reopening"]

T = TypeVar("T")

_BUDGET = 32 * 2**20


class Reopening(Generic[T]):
    """Something open, closed and opened again after a number of bytes have been read from it.

    Pages of a mapped file count as resident until the mapping goes. The system can be asked to
    take them back (``rankwise.checkpoints.memory``), but does so only for files the user may write;
    letting the mapping go works for every file.

    Args:
        opener: Opens it.
        budget: How many bytes are read before it is let go; None to keep it for good.

    Example:
        >>> from rankwise.checkpoints.reopening import Reopening
        >>> numbers = iter(range(9))
        >>> handle = Reopening(lambda: next(numbers), budget=100)
        >>> [handle.get(60) for _ in range(5)]
        [0, 0, 1, 1, 2]
    """

    def __init__(self, opener: Callable[[], T], *, budget: int | None = _BUDGET) -> None:
        self._opener = opener
        self._budget: float = math.inf if budget is None else budget
        self._served = 0
        self._held: T | None = None

    def get(self, nbytes: int) -> T:
        """Gives the open thing for a read of ``nbytes``.

        Args:
            nbytes: How many bytes will be read from it.

        Returns:
            The open thing; whoever holds a part of it keeps that part alive.
        """
        held = self._held
        if held is None:
            held = self._opener()
            self._served = 0
        self._served += nbytes
        # Let go now, not at the next read: of many shards none may keep its pages.
        self._held = None if self._served >= self._budget else held
        return held
