"""Bounds on resident memory while a large file is read tensor by tensor."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_BUDGET = 32 * 2**20
# Not MADV_DONTNEED, which would zero memory that no file backs. Paging out loses nothing.
_MADV_PAGEOUT = 21
_MIN_TRIMMED = 4 << 20


class BoundedHandle(Generic[T]):
    """An open file that is dropped, and opened again, after `budget` bytes were read from it.

    Pages of a mapped file count as resident until the mapping is gone. The system can be asked to
    take them back (`release_memory`), but does so only for files that the user may write; dropping
    the mapping works for every file. Without a budget the file stays open.

    Example:
        >>> from rankwise.checkpoints.memory import BoundedHandle
        >>> numbers = iter(range(9))
        >>> handle = BoundedHandle(lambda: next(numbers), budget=100)
        >>> [handle.get(60) for _ in range(5)]
        [0, 0, 1, 1, 2]
    """

    def __init__(self, opener: Callable[[], T], *, budget: int | None = _BUDGET) -> None:
        self._opener = opener
        self._budget: float = math.inf if budget is None else budget
        self._bytes_read = 0
        self._file: T | None = None

    def get(self, nbytes: int) -> T:
        """Return the open file for a read of `nbytes`."""
        file = self._file
        if file is None:
            file = self._opener()
            self._bytes_read = 0
        self._bytes_read += nbytes
        # Dropped now, not at the next read: none of many shards may keep its pages.
        self._file = None if self._bytes_read >= self._budget else file
        return file


def release_memory(tensor: Tensor) -> None:
    """Ask the system to take back the pages of a tensor that has been used.

    The tensor keeps its values: pages that are needed again are read again. On Linux this lowers
    the resident memory of mapped files which the user owns or may write. After a large tensor the
    allocator's free memory is returned too: what temporaries leave behind in each thread's heap
    would otherwise add up over a long file. On other systems nothing happens.

    Example:
        >>> import torch
        >>> from rankwise.checkpoints.memory import release_memory
        >>> weight = torch.ones(1024, 1024)
        >>> release_memory(weight)
        >>> weight.sum().item()
        1048576.0
    """
    if tensor.device.type == "cpu" and tensor.layout is torch.strided:
        _page_out(tensor)
    malloc_trim = _find_c_function("malloc_trim")
    if malloc_trim is not None and tensor.numel() * tensor.element_size() > _MIN_TRIMMED:
        malloc_trim(0)


def _page_out(tensor: Tensor) -> None:
    madvise = _find_c_function("madvise")
    if madvise is None:
        return
    try:
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):  # a subclass without memory of its own
        return
    # Only whole pages: those at the two ends may belong to a neighbour too.
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if start and first < last:
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_PAGEOUT)


@lru_cache
def _find_c_function(name: str) -> Callable[..., int] | None:
    try:
        return getattr(ctypes.CDLL(None), name) if sys.platform == "linux" else None
    except (OSError, AttributeError):  # a C library other than glibc
        return None
