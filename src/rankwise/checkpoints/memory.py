"""Bounds on resident memory while a large file is read tensor by tensor."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache

from torch import Tensor

_MIN_TRIMMED = 4 << 20


def release_memory(tensor: Tensor) -> None:
    """Return free memory to the system after a large tensor has been used.

    What temporaries leave behind in each thread's heap would otherwise add up over a long file. On
    systems without glibc nothing happens.

    Example:
        >>> import torch
        >>> from rankwise.checkpoints.memory import release_memory
        >>> weight = torch.ones(1024, 1024)
        >>> release_memory(weight)
        >>> weight.sum().item()
        1048576.0
    """
    trim = _find_trim()
    if trim is not None and tensor.numel() * tensor.element_size() > _MIN_TRIMMED:
        trim(0)


@lru_cache
def _find_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim if sys.platform == "linux" else None
    except (OSError, AttributeError):  # a C library other than glibc
        return None
