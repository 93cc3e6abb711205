"""The rules of other tools give what their formulas give by hand."""

import math

import numpy as np
import pytest
from benchmarks.rank_rules import (
    compute_kappa,
    count_above_edge,
    count_above_median_rule,
    count_spectrum_signal,
)

_FIVE = np.array([10.0, 8.0, 6.0, 4.0, 2.0])


def test_spectrum_counts_above_the_quartiles_spread():
    # Quartiles 4 and 8: σ = 4 / 1.349 = 2.965. Square: 2σ = 5.93; 5 × 20: 1.5σ = 4.45.
    # 5 × 500: 1.1σ = 3.26.
    assert [count_spectrum_signal(_FIVE, columns) for columns in (5, 20, 500)] == [3, 3, 4]


def test_spectrum_calls_all_of_a_wide_gaussian_matrix_signal():
    matrix = np.random.default_rng(0).normal(size=(32, 512))
    assert count_spectrum_signal(np.linalg.svd(matrix, compute_uv=False), 512) == 32


def test_median_rule_is_2_858_medians_for_a_square_matrix():
    # Gavish and Donoho give ω(1) = 2.858; their cubic gives 2.86. The median is 1.
    values = np.array([2.87, 2.85, 1.0, 0.9, 0.1])
    assert count_above_median_rule(values, 5) == 1


@pytest.mark.parametrize("columns", [300, 600, 2400])
def test_edge_is_that_of_gaussian_noise(columns):
    rng = np.random.default_rng(1)
    noise = np.linalg.svd(rng.normal(size=(300, columns)), compute_uv=False)
    edge = math.sqrt(300) + math.sqrt(columns)
    values = np.sort(np.append(noise[3:], (1.03 * edge, 1.02 * edge, 0.96 * edge)))[::-1]
    assert noise[3] < 0.99 * edge
    assert count_above_edge(values, columns) == 2


def test_kappa_is_the_ratio_of_the_outer_values():
    assert compute_kappa(_FIVE) == pytest.approx(5.0)
    assert compute_kappa(np.array([1.0, 0.0])) == pytest.approx(1e8)
