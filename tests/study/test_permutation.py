"""The permutation test is scipy's where nothing is grouped, and knows groups; Holm's rule."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rankwise.study.permutation import holm, permutation_test


def pairs(n, seed=0, strength=1.0):
    random = np.random.default_rng(seed)
    x = random.normal(size=n)
    return list(x), list(strength * x + random.normal(size=n))


def exact(x, y):
    """The share of all orders whose rank correlation is as far from 0."""
    own = abs(stats.spearmanr(x, y).statistic)
    found = [
        abs(stats.spearmanr(x, [y[i] for i in order]).statistic)
        for order in itertools.permutations(range(len(y)))
    ]
    return np.mean(np.array(found) >= own - 1e-12)


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "tied"])
def test_it_agrees_with_all_orders(ties):
    x, y = pairs(6)
    x, y = ([round(v) for v in x], [round(v) for v in y]) if ties else (x, y)
    assert permutation_test(x, y, permutations=20_000) == pytest.approx(exact(x, y), abs=0.01)


def test_it_agrees_with_scipy():
    x, y = pairs(15, strength=0.4)

    def statistic(values):
        return stats.spearmanr(values, y).statistic

    theirs = stats.permutation_test(
        (x,), statistic, permutation_type="pairings", n_resamples=4000, random_state=0
    )
    own = permutation_test(x, y, permutations=20_000)
    assert 0.02 < own < 0.9
    assert own == pytest.approx(theirs.pvalue, abs=0.03)


def test_the_least_p_is_one_in_all_shuffles_and_the_own_order():
    x = list(range(20))
    assert permutation_test(x, x, permutations=99) == 1 / 100
    assert permutation_test(x, [-v for v in x], permutations=99) == 1 / 100


def test_repeating_a_pair_within_its_group_is_no_new_evidence():
    x, y = pairs(8)
    alone = permutation_test(x, y)
    thrice = [list(np.repeat(v, 3)) for v in (x, y)]
    assert permutation_test(*thrice, groups=list(np.repeat(range(8), 3))) == alone
    assert permutation_test(*thrice) < alone


def test_a_group_counts_as_its_mean():
    x, y = [0.0, 2.0, 5.0, 4.0, 3.0], [1.0, 3.0, 7.0, 1.0, 5.0]
    assert permutation_test(x, y, groups="aabcd") == permutation_test(
        [1.0, 5.0, 4.0, 3.0], [2.0, 7.0, 1.0, 5.0]
    )


def test_chance_alone_is_seldom_called_more():
    """With groups of unlike sizes and members nearly alike, p below .1 comes in about 1 of 10.

    Without the groups it would come far more often.
    """
    grouped, naive = [], []
    for seed in range(200):
        random = np.random.default_rng(seed)
        labels = np.repeat(range(12), [1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 5, 6])
        x, y = (random.normal(size=12)[labels] + 0.1 * random.normal(size=30) for _ in range(2))
        grouped.append(permutation_test(x, y, groups=list(labels), permutations=199))
        naive.append(permutation_test(x, y, permutations=199))
    assert 0.05 < np.mean(np.array(grouped) <= 0.1) < 0.16
    assert np.mean(np.array(naive) <= 0.1) > 0.2


def test_the_same_seed_gives_the_same_p():
    x, y = pairs(12, strength=0.3)
    assert permutation_test(x, y) == permutation_test(x, y)
    assert permutation_test(x, y, permutations=99) != permutation_test(
        x, y, permutations=99, seed=1
    )


def test_what_is_missing_or_not_finite_is_left_out():
    x, y = pairs(10)
    assert permutation_test([*x, None, 1.0, math.inf], [*y, 5.0, math.nan, 1.0]) == (
        permutation_test(x, y)
    )


@pytest.mark.parametrize(
    ("x", "y", "groups"),
    [
        ([], [], ""),
        ([1.0, 2.0], [1.0, 2.0], "ab"),
        ([1, 1, 1], [1, 2, 3], "abc"),
        ([1, 2, 3], [1, 2, 3], "aab"),
    ],
    ids=["none", "two", "constant", "two groups"],
)
def test_where_there_is_no_test_there_is_no_p(x, y, groups):
    assert permutation_test(x, y, groups=groups) is None


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="got 2, 1 and 2"):
        permutation_test([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="permutations of 1 or more"):
        permutation_test([1.0, 2.0], [1.0, 2.0], permutations=0)


def test_holm_steps_down_and_never_below_the_one_before():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, None, 0.9]) == [1.0, None, 1.0]
    assert holm([]) == []
