"""Student's t against scipy's."""

import math

import pytest

from rankwise.study.student import critical_t, two_sided

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 1000])
@pytest.mark.parametrize("t", [0.0, 1e-3, 0.3, 1.0, 2.776, 12.7, 80.0, 1e4, -2.5])
def test_the_chance_is_scipys(t, freedom):
    expected = 2 * stats.t.sf(abs(t), freedom)
    assert two_sided(t, freedom) == pytest.approx(expected, rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 1000])
@pytest.mark.parametrize("chance", [0.5, 0.05, 0.001])
def test_the_critical_t_is_scipys(chance, freedom):
    expected = stats.t.ppf(1 - chance / 2, freedom)
    assert critical_t(chance, freedom) == pytest.approx(expected, rel=1e-10)


def test_a_t_beyond_all_numbers_has_no_chance():
    assert two_sided(math.inf, 3) == 0.0


@pytest.mark.parametrize("t", [1e-9, 0.5, 1e6])
def test_one_degree_of_freedom_is_cauchys_distribution(t):
    assert two_sided(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-10)
