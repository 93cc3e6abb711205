"""A tensor that has been used → its memory given back to the system."""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["release", "trim"]

# Not MADV_DONTNEED: that one would zero memory which no file backs. Paging out loses nothing.
_MADV_PAGEOUT = 21


def release(tensor: Tensor) -> None:
    """Asks the system to take back the pages of a tensor that has been used.

    The tensor keeps its values: pages that are needed again are read again. On Linux this lowers
    the resident memory of mapped files which the user owns or may write; the kernel leaves other
    files' pages alone. Elsewhere, and for tensors without CPU memory, nothing happens.

    Args:
        tensor: A tensor that won't be needed soon.

    Example:
        >>> import torch
        >>> from rankwise.checkpoints.memory import release
        >>> weight = torch.ones(1024, 1024)
        >>> release(weight)
        >>> weight.sum().item()
        1048576.0
    """
    advise = _madvise()
    if advise is None or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
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
        advise(first, last - first, _MADV_PAGEOUT)


def trim() -> None:
    """Gives the allocator's free memory back to the system, where the C library can be told to.

    What large temporaries leave behind in each thread's heap would else add up over a long file.

    Example:
        >>> from rankwise.checkpoints.memory import trim
        >>> trim()
    """
    call = _malloc_trim()
    if call is not None:
        call(0)


@lru_cache(maxsize=1)
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim if sys.platform == "linux" else None
    except (OSError, AttributeError):  # a C library other than glibc
        return None


@lru_cache(maxsize=1)
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    advise.restype = ctypes.c_int
    return advise
