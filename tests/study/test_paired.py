"""Two settings over the same seeds."""

import itertools

import numpy as np
import pytest

from rankwise.study.paired import paired


def by_seed(values):
    return dict(enumerate(values))


@pytest.mark.parametrize("n", [2, 3, 5, 8, 40])
@pytest.mark.parametrize("shift", [0.0, 0.01, 0.5])
def test_the_t_test_and_its_interval_are_scipys(n, shift):
    stats = pytest.importorskip("scipy.stats")
    drawn = np.random.default_rng(n)
    a, b = 0.6 + shift + 0.02 * drawn.standard_normal(n), 0.6 + 0.03 * drawn.standard_normal(n)
    found, expected = paired(by_seed(a), by_seed(b)), stats.ttest_rel(a, b)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-10)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-10)
    assert (found.n, found.reason) == (n, "")


def test_only_seeds_that_both_have_are_paired_in_any_order():
    found = paired({3: 0.9, 1: 0.5, 0: 0.7}, {0: 0.6, 2: 0.1, 3: 0.7})
    same = paired({0: 0.7, 3: 0.9}, {0: 0.6, 3: 0.7})
    assert found.n == 2
    assert found.difference == pytest.approx(0.15)
    assert found.p == pytest.approx(same.p)


def test_without_two_pairs_there_is_no_test_but_a_reason():
    none, one = paired({0: 0.5}, {1: 0.5}), paired({0: 0.5}, {0: 0.4})
    assert (none.n, none.difference, none.p, none.low) == (0, None, None, None)
    assert "share no seed" in none.reason
    assert (one.n, one.p, one.low) == (1, None, None)
    assert one.difference == pytest.approx(0.1)
    assert "one shared seed" in one.reason


@pytest.mark.parametrize("gap", [0.0, 0.01])
def test_equal_differences_are_no_proof(gap):
    base = [0.61, 0.623, 0.607]  # of which sums with 0.01 differ by rounding
    found = paired(by_seed([value + gap for value in base]), by_seed(base))
    assert found.p is None
    assert found.low is None
    assert found.difference == pytest.approx(gap)
    assert "the same" in found.reason


def test_the_permutation_test_counts_all_choices_of_signs():
    gaps = [0.03, -0.01, 0.02, 0.05, 0.01, 0.015, -0.02]
    found = paired(by_seed([0.5 + gap for gap in gaps]), by_seed([0.5] * 7))
    sums = [abs(np.dot(gaps, signs)) for signs in itertools.product((1, -1), repeat=7)]
    expected = np.mean([value >= abs(sum(gaps)) - 1e-12 for value in sums])
    assert found.flips == pytest.approx(expected)
    assert 0.02 < expected < 0.9


@pytest.mark.parametrize(("n", "expected"), [(5, None), (6, 2 / 64), (20, 2 / 2**20), (21, None)])
def test_signs_are_flipped_for_6_to_20_pairs(n, expected):
    better = [0.51 + 0.001 * number for number in range(n)]
    assert paired(by_seed(better), by_seed([0.5] * n)).flips == expected


def test_scores_whose_squares_no_float_holds_are_not_tested():
    found = paired({0: 1e160, 1: 2e170}, {0: 1.0, 1: 2.0})
    assert (found.p, found.difference) == (None, None)
    assert "beyond what can be compared" in found.reason
