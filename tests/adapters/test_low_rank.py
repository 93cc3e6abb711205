"""Thin factors of a matrix: the best of their rank, by both ways."""

import pytest
import torch

from rankwise.adapters.extraction import low_rank
from rankwise.adapters.extraction.low_rank import compute_factors, measure_error


def make_matrix(rows, columns, decay=0.8):
    sides = [
        torch.linalg.qr(torch.randn(n, min(rows, columns)).double())[0] for n in (rows, columns)
    ]
    values = decay ** torch.arange(min(rows, columns)).double()
    return (sides[0] * values) @ sides[1].T, values


@pytest.mark.parametrize("shape", [(40, 90), (90, 40), (1, 7), (7, 1), (30, 30)])
@pytest.mark.parametrize("rank", [1, 5])
def test_the_error_is_the_least_of_this_rank(shape, rank):
    matrix, values = make_matrix(*shape)
    rank = min(rank, *shape)
    factors = compute_factors(matrix, rank)
    assert factors.left.shape == (shape[0], rank)
    assert factors.right.shape == (rank, shape[1])
    least = float(values[rank:].square().sum())
    assert measure_error(matrix, factors) == pytest.approx(least, rel=1e-9, abs=1e-18)
    # Both sides have the same norms: each takes the root of the singular value.
    assert factors.left.norm(dim=0).numpy() == pytest.approx(factors.right.norm(dim=1).numpy())


def test_other_singular_values_can_be_given():
    matrix, _ = make_matrix(20, 30)
    factors = compute_factors(matrix, 3, values=[0.5, 0.4, 0.3])
    found = torch.linalg.svdvals(factors.left @ factors.right)[:3]
    assert found.tolist() == pytest.approx([0.5, 0.4, 0.3])


@pytest.mark.parametrize("scale", [1e-170, 1e-30, 1e170])
def test_the_scale_of_the_matrix_does_not_matter(scale):
    matrix, values = make_matrix(12, 20)
    product = compute_factors(matrix * scale, 4)
    error = (matrix - product.left / scale**0.5 @ (product.right / scale**0.5)).norm()
    assert float(error) == pytest.approx(float(values[4:].norm()), rel=1e-6)


class TestRangeFinder:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch):
        monkeypatch.setattr(low_rank, "_LARGE", 64)

    @pytest.mark.parametrize("shape", [(200, 260), (260, 200)])
    def test_it_is_as_good_as_its_tolerance(self, shape):
        matrix, values = make_matrix(*shape)
        energy = float(values[:4].square().sum() / values.square().sum())
        error = measure_error(matrix, compute_factors(matrix, 4, energy=energy))
        least = float(values[4:].square().sum())
        assert 0 <= error - least <= 1e-6 * float(values.square().sum())

    def test_it_gives_way_to_the_exact_one_where_it_fails(self, monkeypatch):
        tried = []
        find = low_rank._find_range
        monkeypatch.setattr(low_rank, "_find_range", lambda *a: tried.append(find(*a)) or tried[-1])
        monkeypatch.setattr(low_rank, "_MOST_STEPS", 1)
        matrix, values = make_matrix(200, 260, decay=0.999)  # hard: a nearly flat spectrum
        energy = float(values[:5].square().sum() / values.square().sum())
        error = measure_error(matrix, compute_factors(matrix, 5, energy=energy))
        assert tried == [None]
        assert error == pytest.approx(float(values[5:].square().sum()), rel=1e-9)

    def test_the_global_generator_is_left_alone(self):
        matrix, _ = make_matrix(200, 260)
        state = torch.get_rng_state()
        first = compute_factors(matrix, 4, energy=0.1).left
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(compute_factors(matrix, 4, energy=0.1).left, first)
