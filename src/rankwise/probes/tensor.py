"""Named tensors, each known by shape before it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

__all__ = ["Status", "Weight", "Weights"]


class Status(str, Enum):
    """Whether a tensor was probed, or why not.

    Example:
        >>> import rankwise
        >>> rankwise.Status("probed") is rankwise.Status.PROBED
        True
    """

    PROBED = "probed"
    VECTOR = "vector"
    TOO_SMALL = "too small"
    TIED = "tied"
    MERGED = "merged"
    FILTERED = "filtered"
    NOT_FINITE = "not finite"
    INTEGER = "integer"
    QUANTISED = "quantised"
    COMPLEX = "complex"
    NO_DATA = "no data"
    UNREADABLE = "unreadable"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor: its description, and a function that loads it.

    Attributes:
        name: Its name in the model, wrappers' prefixes removed.
        shape: Its shape.
        dtype: The type it is stored in.
        load: Returns the tensor; for a product of factors, a smaller one with the same non-zero
            singular values.
        identity: Equal for two tensors that share their memory; None where that can't be known.
        kind: The layer's kind where the module knows it ("conv_transpose2d"), else None.
        obstacle: A status and a reason where the tensor can't be probed, else None.
        note: A caveat for the metrics of a probed tensor.
        parameters: How many stored numbers it stands for, where that isn't its shape's product.
        collective: Whether loading it involves other processes, so that all must load in one order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]
    identity: Hashable = None
    kind: str | None = None
    obstacle: tuple[Status, str] | None = None
    note: str = ""
    parameters: int | None = None
    collective: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model or a file, in their own order.

    Attributes:
        source: Where they come from, as shown to the user: a class name or a path.
        tensors: The tensors.
        notes: What the user should know: which part of a checkpoint was chosen, what was skipped.
    """

    source: str
    tensors: tuple[Weight, ...]
    notes: tuple[str, ...] = ()
