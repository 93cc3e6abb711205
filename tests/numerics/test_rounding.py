import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.numerics.evbmf import factorise
from rankwise.numerics.rounding import StoredType

FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]
WIDER = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(16, 16), (24, 60), (60, 24), (32, 200), (16, 12, 3, 3)]
FACTORS = ["normal", "heavy tails", "uneven rows", "uneven rows and columns"]

cases = st.tuples(
    st.sampled_from(SHAPES),
    st.sampled_from(FACTORS),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
)


def plant(shape, factors, rank, seed, noise=0.0):
    """A matrix of a known rank and unit variance, with noise of a share of that."""
    rng = np.random.default_rng(seed)
    rows, columns = shape[0], int(np.prod(shape[1:]))
    left, right = rng.normal(size=(rows, rank)), rng.normal(size=(rank, columns))
    if factors == "heavy tails":
        left, right = (rng.standard_t(3, size=side.shape) for side in (left, right))
    if factors.startswith("uneven rows"):
        left *= np.exp(rng.normal(size=(rows, 1)))
    if factors.endswith("columns"):
        right *= np.exp(rng.normal(size=(1, columns)))
    matrix = left @ right
    matrix = matrix / matrix.std() + noise * rng.normal(size=(rows, columns))
    return torch.from_numpy(matrix).reshape(shape)


def find_rank(weight):
    return factorise(weight)[1].rank


@pytest.mark.parametrize("dtype", FLOAT8 + WIDER, ids=str)
@given(case=cases)
@settings(max_examples=40, derandomize=True)
def test_rounding_a_matrix_of_low_rank_adds_no_direction(dtype, case):
    shape, factors, rank, seed = case
    stored = plant(shape, factors, rank, seed).to(dtype)
    if stored.double().isfinite().all():
        assert find_rank(stored) <= rank
        if dtype in WIDER:  # float8 hides the weakest directions
            assert find_rank(stored) == rank


@pytest.mark.parametrize("dtype", WIDER, ids=str)
@pytest.mark.parametrize("noise", [0.001, 0.005, 0.01, 0.02, 0.05, 0.1])
@given(case=cases)
@settings(max_examples=15, derandomize=True)
def test_storing_low_rank_and_noise_keeps_the_rank(dtype, noise, case):
    shape, factors, rank, seed = case
    matrix = plant(shape, factors, rank, seed, noise)
    if find_rank(matrix) == rank:
        part = factorise(matrix.to(dtype))[1]
        assert part.rank == rank
        assert part.noise_variance > 0


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
@given(shape=st.sampled_from(SHAPES), rank=st.integers(2, 4), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, derandomize=True)
def test_float8_adds_no_direction_to_noise_above_its_rounding(dtype, noise, shape, rank, seed):
    matrix = plant(shape, "uneven rows", rank, seed, noise)
    stored = matrix.to(dtype)
    if find_rank(matrix) == rank and stored.double().isfinite().all():
        part = factorise(stored)[1]
        assert part.rank <= rank
        assert part.noise_variance > 0


def test_noise_beside_coarse_rounding_stays_noise():
    # Two percent of noise, a little less than the rounding errors of float8.
    for seed in range(20):
        matrix = plant((64, 128), "normal", 6, seed, noise=0.02)
        part = factorise(matrix.to(torch.float8_e4m3fn))[1]
        assert part.rank == 6
        assert part.noise_variance > 0


@pytest.mark.parametrize("dtype", FLOAT8 + WIDER, ids=str)
@pytest.mark.parametrize("scale", [0.02, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_stored_noise_has_rank_zero(dtype, scale, shape):
    assert find_rank((scale * torch.randn(shape)).to(dtype)) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_dead_rows_do_not_hide_that_the_rest_is_rounding(dtype):
    weight = plant((40, 90), "uneven rows", 3, seed=1)
    weight[::2] = 0
    assert find_rank(weight.to(dtype)) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_stored_type_counts_not_the_type_of_the_copy(dtype):
    rounded = plant((40, 90), "uneven rows", 3, seed=1).to(dtype)
    assert factorise(rounded.double(), StoredType.from_dtype(dtype))[1].rank == 3
    assert factorise(rounded.double())[1].rank > 3  # as numbers of float64 they are no rounding


def test_numbers_below_the_normal_ones_are_rounded_to_equal_steps():
    weight = 2.0**-15 * plant((60, 90), "uneven rows", 3, seed=2)
    assert find_rank(weight.to(torch.float16)) <= 3


def test_ranks_of_real_networks_survive_sixteen_bits(zoo):
    compared = 0
    for file in sorted(zoo.glob("*/*.npz"))[::6]:
        with np.load(file) as arrays:
            weights = [torch.from_numpy(arrays[name]).float() for name in arrays.files]
        for weight in weights:
            if weight.ndim >= 2 and weight.shape[0] > 1 and weight.numel() > weight.shape[0]:
                expected = find_rank(weight)
                assert find_rank(weight.to(torch.bfloat16)) == expected
                assert find_rank(weight.to(torch.float16)) == expected
                compared += 1
    assert compared > 100


MERGED = [(torch.bfloat16, 0.1), (torch.float16, 0.01), (torch.float32, 0.001)]


@pytest.mark.parametrize(("dtype", "size"), MERGED, ids=str)
@pytest.mark.parametrize("shape", [(96, 200), (200, 96)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_rounding_of_both_sides_adds_no_direction_to_a_difference(dtype, size, shape, seed):
    torch.manual_seed(seed)
    base = torch.randn(shape, dtype=torch.float64) * torch.randn(shape[0], 1).exp()
    base[3] = 0.0
    base = base.to(dtype)
    update = plant(shape, "normal", 5, seed)
    tuned = (base.double() + size * update).to(dtype)
    change, stored = tuned.double() - base.double(), StoredType.from_dtype(dtype)
    assert find_rank(change) > 5  # the errors are uneven, since the numbers are
    assert factorise(change, stored, rounded=tuned)[1].rank == 5


def test_a_difference_of_few_rows_has_their_rank():
    base = torch.randn(80, 60).exp().bfloat16()
    tuned = base.clone()
    tuned[::4] += plant((20, 60), "uneven rows", 3, 0).bfloat16()
    change = tuned.double() - base.double()
    assert factorise(change, StoredType.from_dtype(base.dtype), rounded=tuned)[1].rank == 3
