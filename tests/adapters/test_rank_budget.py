"""Ranks by rules, and the best ranks for a number of bytes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.adapters.rank_budget import Candidate, check_rank, choose_rank, distribute
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
def test_no_other_ranks_of_this_size_keep_more(described, budget):
    candidates = [Candidate(np.array(values), len(values), cost) for values, cost in described]
    most = [len(layer.values) for layer in candidates]
    # While every direction fits, the greedy choice is the best of its size.
    ranks = distribute(candidates, most, budget)

    def cost(option):
        return sum(r * layer.cost for r, layer in zip(option, candidates, strict=True))

    def gain(option):
        pairs = zip(option, candidates, strict=True)
        return sum(float(np.square(layer.values[:r]).sum()) for r, layer in pairs)

    options = [o for o in itertools.product(*(range(m + 1) for m in most)) if cost(o) <= budget]
    best = max(map(gain, options))
    assert cost(ranks) <= budget
    # What is lost against the best is less than the one direction that did not fit.
    rates = [
        np.square(layer.values[r])
        for r, m, layer in zip(ranks, most, candidates, strict=True)
        if r < m
    ]
    assert gain(ranks) >= best - max(rates, default=0) * (1 + 1e-9)
    used = [o for o in options if cost(o) <= cost(ranks)]
    if all(layer.cost == candidates[0].cost for layer in candidates):
        assert gain(ranks) == pytest.approx(max(map(gain, used)))
