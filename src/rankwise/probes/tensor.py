"""Named tensors, each known by shape before it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Weight", "Weights"]


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor: what is known of it beforehand, and how to get it when its turn comes.

    Attributes:
        name: Its name in the model, wrappers' prefixes removed.
        shape: Its shape.
        dtype: The type it is stored in.
        load: Gives the tensor; for a product of factors, a smaller one of the same singular values.
        identity: Equal for two tensors that share their memory; None where that can't be known.
        kind: The layer's kind where the module tells ("conv_transpose2d"), else None.
        obstacle: A status and a reason where the tensor can't be probed, else None.
        note: What to know of a probed tensor's figures.
        parameters: How many stored numbers it stands for, where that isn't its shape's product.
        alone: Whether loading it involves other processes, so that all must load in one order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]
    identity: Hashable = None
    kind: str | None = None
    obstacle: tuple[str, str] | None = None
    note: str = ""
    parameters: int | None = None
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model or a file, in their own order.

    Attributes:
        source: What they come from, as shown to people: a class name or a path.
        tensors: The tensors.
        notes: What a person should know: which part of a checkpoint was chosen, what was skipped.
    """

    source: str
    tensors: tuple[Weight, ...]
    notes: tuple[str, ...] = ()
