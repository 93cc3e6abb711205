"""The largest singular value by Lanczos' method."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import NotFiniteError
from rankwise.numerics.spectral_norm import estimate_spectral_norm

SHAPES = [(1, 7), (3, 5), (30, 20), (64, 64), (300, 200), (256, 1024), (40, 3, 3, 3)]


def exact(weight):
    return float(torch.linalg.matrix_norm(weight.double().flatten(1), 2))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_random_weights_which_are_the_hardest(shape, dtype):
    for seed in range(5):
        source = torch.Generator().manual_seed(seed)
        weight = torch.randn(shape, generator=source).to(dtype)
        ratio = estimate_spectral_norm(weight) / exact(weight)
        assert 0.99 < ratio < 1 + 1e-5


@given(st.integers(0, 50), st.integers(1, 6), st.floats(1e-20, 1e20))
def test_low_rank_weights_are_exact_at_any_scale(seed, rank, scale):
    source = torch.Generator().manual_seed(seed)
    left, right = (
        torch.randn(size, generator=source).double() for size in ((30, rank), (rank, 50))
    )
    weight = scale * left @ right
    assert estimate_spectral_norm(weight) == pytest.approx(exact(weight), rel=1e-6)
    assert estimate_spectral_norm(weight.T) == pytest.approx(exact(weight), rel=1e-6)


def test_zeros_and_single_entries():
    assert estimate_spectral_norm(torch.zeros(4, 6)) == 0.0
    assert estimate_spectral_norm(torch.tensor([[-3.0]])) == pytest.approx(3.0)
    one = torch.zeros(50, 60)
    one[7, 9] = 2.0
    assert estimate_spectral_norm(one) == pytest.approx(2.0)


def test_it_draws_no_random_numbers():
    before = torch.get_rng_state()
    weight = torch.arange(12.0).reshape(3, 4)
    assert estimate_spectral_norm(weight) == estimate_spectral_norm(weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_not_finite_is_refused():
    with pytest.raises(NotFiniteError):
        estimate_spectral_norm(torch.full((4, 4), torch.inf))
