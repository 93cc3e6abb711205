import numpy as np
import pytest
import torch
from scipy.linalg import svdvals

from rankwise import singular_values
from rankwise.numerics.spectrum import (
    Workspace,
    compute_gram_spectrum,
    compute_spectrum,
    convert_to_float64,
)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (7, 7), (1, 4), (4, 1), (1, 1), (64, 2000)])
@pytest.mark.parametrize("route", [compute_gram_spectrum, compute_spectrum])
def test_equals_scipy(route, shape):
    matrix = torch.randn(shape, dtype=torch.float64)
    spectrum = route(matrix)
    expected = svdvals(matrix.numpy())
    np.testing.assert_allclose(spectrum.values, expected, rtol=1e-10)
    assert spectrum.columns == max(shape)
    assert len(spectrum.values) == min(shape)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2],
)
@pytest.mark.parametrize("route", [compute_gram_spectrum, compute_spectrum])
def test_low_precision_is_upcast(route, dtype):
    matrix = torch.randn(12, 30).to(dtype)
    np.testing.assert_allclose(route(matrix).values, svdvals(matrix.double().numpy()), rtol=1e-10)


@pytest.mark.parametrize("transpose", [False, True])
def test_blocks_add_up(monkeypatch, transpose):
    monkeypatch.setattr("rankwise.numerics.spectrum.CHUNK", 8 * 20 * 7)  # seven columns at a time
    matrix = torch.randn(100, 20).T if transpose else torch.randn(20, 100)
    expected = svdvals(matrix.double().numpy())
    np.testing.assert_allclose(compute_gram_spectrum(matrix).values, expected, rtol=1e-10)


def test_layouts_do_not_matter():
    matrix = torch.randn(40, 90)[::2, 1::2]
    expected = svdvals(matrix.double().numpy())
    np.testing.assert_allclose(compute_gram_spectrum(matrix).values, expected, rtol=1e-10)


def test_gradients_and_the_matrix_stay_untouched():
    matrix = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    before = matrix.detach().clone()
    singular_values(matrix)
    compute_gram_spectrum(matrix)
    assert torch.equal(matrix, before)
    assert matrix.grad is None


def test_exact_zeros_are_exactly_zero():
    matrix = torch.randn(30, 2).double() @ torch.randn(2, 50).double()
    values = singular_values(matrix)
    assert (values[2:] == 0).all()
    assert (values[:2] > 0).all()


def test_the_fast_route_says_where_it_stops_to_resolve():
    # Two singular values 1 and 1e-6: the square root of float64's precision loses the second.
    u, _ = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64))
    matrix = u[:, :2] * torch.tensor([1.0, 1e-9], dtype=torch.float64) @ u[:, :2].T
    fast, exact = compute_gram_spectrum(matrix), compute_spectrum(matrix)
    assert fast.values[1] < fast.resolution
    assert exact.values[1] > exact.resolution
    assert exact.values[1] == pytest.approx(1e-9, rel=1e-5)


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2), (0, 3)])
def test_what_is_no_matrix_is_refused(shape):
    with pytest.raises(ValueError, match=r"Expected a .* tensor"):
        singular_values(torch.zeros(shape))


def test_integers_are_refused():
    with pytest.raises(ValueError, match=r"floating tensor .* torch\.int64"):
        singular_values(torch.zeros(2, 2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_copy_serves_both_unfoldings_of_a_convolution(dtype):
    weight = torch.randn(6, 5, 3, 2).to(dtype)
    workspace = Workspace()
    convert_to_float64(torch.full((3, 2, 9), 7.0), workspace)  # leaves something behind
    copy = convert_to_float64(weight, workspace)
    assert copy.dtype == torch.float64
    for axis in (0, 1):
        matrix = weight.double().movedim(axis, 0).flatten(1).numpy()
        values = compute_gram_spectrum(copy.movedim(axis, 0)).values
        np.testing.assert_allclose(values, svdvals(matrix), rtol=1e-10)
    assert torch.equal(copy.reshape(weight.shape), weight.double())


def test_large_convolutions_are_left_as_they_are(monkeypatch):
    monkeypatch.setattr("rankwise.numerics.spectrum.CHUNK", 8)
    weight = torch.randn(6, 5, 3, 2)
    assert convert_to_float64(weight, Workspace()) is weight


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("large", [0, 10**9])
def test_both_libraries_give_the_same_eigenvalues(monkeypatch, workers, large):
    monkeypatch.setattr("rankwise.numerics.spectrum._LARGE", large)
    matrix = torch.randn(30, 80, dtype=torch.float64)
    values = compute_gram_spectrum(matrix, Workspace(workers)).values
    np.testing.assert_allclose(values, svdvals(matrix.numpy()), rtol=1e-10)
