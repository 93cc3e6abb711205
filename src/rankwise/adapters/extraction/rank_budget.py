"""Singular values of every layer's change → a rank for each: by a rule, and within a size."""

from __future__ import annotations

import heapq
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
    """Return ranks that fit into a number of bytes: as even as can be, as high as they fit.

    The layer with the lowest rank gets the next direction; of several, the one whose direction
    keeps most of ‖Δ‖² per byte. One whose direction does not fit keeps its rank. Taking the
    directions with most ‖Δ‖² per byte from all layers together keeps more of ‖Δ‖² and less of what
    a fine-tune gained (docs/adapters.md).

    Args:
        candidates: The layers.
        most: The highest rank of each.
        budget: Bytes.

    Example:
        >>> layers = [Candidate(np.array(v), 2, 10) for v in ([3.0, 2.5], [2.0, 1.5])]
        >>> distribute(layers, [2, 2], 35)
        [2, 1]
    """
    ranks = [0] * len(candidates)

    def place_in_queue(place: int) -> tuple[int, float, int]:
        layer = candidates[place]
        return ranks[place], -(float(layer.values[ranks[place]]) ** 2) / layer.cost, place

    queue = [place_in_queue(place) for place, limit in enumerate(most) if limit > 0]
    heapq.heapify(queue)
    while queue:
        *_, place = heapq.heappop(queue)
        if candidates[place].cost > budget:
            continue
        budget -= candidates[place].cost
        ranks[place] += 1
        if ranks[place] < most[place]:
            heapq.heappush(queue, place_in_queue(place))
    return ranks
