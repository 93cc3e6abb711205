"""Scores are what their formulas say, and none calls a layer of rank 1 a well-learned one."""

import math

import numpy as np
import pytest
import torch

import rankwise
from rankwise.study.zoo.networks import Network
from rankwise.study.zoo.scores import CANDIDATES, REFERENCES, SCORES, measure_networks


def planted(rows, columns, rank, *, strength=1.0, seed=0):
    """Noise, and as many directions of one strength."""
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, columns, generator=random)
    left, _ = torch.linalg.qr(torch.randn(rows, max(rank, 1), generator=random))
    right, _ = torch.linalg.qr(torch.randn(columns, max(rank, 1), generator=random))
    return noise + (30 * strength * left @ right.T if rank else 0)


def probed(*weights):
    layers = {f"{number}.weight": weight for number, weight in enumerate(weights)}
    return rankwise.probe(layers, spectra=True)


@pytest.fixture
def found():
    """Layers of rank 0, 1 and 4, and of unlike widths."""
    probe = probed(planted(16, 40, 0), planted(8, 40, 1), planted(32, 40, 4))
    assert [mode.rank for mode in [mode for layer in probe.layers for mode in layer.modes]] == [
        0,
        1,
        4,
    ]
    return probe


def of(name, probe):
    return SCORES[name].compute(probe)


def test_there_are_at_most_eight_candidates_and_none_is_a_reference():
    assert len(CANDIDATES) <= 8
    assert not set(REFERENCES) & {score.name for score in CANDIDATES}
    assert set(REFERENCES) <= set(SCORES)
    assert next(iter(SCORES)) == "quality"


def test_the_papers_q_is_the_probes(found):
    assert of("quality", found) == found.quality
    assert of("quality_without_empty", found) == found.network_quality(skip_empty=True)


@pytest.mark.parametrize("field", ["stable_rank", "condition", "rank_fraction", "noise_fraction"])
def test_means_are_over_layers(found, field):
    values = [getattr(layer, field) for layer in found.layers]
    assert of(field, found) == pytest.approx(sum(values) / 3)


def test_norms_and_size_are_on_a_log_scale(found):
    logs = [math.log(layer.frobenius_norm) for layer in found.layers]
    assert of("log_frobenius", found) == pytest.approx(sum(logs) / 3)
    logs = [math.log(layer.spectral_norm) for layer in found.layers]
    assert of("log_spectral", found) == pytest.approx(sum(logs) / 3)
    assert of("log_parameters", found) == math.log((16 + 8 + 32) * 40)


def test_candidates_are_what_their_formulas_say(found):
    empty, one, four = [mode for layer in found.layers for mode in layer.modes]
    assert one.quality == math.pi / 2
    assert of("rank_one_as_zero", found) == pytest.approx(four.quality / math.sqrt(3))
    assert of("two_or_more", found) == pytest.approx(four.quality)
    assert of("quality_by_width", found) == pytest.approx(four.quality * math.sqrt(32 / 56))
    assert of("quality_of_wide", found) == pytest.approx(four.quality / math.sqrt(2))
    directions = 8 * one.stable_rank + 32 * four.stable_rank
    assert of("rank_by_width", found) == pytest.approx(directions / 56)
    logs = [math.log2(1 + 8 * one.stable_rank), math.log2(1 + 32 * four.stable_rank)]
    assert of("log_directions", found) == pytest.approx(sum(logs) / 3)
    signal = 8 * (1 - one.noise_fraction) + 32 * (1 - four.noise_fraction)
    assert of("signal_by_width", found) == pytest.approx(signal / 56)
    ratios = [mode.spectrum.values[0] / mode.spectrum.threshold for mode in (empty, one, four)]
    assert of("prominence", found) == pytest.approx(sum(map(math.log, ratios)) / 3)


def test_a_layer_of_rank_one_lifts_q_to_its_maximum_and_no_candidate_so():
    one, four = probed(planted(32, 40, 1)), probed(planted(32, 40, 4))
    assert of("quality", one) == math.pi / 2 > of("quality", four)
    for score in CANDIDATES:
        if score.name not in ("two_or_more", "prominence"):
            assert score.compute(one) < score.compute(four), score.name
    assert of("two_or_more", one) is None
    assert of("prominence", one) < of("prominence", probed(planted(32, 40, 4, strength=2)))


def test_prominence_tells_noise_from_a_weak_and_a_strong_direction():
    noise, weak, strong = (
        of("prominence", probed(planted(32, 40, rank, strength=strength)))
        for rank, strength in ((0, 1), (1, 0.7), (1, 3))
    )
    assert noise < 0 < weak < strong


def test_prominence_does_not_depend_on_scale():
    weight = planted(32, 40, 3)
    assert of("prominence", probed(weight)) == pytest.approx(of("prominence", probed(1e4 * weight)))


@pytest.mark.parametrize("score", SCORES.values(), ids=lambda score: score.name)
def test_zeros_and_nothing_probed_have_a_defined_answer(score):
    for probe in (probed(torch.zeros(8, 8)), probed(torch.zeros(3))):
        value = score.compute(probe)
        assert value is None or math.isfinite(value)


def network(path, **changes):
    fields = {"accuracy": 0.5, "train_accuracy": None, "family": "f", "group": path.name}
    return Network(path.name, path, **{**fields, **changes})


@pytest.fixture
def files(tmp_path):
    random = np.random.default_rng(0)
    strong = np.outer(random.normal(size=12), random.normal(size=30))
    np.savez(
        tmp_path / "good.npz",
        **{"a.weight": strong + 0.05 * random.normal(size=(12, 30)), "a.bias": np.zeros(12)},
        **{"b.weight": random.normal(size=(8, 20))},
    )
    np.savez(tmp_path / "biases.npz", bias=np.zeros(4))
    np.savez(tmp_path / "objects.npz", weight=np.array([{"run": "me"}], dtype=object))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not a zip")
    return tmp_path


def test_a_network_has_all_scores_and_the_make_up_of_its_layers(files):
    (found,), skipped = measure_networks([network(files / "good.npz")])
    assert skipped == []
    assert set(found.scores) == set(SCORES)
    assert found.shapes == (("a.weight", (12, 30)), ("b.weight", (8, 20)))
    assert set(found.qualities) == {"a.weight", "b.weight"}
    assert (found.rank_one, found.empty, found.modes) == (1, 1, 2)
    assert (found.rank_one_widths, found.rank_one_share) == ((12,), 0.5)


def test_what_cannot_be_measured_is_named_and_the_others_go_on(files):
    names = ["broken.npz", "objects.npz", "biases.npz", "gone.npz", "good.npz"]
    seen = []
    found, skipped = measure_networks([network(files / name) for name in names], seen.append)
    assert [one.network.name for one in found] == ["good.npz"]
    assert [one.name for one in skipped] == names[:4]
    assert all(one.reason for one in skipped)
    assert skipped[2].reason == "holds no layer that can be probed"
    assert [(step.done, step.total, step.name) for step in seen] == [
        (number, 5, name) for number, name in enumerate(names, 1)
    ]
