"""Named tensors: what is known of each before it is loaded, and how to load it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rankwise.errors import RankwiseError

Array = npt.NDArray[np.float64]
# What loading a tensor may raise: a broken file, codes that refer to nothing, a tensor subclass
# without some operation, no memory left. (torch's and numpy's LinAlgError are among these.)
LOAD_ERRORS = (
    *(RankwiseError, RuntimeError, TypeError, ValueError, LookupError, ArithmeticError),
    *(OSError, MemoryError),
)
# Of tensors: the network's own, as a module or its state dict has it, or by their names.
Order = Literal["network", "name"]


class Status(str, Enum):
    """Whether a tensor was probed, or why not.

    Example:
        >>> import rankwise
        >>> rankwise.Status("probed") is rankwise.Status.PROBED
        True
    """

    PROBED = "probed"
    VECTOR = "vector"
    NOT_A_WEIGHT = "not a weight"
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
    """One tensor: its description, and a function that loads it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]
    identity: Hashable = None  # equal for two tensors that share their memory, where known
    kind: str | None = None  # where the module knows it, as in "conv_transpose2d"
    output_axis: int = 0  # the one that counts filters: 1 for weights stored as [in, out]
    gates: str = ""  # letters of the gates stacked along the rows, as in "iofc"
    group: str | None = None  # the stored tensor that it is a slice of, as one of many experts
    stored: str | None = None  # the stored type, where it is not `dtype`, as in "GPTQ int4"
    obstacle: tuple[Status, str] | None = None  # why the tensor can't be probed
    note: str = ""  # a caveat for the metrics of a probed tensor
    parameters: int | None = None  # how many are stored, where that isn't the shape's product
    collective: bool = False  # loading involves other processes: all must load in one order
    # The type that the numbers were rounded to before they were scaled, as those of FP8 weights.
    rounded_to: torch.dtype | None = None
    # Loads some rows of the first axis alone: from a start, so many. Where it can't, None.
    load_rows: Callable[[int, int], Tensor] | None = None

    # How many sides of 1 the stored tensor has in front of `shape`, as tables of positions do.
    squeezed: int = 0

    # Of a product of thin factors: its non-zero singular values, without forming it.
    singular_values: Callable[[], Array] | None = None
    factors: LoraFactors | None = None  # those of a LoRA

    def load_slice(self, start: int, count: int) -> Tensor:
        """Load some rows of the first axis, without the others where the source allows it."""
        if self.load_rows is not None:
            return self.load_rows(start, count)
        return self.load().narrow(0, start, count)


@dataclass(frozen=True, slots=True)
class LoraFactors:
    """The factors of a LoRA: the change of a weight is scale · up · down, and so of rank ≤ r.

    Attributes:
        module: What their names begin with, as in "base_model.model.fc".
        down: A, r × in; of a convolution r × in × kernel.
        up: B, out × r; of a convolution out × r × 1 × 1.
        others: What else is stored for the module: DoRA's norms, AdaLoRA's diagonal.
        compute_scale: Returns α/r, or α/√r for rsLoRA.
        has_scale: Whether α is known; else the scale counts as 1.
    """

    module: str
    down: Weight
    up: Weight
    others: tuple[Weight, ...]
    compute_scale: Callable[[], float]
    has_scale: bool

    @property
    def rank(self) -> int:
        """The number r of directions that are stored."""
        return self.down.shape[0]

    def load(self) -> tuple[Tensor, Tensor]:
        """Load B and A as matrices, in the type in which they are stored."""
        return self.up.load().detach().flatten(1), self.down.load().detach().flatten(1)


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model or a file."""

    source: str  # where they come from, as shown to the user: a class name or a path
    tensors: tuple[Weight, ...]
    notes: tuple[str, ...] = ()  # which part of a checkpoint was chosen, what was skipped
    order: Order = "network"
    # What config.json (or adapter_config.json) next to the weights says, or the module's `config`.
    config: Mapping[str, object] = field(default_factory=dict)
