import numpy as np
import pytest
import torch
from torch import nn

import rankwise
from rankwise import ArgumentError


@pytest.fixture
def result():
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Conv2d(32, 32, 1), nn.Linear(64, 40))
    with torch.no_grad():
        model[2].weight.add_(torch.randn(40, 5) @ torch.randn(5, 64))
    return rankwise.probe(model, spectra=True)


def test_random_layers_are_those_of_a_fresh_initialisation(result):
    drawn = result.at_random()
    for layer, before in zip(drawn, result, strict=True):
        assert (layer.name, layer.shape, layer.status) == (before.name, before.shape, before.status)
    assert drawn["2.weight"].rank == 0
    assert result["2.weight"].rank == 5
    true = rankwise.probe({"w": torch.randn(40, 64)}).layers[0]
    assert drawn["2.weight"].effective_rank == pytest.approx(true.effective_rank, rel=0.05)


def test_every_spectrum_has_the_layers_own_norm(result):
    for layer, before in zip(result.at_random().probed, result.probed, strict=True):
        assert layer.frobenius_norm == before.frobenius_norm
        for mode in layer.modes:
            norm = np.linalg.norm(mode.spectrum.values)
            assert norm == pytest.approx(before.frobenius_norm)
            assert mode.spectral_norm == mode.spectrum.values[0]


def test_a_seed_gives_one_draw(result):
    assert result.at_random(3) == result.at_random(3)
    assert result.at_random(3).probed != result.at_random(4).probed
    with pytest.raises(ArgumentError, match="seed of 0 or more"):
        result.at_random(-1)


def test_without_spectra_there_are_none_at_random():
    drawn = rankwise.probe({"w": torch.randn(8, 9)}).at_random()
    assert drawn.layers[0].modes[0].spectrum is None


def test_p_is_kept():
    weights = {"w": torch.randn(30, 3) @ torch.randn(3, 60)}
    assert rankwise.probe(weights, p=1).at_random().p == 1


def test_what_was_not_probed_stays_and_zeros_get_a_scale():
    weights = {"bad": torch.full((4, 4), torch.nan), "zero": torch.zeros(5, 6), "b": torch.ones(3)}
    result = rankwise.probe(weights)
    drawn = result.at_random()
    assert drawn["bad"] == result["bad"]
    assert drawn["b"] == result["b"]
    assert drawn["zero"].frobenius_norm == 1
    assert drawn["zero"].reason == ""


def test_the_largest_norms_stay_finite():
    weights = {"w": torch.full((4, 6), 1e300, dtype=torch.float64)}
    drawn = rankwise.probe(weights, spectra=True).at_random()
    assert rankwise.Probe.from_json(drawn.to_json()) == drawn
