"""Products of thin factors by QR against the product itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import ArgumentError, NotFiniteError
from rankwise.numerics.thin_product import (
    decompose_product,
    find_least_rank,
    measure_difference,
)
from tests.reference.resizing_reference import truncate

SIDES = st.integers(1, 12)


def draw(rows, rank, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    b = torch.randn(rows, rank, generator=generator, dtype=torch.float64)
    return b, torch.randn(rank, columns, generator=generator, dtype=torch.float64)


@given(SIDES, SIDES, SIDES, st.integers(0, 99))
def test_a_decomposition_gives_the_product_again(rows, rank, columns, seed):
    b, a = draw(rows, rank, columns, seed)
    product = decompose_product(b, a)
    left, right = product.truncate(len(product.values), ratio=3.0)
    torch.testing.assert_close(left @ right, b @ a)
    torch.testing.assert_close(left.norm() / right.norm(), torch.tensor(3.0).double())
    assert torch.all(product.values[:-1] >= product.values[1:])


@given(SIDES, SIDES, SIDES, st.integers(0, 99), st.sampled_from([0.001, 0.01, 0.1, 0.5]))
def test_rank_and_truncation_are_those_of_the_product(rows, rank, columns, seed, error):
    b, a = draw(rows, rank, columns, seed)
    expected, nearest = truncate(b @ a, error)
    product = decompose_product(b, a)
    found = find_least_rank(product.values.numpy(), error)
    assert found == expected
    left, right = product.truncate(found)
    np.testing.assert_allclose((left @ right).numpy(), nearest, atol=1e-9)


@given(
    st.lists(st.floats(0, 1e30), max_size=20),
    st.floats(0, 0.999),
    st.floats(1e-30, 1e30),
)
def test_the_rank_is_the_least_within_the_error(values, error, scale):
    values = np.sort(np.array(values))[::-1]
    rank = find_least_rank(values, error)
    assert 0 <= rank <= len(values)
    if not values.size or values[0] == 0:
        assert rank == 0
        return
    squares = (values / values[0]) ** 2
    assert squares[rank:].sum() <= error * squares.sum() * (1 + 1e-12)
    if rank:
        assert squares[rank - 1 :].sum() > error * squares.sum() * (1 - 1e-12)
    assert find_least_rank(values * scale, 0.01) == find_least_rank(values, 0.01)


@given(SIDES, SIDES, SIDES, st.integers(0, 99))
def test_a_difference_is_that_of_the_products(rows, rank, columns, seed):
    first, second = draw(rows, rank, columns, seed), draw(rows, rank + 1, columns, seed + 1)
    expected = float((first[0] @ first[1] - second[0] @ second[1]).norm())
    assert measure_difference(first, second) == pytest.approx(expected)
    assert measure_difference(first, first) == pytest.approx(0, abs=1e-12)


def test_what_is_no_number_is_refused():
    b, a = draw(4, 2, 5, 0)
    with pytest.raises(NotFiniteError):
        decompose_product(b * torch.nan, a)
    with pytest.raises(NotFiniteError, match="overflows"):
        decompose_product(b * 1e200, a * 1e200)
    with pytest.raises(ArgumentError, match="below 1"):
        find_least_rank(np.ones(3), 1.0)
