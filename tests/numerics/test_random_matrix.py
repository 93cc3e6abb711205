import numpy as np
import pytest
import torch
from torch import nn

import rankwise
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


@pytest.fixture
def found():
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Conv2d(32, 32, 1), nn.Linear(64, 40))
    with torch.no_grad():
        model[2].weight.add_(torch.randn(40, 5) @ torch.randn(5, 64))
    return rankwise.probe(model, spectra=True)


def test_random_layers_are_those_of_a_fresh_initialisation(found):
    drawn = found.at_random()
    for layer, before in zip(drawn, found, strict=True):
        assert (layer.name, layer.shape, layer.status) == (before.name, before.shape, before.status)
    assert drawn["2.weight"].rank == 0
    assert found["2.weight"].rank == 5
    true = rankwise.probe({"w": torch.randn(40, 64)}).layers[0]
    assert drawn["2.weight"].effective_rank == pytest.approx(true.effective_rank, rel=0.05)


def test_every_spectrum_has_the_layers_own_norm(found):
    for layer, before in zip(found.at_random().probed, found.probed, strict=True):
        assert layer.frobenius_norm == before.frobenius_norm
        for mode in layer.modes:
            norm = np.linalg.norm(mode.spectrum.values)
            assert norm == pytest.approx(before.frobenius_norm)
            assert mode.spectral_norm == mode.spectrum.values[0]


def test_a_seed_gives_one_draw(found):
    assert found.at_random(3) == found.at_random(3)
    assert found.at_random(3).probed != found.at_random(4).probed
    with pytest.raises(ArgumentError, match="seed of 0 or more"):
        found.at_random(-1)


def test_without_spectra_there_are_none_at_random():
    drawn = rankwise.probe({"w": torch.randn(8, 9)}).at_random()
    assert drawn.layers[0].modes[0].spectrum is None


def test_p_is_kept():
    weights = {"w": torch.randn(30, 3) @ torch.randn(3, 60)}
    assert rankwise.probe(weights, p=1).at_random().p == 1


def test_what_was_not_probed_stays_and_zeros_get_a_scale():
    weights = {"bad": torch.full((4, 4), torch.nan), "zero": torch.zeros(5, 6), "b": torch.ones(3)}
    found = rankwise.probe(weights)
    drawn = found.at_random()
    assert drawn["bad"] == found["bad"]
    assert drawn["b"] == found["b"]
    assert drawn["zero"].frobenius_norm == 1
    assert drawn["zero"].reason == ""


def test_the_largest_norms_stay_finite():
    weights = {"w": torch.full((4, 6), 1e300, dtype=torch.float64)}
    drawn = rankwise.probe(weights, spectra=True).at_random()
    assert rankwise.Probe.from_json(drawn.to_json()) == drawn
