"""Weight tensor → matrices (METHOD §1), by its shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rankwise.errors import ArgumentError

Modes = Literal["both", "input", "output"]


@dataclass(frozen=True, slots=True)
class Unfolding:
    """One way to reshape a weight to a matrix.

    Attributes:
        modes: The modes it serves: ("matrix",), ("input",), ("output",), or both of a 1×1
            convolution, whose two unfoldings are transposes of each other.
        axis: The tensor's axis that gives the rows.
        rows: L, the matrix's smaller side.
        columns: M, its larger side.

    Example:
        >>> import rankwise
        >>> [u.modes for u in rankwise.plan_unfoldings((64, 32, 3, 3))]
        [('input',), ('output',)]
    """

    modes: tuple[str, ...]
    axis: int
    rows: int
    columns: int


def plan_unfoldings(
    shape: tuple[int, ...], *, modes: Modes = "both", transposed: bool = False
) -> tuple[Unfolding, ...]:
    """Return the unfoldings of a weight of this shape that carry rank information.

    Args:
        shape: `[out, in]`, or `[out, in/groups, *kernel]` as torch stores convolutions.
        modes: Which of a convolution's modes to take; a matrix has one only.
        transposed: Whether the tensor is a transposed convolution's, `[in, out/groups, *kernel]`.

    Returns:
        One per mode that has more than one row and column, so none for fewer than two dimensions,
        and only the output mode of a depthwise convolution.

    Example:
        >>> import rankwise
        >>> [u.modes for u in rankwise.plan_unfoldings((64, 1, 3, 3))]  # depthwise
        [('output',)]
    """
    if len(shape) < 2:
        return ()
    return tuple(u for u in _list_unfoldings(shape, modes, transposed) if u.rows > 1)


def check_modes(modes: str) -> None:
    """Raise an ArgumentError if `modes` is unknown."""
    if modes not in ("both", "input", "output"):
        raise ArgumentError(f"Expected modes='both', 'input' or 'output', got {modes!r}.")


def _list_unfoldings(shape: tuple[int, ...], modes: Modes, transposed: bool) -> Iterator[Unfolding]:
    check_modes(modes)
    wanted = ("input", "output") if modes == "both" else (modes,)
    if len(shape) == 2:
        yield Unfolding(("matrix",), 0, min(shape), max(shape))
    elif math.prod(shape[2:]) == 1:
        yield Unfolding(wanted, 0, min(shape[:2]), max(shape[:2]))
    else:
        for mode in wanted:
            axis = (mode == "input") != transposed
            rows, columns = shape[axis], math.prod(shape) // max(1, shape[axis])
            yield Unfolding((mode,), int(axis), min(rows, columns), max(rows, columns))


def unfold(weight: Tensor, axis: int = 0) -> Tensor:
    """Reshape a weight to a matrix whose rows run along one axis.

    Args:
        weight: A tensor with two or more dimensions.
        axis: 0 for mode-4 (rows = output channels of a convolution), 1 for mode-3 (input channels).

    Returns:
        A 2-D tensor, a view where the layout allows it.

    Example:
        >>> import torch, rankwise
        >>> rankwise.unfold(torch.zeros(64, 32, 3, 3), axis=1).shape
        torch.Size([32, 576])
    """
    return weight.movedim(axis, 0).flatten(1)
