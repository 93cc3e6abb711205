"""Ranks by rules, and the best ranks for a number of bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.adapters.extraction.rank_budget import Candidate, check_rank, choose_rank, distribute
from rankwise.errors import ArgumentError

LAYER = Candidate(np.array([4.0, 2.0, 1.0, 1e-9]), signal=1, cost=1)


@pytest.mark.parametrize(
    ("rule", "rank"),
    [("auto", 1), (2, 2), (64, 3), (16 / 21, 1), (0.77, 2), (1.0, 3), (0.01, 1)],
)
def test_rules(rule, rank):
    assert choose_rank(LAYER, rule) == rank
    assert choose_rank(LAYER, rule, most=1) == 1


def test_a_change_of_zero_has_no_rank():
    assert choose_rank(Candidate(np.zeros(3), signal=0, cost=1), 16) == 0
    assert choose_rank(Candidate(np.empty(0), signal=0, cost=1), 0.9) == 0


@pytest.mark.parametrize("rank", [0, -1, True, 0.0, 1.5, "16", None, float("nan")])
def test_what_is_no_rule_is_refused(rank):
    with pytest.raises(ArgumentError, match="Expected rank="):
        check_rank(rank)


layers = st.lists(
    st.tuples(
        st.lists(st.floats(0.01, 100), min_size=1, max_size=3).map(lambda v: sorted(v)[::-1]),
        st.integers(1, 6),
    ),
    min_size=1,
    max_size=4,
)


@given(layers, st.integers(0, 40))
def test_ranks_of_a_size_are_even_and_leave_nothing_that_fits(described, budget):
    candidates = [Candidate(np.array(values), len(values), cost) for values, cost in described]
    most = [len(layer.values) for layer in candidates]
    ranks = distribute(candidates, most, budget)
    left = budget - sum(r * layer.cost for r, layer in zip(ranks, candidates, strict=True))
    assert left >= 0
    rows = list(zip(ranks, most, candidates, strict=True))
    assert all(layer.cost > left for r, m, layer in rows if r < m)
    # A layer stays below others only if it is full, or one more direction did not fit.
    for rank, limit, layer in rows:
        for other, _, more in rows:
            if rank < min(limit, other - 1):
                assert layer.cost > left + more.cost * (other - rank - 1)


def test_of_several_layers_the_one_that_gains_most_comes_first():
    layers = [Candidate(np.array(v), 1, c) for v, c in (([2.0], 4), ([1.5], 2), ([1.0], 4))]
    assert distribute(layers, [1, 1, 1], 2) == [0, 1, 0]
    assert distribute(layers, [1, 1, 1], 6) == [1, 1, 0]
