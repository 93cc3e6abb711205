import json
import math

import pytest
import torch
from torch import nn

import rankwise
from rankwise.study.zoo.scores import SCORES


@pytest.fixture
def network():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(8, 32, 3),
        nn.BatchNorm2d(32),
        nn.Conv2d(32, 24, 1),
        nn.Flatten(),
        nn.Linear(96, 20),
    )
    with torch.no_grad():
        net[0].weight.add_(2 * torch.randn(32, 1, 1, 1) * torch.randn(1, 8, 3, 3))
        net[4].weight.add_(torch.randn(20, 3) @ torch.randn(3, 96))
    return net


def test_stable_rank_is_weighted_by_the_width_of_every_unfolding(network):
    figures = rankwise.probe(network).figures
    modes = [mode for layer in rankwise.probe(network).probed for mode in layer.modes]
    assert [mode.rows for mode in modes] == [8, 32, 24, 24, 20]  # a 1×1 convolution counts twice
    expected = sum(mode.rows * mode.stable_rank for mode in modes) / 108
    assert figures.stable_rank_by_width == pytest.approx(expected, abs=1e-15)
    assert figures.stable_rank_by_width > 0


def test_total_rank_counts_a_layer_by_the_mean_over_its_unfoldings(network):
    result = rankwise.probe(network)
    assert result.figures.total_rank == sum(layer.rank for layer in result.probed)
    conv = result["0.weight"]
    assert conv.rank == sum(mode.rank for mode in conv.modes) / 2


def test_signal_energy_is_that_of_all_low_rank_parts_together(network):
    conv, linear = (network[i].weight.detach().double() for i in (0, 4))
    result = rankwise.probe({"conv": conv, "linear": linear})

    def measure_energy(matrix):
        return float(rankwise.low_rank(matrix).square().sum())

    kept = sum(measure_energy(rankwise.unfold(conv, axis)) for axis in (0, 1)) / 2
    kept += measure_energy(linear)
    total = float(conv.square().sum() + linear.square().sum())
    assert result.figures.signal_energy == pytest.approx(kept / total, rel=1e-6)


def test_figures_do_not_depend_on_the_scale_even_of_huge_weights(network):
    def measure(scale):
        weight = network[4].weight.detach().double() * scale
        return rankwise.probe({"large": weight, "small": weight / 3}).figures

    huge, tiny, usual = measure(1e300), measure(1e-290), measure(1.0)
    for figures in (huge, tiny):
        assert figures.signal_energy == pytest.approx(usual.signal_energy, rel=1e-9)
        assert figures.stable_rank_by_width == pytest.approx(usual.stable_rank_by_width, rel=1e-9)
        assert figures.total_rank == usual.total_rank


def test_parameters_and_coverage_count_biases_and_norms(network):
    figures = rankwise.probe(network).figures
    buffers = sum(buffer.numel() for buffer in network.buffers())
    assert figures.parameters == sum(p.numel() for p in network.parameters()) + buffers
    weights = sum(p.numel() for p in network.parameters() if p.ndim > 1)
    assert figures.coverage == weights / figures.parameters


def test_layers_that_differ_from_random_are_counted_among_those_that_can_be_judged(network):
    small = nn.Linear(8, 8)
    figures = rankwise.probe(nn.Sequential(network, small)).figures
    assert (figures.differing, figures.judged, figures.too_small) == (2, 3, 1)


def test_nothing_probed_has_no_figures():
    figures = rankwise.probe({"bias": torch.ones(3)}).figures
    assert (figures.signal_energy, figures.stable_rank_by_width, figures.total_rank) == (None,) * 3
    assert (figures.quality, figures.coverage, figures.parameters) == (None, 0.0, 3)


def test_zeros_have_no_energy_to_share():
    figures = rankwise.probe({"fc.weight": torch.zeros(4, 5)}).figures
    assert figures.signal_energy is None
    assert (figures.total_rank, figures.stable_rank_by_width) == (0.0, 0.0)


def test_figures_are_saved_with_the_probe(network):
    result = rankwise.probe(network)
    saved = json.loads(result.to_json())
    assert {name: saved[name] for name in result.figures.to_dict()} == result.figures.to_dict()
    assert rankwise.Probe.from_json(result.to_json()).figures == result.figures


def test_the_study_ranks_networks_by_the_same_figure(network):
    result = rankwise.probe(network)
    score = SCORES["rank_by_width"].compute(result)
    assert score == pytest.approx(result.figures.stable_rank_by_width, abs=1e-15)
    assert math.isfinite(score)
