"""Singular values of every layer's change → a rank for each: by a rule, and within a size."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from rankwise.errors import ArgumentError

Array = npt.NDArray[np.float64]
Rank = Literal["auto"] | int | float

# Singular values from a Gram matrix below this share of the largest are rounding errors.
_RESOLUTION = 1e-7


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layer that can get a LoRA.

    Attributes:
        values: The singular values of its change, descending.
        signal: n', how many of them EVBMF keeps.
        cost: Bytes of one rank.
    """

    values: Array
    signal: int
    cost: int


def check_rank(rank: object) -> Rank:
    """Return a rule for ranks if it is one.

    Raises:
        ArgumentError: If it is not "auto", a whole number from 1 on, or a share in (0, 1].
    """
    if rank == "auto":
        return "auto"
    if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 1:
        return rank
    if isinstance(rank, float) and 0 < rank <= 1:
        return rank
    raise ArgumentError(
        "Expected rank='auto', a whole number of at least 1, or a share of the energy such as "
        f"0.9, got {rank!r}."
    )


def choose_rank(candidate: Candidate, rule: Rank, most: int | None = None) -> int:
    """Return the rank of one layer by a rule: EVBMF's, a number, or the least with this share.

    Args:
        candidate: The layer.
        rule: "auto", a number of directions, or a share of ‖Δ‖².
        most: The highest rank allowed.

    Example:
        >>> layer = Candidate(np.array([3.0, 1.0, 0.5]), signal=1, cost=8)
        >>> [choose_rank(layer, rule) for rule in ("auto", 2, 0.95)]
        [1, 2, 2]
    """
    values = candidate.values
    if not len(values) or values[0] == 0:
        return 0
    present = int((values > _RESOLUTION * values[0]).sum())
    if rule == "auto":
        rank = candidate.signal
    elif isinstance(rule, int):
        rank = rule
    else:
        shares = np.cumsum(np.square(values / values[0]))
        rank = int(np.searchsorted(shares, rule * shares[-1] * (1 - 1e-12))) + 1
    return min(rank, present, *(() if most is None else (most,)))


def distribute(candidates: Sequence[Candidate], most: Sequence[int], budget: int) -> list[int]:
    """Return the ranks that keep most of ‖Δ‖² within a number of bytes.

    The next direction is always the one with the largest gain per byte. Within a layer gains fall
    and costs are equal, so no other ranks that take as many bytes keep more, as long as every
    direction fits; one that does not fit closes its layer, and others go on.

    Args:
        candidates: The layers.
        most: The highest rank of each.
        budget: Bytes.

    Example:
        >>> layers = [Candidate(np.array(v), 2, 10) for v in ([3.0, 1.0], [2.0, 1.5])]
        >>> distribute(layers, [2, 2], 35)
        [1, 2]
    """
    ranks = [0] * len(candidates)

    def rate(place: int) -> tuple[float, int]:
        layer = candidates[place]
        return -math.pow(float(layer.values[ranks[place]]), 2) / layer.cost, place

    queue = [rate(place) for place, limit in enumerate(most) if limit > 0]
    heapq.heapify(queue)
    while queue:
        _, place = heapq.heappop(queue)
        if candidates[place].cost > budget:
            continue
        budget -= candidates[place].cost
        ranks[place] += 1
        if ranks[place] < most[place]:
            heapq.heappush(queue, rate(place))
    return ranks
