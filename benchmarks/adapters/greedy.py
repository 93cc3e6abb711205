"""The choice of ranks that keeps most of ‖ΔW‖² within a number of bytes, for comparison."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rankwise.adapters.extraction.rank_budget import Candidate


def choose_greedily(layers: Sequence[Candidate], most: Sequence[int], budget: int) -> list[int]:
    """Return the ranks: the next direction is the one with the largest gain per byte."""
    directions = [
        (-(float(value) ** 2) / layer.cost, place)
        for place, layer in enumerate(layers)
        for value in layer.values[: most[place]]  # they fall: a layer's come in their order
    ]
    heapq.heapify(directions)
    ranks = [0] * len(layers)
    closed: set[int] = set()
    while directions:
        _, place = heapq.heappop(directions)
        if layers[place].cost > budget:
            closed.add(place)
        if place not in closed:
            budget -= layers[place].cost
            ranks[place] += 1
    return ranks
