"""One answer whatever the route: through the Gram matrix or a true SVD."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.numerics import spectrum
from rankwise.numerics.evbmf import evbmf, factorise
from tests.reference.evbmf_reference import reference_evbmf

KINDS = ["dead rows", "dead rows and columns", "repeated rows", "product", "few columns", "weak"]


@st.composite
def deficient_matrices(draw):
    """Matrices with about as many zero singular values as EVBMF's lower bound depends on."""
    seed = draw(st.integers(0, 2**32 - 1))
    rows = draw(st.integers(2, 24))
    columns = draw(st.one_of(st.integers(rows, 60), st.just(rows * 3 // 2)))
    rng = np.random.default_rng(seed)
    bound = -(-rows * columns // (rows + columns)) - 1
    zeros = int(np.clip(rows - bound + draw(st.integers(-2, 2)), 0, rows - 1))
    rank = draw(st.integers(0, 3))
    planted = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
    matrix = rng.normal(size=(rows, columns)) + rng.uniform(0.1, 5) * planted
    order = rng.permutation(rows)
    dead, alive = order[:zeros], order[zeros:]
    return make_deficient(draw(st.sampled_from(KINDS)), matrix, dead, alive, rng), rng


def make_deficient(kind, matrix, dead, alive, rng):
    rows, columns = matrix.shape
    if kind == "repeated rows":
        factors = rng.choice([1, -1, 2, 0.5, 3], size=(len(dead), 1))
        matrix[dead] = factors * matrix[rng.choice(alive, size=len(dead))]
    elif kind == "product":
        matrix = rng.normal(size=(rows, len(alive))) @ matrix[alive]
    elif kind == "few columns":
        matrix[:, rng.permutation(columns)[len(alive) :]] = 0
    elif kind == "weak":
        matrix[dead] *= 10.0 ** rng.uniform(-9, -2)
    else:
        matrix[dead] = 0
    if kind == "dead rows and columns":
        matrix[:, rng.permutation(columns)[: rng.integers(0, columns - rows + 2)]] = 0
    return matrix


@given(deficient_matrices())
@settings(max_examples=1000)
def test_both_routes_give_one_answer(case):
    matrix, _ = case
    weight = torch.from_numpy(matrix)
    fast = factorise(weight)[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spectrum, "_GRAM_RESOLUTION", np.inf)
        exact = factorise(weight)[1]
    assert fast.rank == exact.rank
    np.testing.assert_allclose(fast.values, exact.values, rtol=1e-9)
    np.testing.assert_allclose(fast.noise_variance, exact.noise_variance, rtol=1e-8)


@given(deficient_matrices(), st.floats(-6, 6))
@settings(max_examples=500)
def test_scaling_transposing_and_permuting_deficient_matrices_change_nothing(case, exponent):
    matrix, rng = case
    scale = 10.0**exponent
    rows, columns = (rng.permutation(side) for side in matrix.shape)
    changed = np.ascontiguousarray(scale * matrix[rows][:, columns].T)
    part, part_changed = (factorise(torch.from_numpy(m))[1] for m in (matrix, changed))
    assert part_changed.rank == part.rank
    np.testing.assert_allclose(part_changed.values, scale * part.values, rtol=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", [(20, 30), (10, 15), (18, 63)])
def test_the_lower_bound_is_exact_where_it_falls_on_a_whole_number(shape, seed):
    # 20 / (1 + 20 / 30) is 12, but not in floating point, where eight zeros made the noise vanish.
    rng = np.random.default_rng(seed)
    rows, columns = shape
    matrix = rng.normal(size=shape) + 2 * rng.normal(size=(rows, 1)) * rng.normal(size=columns)
    values = np.linalg.svd(matrix, compute_uv=False)
    values[rows * columns // (rows + columns) :] = 0
    expected, noise = reference_evbmf((values, columns))
    part = evbmf(values, columns=columns)
    np.testing.assert_allclose(part.values, expected, rtol=1e-8)
    np.testing.assert_allclose(part.noise_variance, noise, rtol=1e-7)
    assert noise > 0


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2fnuz], ids=str
)
@pytest.mark.parametrize("shape", [(5, 9), (64, 100), (100, 8, 3, 3)])
def test_zeros_need_no_decomposition(monkeypatch, dtype, shape):
    monkeypatch.setattr(spectrum, "_SCANNED", 2)
    monkeypatch.setattr(spectrum, "compute_eigenvalues", None)
    zeros = torch.zeros(shape).to(dtype)
    computed, part = factorise(zeros)
    assert part.rank == 0
    assert (computed.values == 0).all()


@pytest.mark.parametrize("place", [0, -1])
def test_one_number_among_zeros_is_found(place):
    weight = torch.zeros(70, 100)
    weight.view(-1)[place] = 3.0
    assert factorise(weight)[0].values[0] == 3.0
    assert factorise(weight.to(torch.float8_e5m2))[0].values[0] == 3.0
