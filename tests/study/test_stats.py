"""Paired tests, permutation tests, Holm, and correlations with clustered bootstrap intervals."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rankwise.study.stats import adjust_holm, correlate, paired_test, permutation_test

SCIPY = (stats.pearsonr, stats.spearmanr, stats.kendalltau)


def pairs(n, *, ties=False, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=n)
    y = x + random.normal(size=n)
    return (x.round(0), y.round(0)) if ties else (x, y)


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "tied"])
@pytest.mark.parametrize("n", [3, 12, 60])
def test_coefficients_are_those_of_scipy(n, ties):
    x, y = pairs(n, ties=ties)
    found = correlate(list(x), list(y), resamples=10)
    for own, theirs in zip(found, SCIPY, strict=True):
        assert own.value == pytest.approx(theirs(x, y).statistic, abs=1e-12)
        assert own.n == own.groups == n


def test_names_are_those_of_the_paper():
    assert [c.name for c in correlate(*pairs(5))] == ["PLCC", "SROCC", "KROCC"]


def test_the_interval_is_that_of_resamples_taken_one_by_one():
    x, y = pairs(12, ties=True)
    resamples, seed = 300, 7
    found = correlate(list(x), list(y), resamples=resamples, seed=seed)
    times = np.random.default_rng(seed).multinomial(12, np.full(12, 1 / 12), size=resamples)
    for own, theirs in zip(found, SCIPY, strict=True):
        drawn = [theirs(np.repeat(x, t), np.repeat(y, t)).statistic for t in times]
        assert [own.low, own.high] == pytest.approx(list(np.quantile(drawn, [0.025, 0.975])))


def test_a_resample_that_is_constant_is_left_out():
    # All values but one are the same: a third of the resamples hold nothing else. By rounding
    # their deviations from their mean are not exactly 0.
    x, y = np.array([0.1] * 12 + [0.7]), pairs(13)[1]
    times = np.random.default_rng(0).multinomial(13, np.full(13, 1 / 13), size=300)
    useful = [t for t in times if 0 < t[12] < 13]
    assert len(useful) < 250
    drawn = [stats.pearsonr(np.repeat(x, t), np.repeat(y, t)).statistic for t in useful]
    found = correlate(list(x), list(y), resamples=300)[0]
    assert [found.low, found.high] == pytest.approx(list(np.quantile(drawn, [0.025, 0.975])))


def test_pairs_of_a_group_are_drawn_together():
    x, y = pairs(8)
    alone = correlate(list(x), list(y))
    # Each point thrice: without labels that looks like three times the evidence.
    thrice = [list(np.repeat(v, 3)) for v in (x, y)]
    grouped = correlate(*thrice, groups=list(np.repeat(range(8), 3)))
    naive = correlate(*thrice)
    for one, together, apart in zip(alone, grouped, naive, strict=True):
        assert (together.low, together.high) == pytest.approx((one.low, one.high), abs=0.02)
        assert (together.n, together.groups, apart.groups) == (24, 8, 24)
        assert apart.high - apart.low < 0.8 * (together.high - together.low)


def test_the_same_seed_gives_the_same_interval():
    x, y = (list(v) for v in pairs(20))
    assert correlate(x, y) == correlate(x, y)
    assert correlate(x, y)[0].low != correlate(x, y, seed=1)[0].low


def test_values_that_are_missing_or_not_finite_are_left_out():
    x = [0.1, None, 0.3, 0.4, math.nan, 0.6]
    y = [1.0, 2.0, math.inf, 3.0, 1.0, 5.0]
    for found in correlate(x, y, groups="abcdef"):
        assert (found.n, found.groups, found.value > 0) == (3, 3, True)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([], [], "0 pairs are too few"),
        ([1.0, 2.0], [1.0, 2.0], "2 pairs are too few"),
        ([0.1] * 4, [1.0, 2.0, 3.0, 4.0], "all values of the first are the same"),
        ([1.0, 2.0, 3.0, 4.0], [0.1] * 4, "all values of the second are the same"),
    ],
    ids=["none", "two", "first constant", "second constant"],
)
def test_what_is_not_defined_has_no_value_but_a_reason(x, y, reason):
    for found in correlate(x, y):
        assert (found.value, found.low, found.high, found.n) == (None, None, None, len(x))
        assert reason in found.reason


def test_few_groups_give_a_value_without_an_interval():
    for found in correlate([1.0, 2.0, 3.0, 5.0], [1.0, 3.0, 2.0, 4.0], groups="aabb"):
        assert found.value is not None
        assert found.low is found.high is None
        assert "2 independent groups are too few" in found.reason


def test_scale_and_place_do_not_matter():
    x, y = pairs(10)
    plain = correlate(list(x), list(y))
    moved = correlate(list(1e-9 * x + 5), list(1e6 * y - 3e6))
    for a, b in zip(plain, moved, strict=True):
        assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), abs=1e-4)


def test_lengths_must_be_the_same():
    with pytest.raises(ValueError, match="got 2, 1 and 2"):
        correlate([1.0, 2.0], [1.0])


def test_a_value_beyond_all_others_hides_no_order():
    x, y = [80.1, 80.2, 80.3, 80.4, 1e18], [4.0, 3.0, 2.0, 1.0, 5.0]
    _, srocc, krocc = correlate(x, y)
    assert srocc.value == pytest.approx(stats.spearmanr(x, y).statistic)
    assert krocc.value == pytest.approx(stats.kendalltau(x, y).statistic)


def test_no_resamples_are_refused():
    with pytest.raises(ValueError, match="resamples of 1 or more"):
        correlate([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], resamples=0)


def test_resamples_that_are_all_constant_give_no_interval():
    values = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    for seed in range(40):
        found = correlate(values, values, resamples=1, seed=seed)[1]
        assert found.value == pytest.approx(1.0)
        assert (found.low is None) == bool(found.reason)
        if found.low is None:
            return
    pytest.fail("no seed drew a constant resample")


def correlated(n, seed=0, strength=1.0):
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
    x, y = correlated(6)
    x, y = ([round(v) for v in x], [round(v) for v in y]) if ties else (x, y)
    assert permutation_test(x, y, permutations=20_000) == pytest.approx(exact(x, y), abs=0.01)


def test_the_least_p_is_one_in_all_shuffles_and_the_own_order():
    x = list(range(20))
    assert permutation_test(x, x, permutations=99) == 1 / 100
    assert permutation_test(x, [-v for v in x], permutations=99) == 1 / 100


def test_repeating_a_pair_within_its_group_is_no_new_evidence():
    x, y = correlated(8)
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
    for seed in range(100):
        random = np.random.default_rng(seed)
        labels = np.repeat(range(12), [1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 5, 6])
        x, y = (random.normal(size=12)[labels] + 0.1 * random.normal(size=30) for _ in range(2))
        grouped.append(permutation_test(x, y, groups=list(labels), permutations=199))
        naive.append(permutation_test(x, y, permutations=199))
    assert 0.05 < np.mean(np.array(grouped) <= 0.1) < 0.16
    assert np.mean(np.array(naive) <= 0.1) > 0.2


def test_the_same_seed_gives_the_same_p():
    x, y = correlated(12, strength=0.3)
    assert permutation_test(x, y) == permutation_test(x, y)
    assert permutation_test(x, y, permutations=99) != permutation_test(
        x, y, permutations=99, seed=1
    )


def test_what_is_missing_or_not_finite_is_left_out():
    x, y = correlated(10)
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
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_holm([0.5, None, 0.9]) == [1.0, None, 1.0]
    assert adjust_holm([]) == []


def by_seed(values):
    return dict(enumerate(values))


@pytest.mark.parametrize("n", [2, 5, 40])
def test_the_t_test_and_its_interval_are_those_of_the_pairs(n):
    drawn = np.random.default_rng(n)
    a, b = 0.61 + 0.02 * drawn.standard_normal(n), 0.6 + 0.03 * drawn.standard_normal(n)
    found, expected = paired_test(by_seed(a), by_seed(b)), stats.ttest_rel(a, b)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-10)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-10)
    assert (found.n, found.reason) == (n, "")


def test_only_seeds_that_both_have_are_paired_in_any_order():
    found = paired_test({3: 0.9, 1: 0.5, 0: 0.7}, {0: 0.6, 2: 0.1, 3: 0.7})
    same = paired_test({0: 0.7, 3: 0.9}, {0: 0.6, 3: 0.7})
    assert found.n == 2
    assert found.difference == pytest.approx(0.15)
    assert found.p == pytest.approx(same.p)


def test_without_two_pairs_there_is_no_test_but_a_reason():
    none, one = paired_test({0: 0.5}, {1: 0.5}), paired_test({0: 0.5}, {0: 0.4})
    assert (none.n, none.difference, none.p, none.low) == (0, None, None, None)
    assert "share no seed" in none.reason
    assert (one.n, one.p, one.low) == (1, None, None)
    assert one.difference == pytest.approx(0.1)
    assert "one shared seed" in one.reason


@pytest.mark.parametrize("gap", [0.0, 0.01])
def test_equal_differences_are_no_proof(gap):
    base = [0.61, 0.623, 0.607]  # of which sums with 0.01 differ by rounding
    found = paired_test(by_seed([value + gap for value in base]), by_seed(base))
    assert found.p is None
    assert found.low is None
    assert found.difference == pytest.approx(gap)
    assert "equal" in found.reason


def test_the_permutation_test_counts_all_choices_of_signs():
    gaps = [0.03, -0.01, 0.02, 0.05, 0.01, 0.015, -0.02]
    found = paired_test(by_seed([0.5 + gap for gap in gaps]), by_seed([0.5] * 7))
    sums = [abs(np.dot(gaps, signs)) for signs in itertools.product((1, -1), repeat=7)]
    expected = np.mean([value >= abs(sum(gaps)) - 1e-12 for value in sums])
    assert found.flips == pytest.approx(expected)
    assert 0.02 < expected < 0.9


@pytest.mark.parametrize(
    ("n", "expected"), [(5, None), (6, 2 / 64), (15, 2 / 2**15), (40, 1 / (2**15 + 1))]
)
def test_signs_are_flipped_for_6_pairs_and_more(n, expected):
    better = [0.51 + 0.001 * number for number in range(n)]
    assert paired_test(by_seed(better), by_seed([0.5] * n)).flips == expected


def test_scores_whose_squares_no_float_holds_are_not_tested():
    found = paired_test({0: 1e160, 1: 2e170}, {0: 1.0, 1: 2.0})
    assert (found.p, found.difference) == (None, None)
    assert "too large to compare" in found.reason
