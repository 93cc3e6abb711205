"""The Hill exponent of a weight's spectrum."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rankwise
from rankwise.numerics.hill import count_eigenvalues, fit_hill_exponent
from tests.reference.layerwise_reference import eigenvalues, hill

SHAPES = [(3, 3), (8, 5), (5, 40), (64, 64), (6, 4, 3), (6, 4, 3, 3), (5, 1, 3, 3), (4, 3, 1, 1)]


def weight(shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_formula(shape):
    for seed in range(3):
        one = weight(shape, seed)
        lam = eigenvalues(one)
        assert count_eigenvalues(shape) == len(lam)
        assert rankwise.hill_exponent(one) == pytest.approx(hill(lam), rel=1e-9)


@given(st.integers(0, 99), st.sampled_from(SHAPES), st.floats(1e-12, 1e12))
def test_scale_transposition_and_permutation_do_not_matter(seed, shape, scale):
    one = weight(shape, seed)
    alpha = rankwise.hill_exponent(one)
    order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(seed))
    assert rankwise.hill_exponent(scale * one) == pytest.approx(alpha, rel=1e-9)
    assert rankwise.hill_exponent(one.transpose(0, 1)) == pytest.approx(alpha, rel=1e-9)
    assert rankwise.hill_exponent(one[order]) == pytest.approx(alpha, rel=1e-9)
    if one.ndim > 2:
        assert rankwise.hill_exponent(one.flip(2)) == pytest.approx(alpha, rel=1e-9)


def test_a_power_law_has_its_exponent():
    """p(λ) ∝ λ^−α: the larger half of its quantiles gives α back."""
    for alpha in (1.5, 2.5, 4.0):
        quantiles = (np.arange(20_000) + 0.5) / 20_000
        lam = (1 - quantiles) ** (-1 / (alpha - 1))
        assert fit_hill_exponent(np.sqrt(lam)) == pytest.approx(alpha, rel=1e-3)


def test_a_heavier_tail_has_a_lower_exponent():
    plain = weight((60, 80))
    spiked = plain + 20 * torch.outer(weight((60,)), weight((80,), 1)) / 60
    assert rankwise.hill_exponent(spiked) < rankwise.hill_exponent(plain)


@pytest.mark.parametrize(
    "one",
    [
        torch.zeros(6, 5),
        torch.ones(6, 5),  # rank 1: λ_i is 0
        torch.eye(5),
        1e-200 * torch.eye(5, dtype=torch.float64),
        torch.ones(2, 9),  # N = 2
        torch.ones(1, 9),
        torch.zeros(4, 3, 3, 3),
    ],
    ids=["zeros", "rank 1", "equal", "equal and tiny", "N = 2", "N = 1", "zero kernel"],
)
def test_where_there_is_none(one):
    assert rankwise.hill_exponent(one) is None


def test_half_of_the_rows_dead_leaves_the_other_half():
    one = torch.diag(torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0]))
    assert rankwise.hill_exponent(one) == pytest.approx(hill([0, 0, 0, 1, 4, 16, 64]))


def test_small_singular_values_above_the_median_are_exact():
    """The Gram matrix would lose them: 1e-9 of the largest, squared, is below its resolution."""
    values = torch.logspace(0, -9, 40, dtype=torch.float64)
    values[0] = 1e3
    left, right = (torch.linalg.qr(weight((40, 40), seed))[0] for seed in (1, 2))
    one = left @ torch.diag(values) @ right
    assert rankwise.hill_exponent(one) == pytest.approx(
        hill(sorted((values**2).tolist())), rel=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_small_types_are_measured_in_float64(dtype):
    one = weight((30, 20), dtype=dtype)
    assert rankwise.hill_exponent(one) == pytest.approx(hill(eigenvalues(one.double())), rel=1e-9)


def test_what_is_not_finite_or_no_matrix_is_refused():
    with pytest.raises(rankwise.NotFiniteError):
        rankwise.hill_exponent(torch.full((4, 4), torch.nan))
    with pytest.raises(rankwise.ArgumentError, match="two dimensions or more, got 1"):
        rankwise.hill_exponent(torch.ones(4))
