import numpy as np
import pytest

from rankwise import ArgumentError
from rankwise.numerics import random_matrix
from rankwise.numerics.random_matrix import draw_gaussian_spectrum


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (6, 40), (30, 31)])
def test_the_spectra_have_the_law_of_gaussian_matrices(rows, columns):
    draws = 400
    ours = np.array([draw_gaussian_spectrum(rows, columns, seed) for seed in range(draws)])
    generator = np.random.default_rng(0)
    true = np.linalg.svd(generator.standard_normal((draws, rows, columns)), compute_uv=False)
    error = np.sqrt((ours.var(0) + true.var(0)) / draws)
    assert np.all(np.abs(ours.mean(0) - true.mean(0)) < 5 * error)
    assert ours.std(0) == pytest.approx(true.std(0), rel=0.25)


def test_large_spectra_follow_their_limit(monkeypatch):
    drawn = [draw_gaussian_spectrum(*sides, seed=0) for sides in ((300, 300), (300, 1200))]
    monkeypatch.setattr(random_matrix, "_MAX_DRAWN_ROWS", 100)
    limits = [draw_gaussian_spectrum(*sides, seed=0) for sides in ((300, 300), (300, 1200))]
    for values, limit in zip(drawn, limits, strict=True):
        assert np.abs(values - limit).max() < 0.02 * values[0]
        assert np.linalg.norm(limit) == pytest.approx(np.linalg.norm(values), rel=0.01)


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (5, 4), (1 << 21, 1 << 21)])
def test_sides_that_no_matrix_has_are_refused(rows, columns):
    with pytest.raises(ArgumentError, match="0 < rows <= columns"):
        draw_gaussian_spectrum(rows, columns, seed=0)
