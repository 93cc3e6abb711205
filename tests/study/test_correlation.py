"""Coefficients are those of scipy; intervals are seeded, clustered, and honest about few points."""

import math

import numpy as np
import pytest
from scipy import stats

from rankwise.study.correlation import correlate

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
        ([0.1] * 4, [1.0, 2.0, 3.0, 4.0], "the first of the two is the same for all"),
        ([1.0, 2.0, 3.0, 4.0], [0.1] * 4, "the second of the two is the same for all"),
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
