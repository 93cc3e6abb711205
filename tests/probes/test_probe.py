import json
import math
import sys

import pytest
import torch
from rmsgd.metrics import Metrics
from torch import nn

import rankwise
from rankwise import CheckpointError, Probe, Status


def network():
    return nn.Sequential(nn.Conv2d(16, 32, 3), nn.Conv2d(32, 32, 1), nn.Linear(64, 40))


@pytest.fixture
def result():
    model = network()
    with torch.no_grad():
        for part, rank in zip(model, (4, 6, 5), strict=True):
            weight = part.weight.view(part.weight.shape[0], -1)
            left, right = torch.randn(len(weight), rank), torch.randn(rank, weight.shape[1])
            weight.add_(left @ right)
    return rankwise.probe(model)


def test_a_layers_figures_are_means_over_its_modes(result):
    layer = result["0.weight"]
    assert [mode.mode for mode in layer.modes] == ["input", "output"]
    for name in ("rank", "stable_rank", "condition", "quality", "noise_fraction", "effective_rank"):
        values = [getattr(mode, name) for mode in layer.modes]
        assert getattr(layer, name) == pytest.approx(sum(values) / 2)


def test_pointwise_convolutions_have_one_spectrum_for_both_modes(result):
    first, second = result["1.weight"].modes
    assert (first.mode, second.mode) == ("input", "output")
    assert first.stable_rank == second.stable_rank


def test_quality_is_the_root_mean_square(result):
    q = [layer.quality for layer in result.probed]
    assert result.quality == pytest.approx(math.sqrt(sum(v * v for v in q) / len(q)))
    assert result.network_quality(squared=True) == pytest.approx(result.quality**2)


def test_the_planted_rank_is_found(result):
    assert result["2.weight"].rank == 5
    assert result["0.weight"].modes[1].rank == 4


def test_json_round_trip(result, tmp_path):
    assert Probe.from_json(result.to_json()) == result
    result.save(tmp_path / "probe.json")
    assert Probe.load(tmp_path / "probe.json") == result
    assert [file.name for file in tmp_path.iterdir()] == ["probe.json"]
    data = json.loads(result.to_json())
    assert data["quality"] == result.quality
    assert data["layers"][0]["name"] == "0.weight"


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", "[" * 100_000])
def test_other_json_is_refused(text):
    with pytest.raises(CheckpointError, match="Not a probe"):
        Probe.from_json(text)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("version",), 99),
        (("source",), None),
        (("notes",), [3]),
        (("p",), "x"),
        (("p",), float("-inf")),
        (("layers", 0, "parameters"), 10**30),
        (("layers",), [3]),
        (("layers", 0, "name"), 5),
        (("layers", 0, "status"), "fine"),
        (("layers", 0, "shape"), ["a"]),
        (("layers", 0, "parameters"), "x"),
        (("layers", 0, "reason"), None),
        (("layers", 0, "quality"), "high"),
        (("layers", 0, "quality"), float("nan")),
        (("layers", 0, "quality"), 2.0),
        (("layers", 0, "frobenius_norm"), -1.0),
        (("layers", 0, "group"), 3),
        (("layers", 0, "modes"), [{"mode": "matrix"}]),
        (("layers", 0, "modes", 0, "rank"), "x"),
    ],
)
def test_damaged_json_is_refused(result, where, value):
    data = json.loads(result.to_json())
    place = data
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    with pytest.raises(CheckpointError, match="Not a probe"):
        Probe.from_json(json.dumps(data))


def test_probes_of_another_p_are_not_compared(result):
    with pytest.raises(rankwise.ProbeMismatchError, match="p = 2, the other with p = 1"):
        result.diff(rankwise.probe(network(), p=1))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing\.json"):
        Probe.load(tmp_path / "nothing.json")


def test_a_failed_save_leaves_the_old_file(result, tmp_path, monkeypatch):
    path = tmp_path / "probe.json"
    path.write_text("old")
    monkeypatch.setattr(Probe, "to_json", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        result.save(path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("probe.json", "old")]


def test_frame(result):
    frame = result.to_frame()
    assert list(frame["name"]) == [layer.name for layer in result.layers]
    assert frame.set_index("name").loc["2.weight", "rank"] == 5


def test_prints(result):
    assert "2.weight" in str(result)
    assert max(map(len, str(result).splitlines())) <= 80
    assert "2.weight" in result._repr_html_()


@pytest.mark.parametrize(
    ("include", "exclude", "probed"),
    [
        (None, None, ["0.weight", "1.weight", "2.weight"]),
        ("0.*", None, ["0.weight"]),
        (["0.*", "2.*"], "0.weight", ["2.weight"]),
        (None, ["*"], []),
    ],
)
def test_filters(include, exclude, probed):
    result = rankwise.probe(network(), include=include, exclude=exclude)
    assert [layer.name for layer in result.probed] == probed
    assert len(result.layers) == 6
    if not probed:
        assert result.quality is None
        assert result.coverage == 0.0


@pytest.mark.parametrize("p", [0, -1, float("nan"), float("inf"), "2"])
def test_p_must_be_positive(p):
    with pytest.raises(ValueError, match="p > 0"):
        rankwise.probe({"w": torch.ones(2, 2)}, p=p)


def test_modes_must_be_known():
    with pytest.raises(ValueError, match="modes="):
        rankwise.probe({"w": torch.ones(2, 2)}, modes="all")


def test_rank_one_layers_are_flagged():
    weight = 5 * torch.randn(30, 1) @ torch.randn(1, 80) + torch.randn(30, 80)
    layer = rankwise.probe({"w": weight}).layers[0]
    assert layer.rank == 1
    assert layer.quality == math.pi / 2
    assert layer.is_rank_one
    assert "by definition" in layer.reason


def test_a_convolution_of_rank_one_in_one_unfolding_only_is_told_apart():
    torch.manual_seed(3)
    weight = torch.zeros(24, 16, 3, 3) + 0.05 * torch.randn(24, 16, 3, 3)
    weight += torch.randn(24, 1, 1, 1) * torch.randn(1, 16, 3, 3) * 0.02
    layer = rankwise.probe({"w": weight}).layers[0]
    ranks = sorted(mode.rank for mode in layer.modes)
    assert ranks == [0, 1]
    assert not layer.is_rank_one
    assert layer.reason.startswith("rank 1 in one unfolding")


def test_zeros_are_a_named_outcome():
    layer = rankwise.probe({"w": torch.zeros(30, 80)}).layers[0]
    assert (layer.rank, layer.stable_rank, layer.condition, layer.quality) == (0, 0, 1, 0)
    assert layer.reason == "all zeros"
    assert layer.is_empty


def test_one_bad_layer_spoils_nothing_else():
    model = network()
    with torch.no_grad():
        model[1].weight[3, 2] = float("nan")
    result = rankwise.probe(model)
    assert result["1.weight"].status is Status.NOT_FINITE
    assert [layer.name for layer in result.probed] == ["0.weight", "2.weight"]
    assert math.isfinite(result.quality)


def test_progress_reaches_the_end():
    seen = []
    rankwise.probe(network(), progress=seen.append)
    done = [step.done for step in seen]
    assert done == sorted(done)
    assert seen[-1].done == pytest.approx(seen[-1].total)
    assert {step.name for step in seen} == {"0.weight", "1.weight", "2.weight"}


def test_bfloat16_close_to_float32():
    model = network()
    exact = rankwise.probe(model)
    rounded = rankwise.probe(model.to(torch.bfloat16))
    assert rounded["0.weight"].dtype == "bfloat16"
    assert rounded["0.weight"].frobenius_norm == pytest.approx(
        exact["0.weight"].frobenius_norm, rel=1e-2
    )


def test_equals_the_released_packages_metrics_at_unit_scale():
    """p = 1 and rows ≤ columns: there both define the stable rank alike."""
    factors = [(torch.randn(24, 3), torch.randn(24, 3), torch.randn(3, 3, 3)) for _ in range(4)]
    weights = [
        4 * torch.einsum("or,ir,rhw->oihw", *three) + torch.randn(24, 24, 3, 3) for three in factors
    ]
    theirs = Metrics([nn.Parameter(weight) for weight in weights])
    theirs()
    ours = rankwise.probe({str(i): weight for i, weight in enumerate(weights)}, p=1)
    for layer, gain in zip(ours.layers, theirs.KG(0), strict=True):
        assert layer.stable_rank == pytest.approx(gain, rel=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_do_not_change_the_result(threads):
    model = network()
    before = torch.get_num_threads()
    expected = rankwise.probe(model)
    try:
        torch.set_num_threads(threads)
        result, again = rankwise.probe(model), rankwise.probe(model)
    finally:
        torch.set_num_threads(before)
    assert result.to_json() == again.to_json()  # to the last bit with the same threads
    for layer, same in zip(result.probed, expected.probed, strict=True):
        assert layer.rank == same.rank
        assert layer.stable_rank == pytest.approx(same.stable_rank, rel=1e-12)
        assert layer.condition == pytest.approx(same.condition, rel=1e-12)


def test_a_probe_is_a_sequence_of_its_rows():
    result = rankwise.probe(nn.Linear(8, 4))
    assert list(result) == list(result.layers)


def test_the_default_device_does_not_matter():
    torch.manual_seed(0)
    weights = {"w": torch.randn(40, 4) @ torch.randn(4, 60), "v": torch.randn(8, 4, 3, 3)}
    plain = rankwise.probe(weights)
    with torch.device("meta"):
        result = rankwise.probe(weights)
    assert [layer.quality for layer in result] == [layer.quality for layer in plain]


def test_spectra_are_what_the_metrics_rest_on(result):
    conv = torch.randn(12, 3) @ torch.randn(3, 72)
    weights = {"conv": (conv + 0.1 * torch.randn(12, 72)).view(12, 8, 3, 3)}
    layer = rankwise.probe(weights, spectra=True).layers[0]
    for mode, axis in zip(layer.modes, (1, 0), strict=True):
        values = rankwise.singular_values(rankwise.unfold(weights["conv"], axis))
        part = rankwise.evbmf(values, columns=mode.columns)
        assert mode.spectrum.values == pytest.approx(values)
        assert mode.spectrum.kept == pytest.approx(part.values)
        assert mode.spectrum.threshold == pytest.approx(part.threshold)
        assert len(mode.spectrum.kept) == mode.rank


def test_spectra_survive_json_and_stay_out_of_the_frame(tmp_path):
    kept = rankwise.probe(network(), spectra=True)
    assert Probe.from_json(kept.to_json()) == kept
    kept.save(tmp_path / "probe.json")
    assert Probe.load(tmp_path / "probe.json") == kept
    assert list(kept.to_frame().columns) == list(rankwise.probe(network()).to_frame().columns)


def test_without_spectra_nothing_is_kept_or_written(result):
    assert all(mode.spectrum is None for layer in result for mode in layer.modes)
    assert "spectrum" not in result.to_json()


@pytest.mark.parametrize(
    "weights", [torch.zeros(4, 5), torch.eye(6), torch.outer(*torch.rand(2, 9))]
)
def test_spectra_of_odd_matrices_are_finite(weights):
    kept = rankwise.probe({"w": weights}, spectra=True)
    assert len(kept.layers[0].modes[0].spectrum.values) == min(weights.shape)
    assert Probe.from_json(kept.to_json()) == kept


def test_dead_rows_report_the_threshold_that_was_used():
    weight = torch.zeros(60, 80)
    weight[:20] = torch.randn(20, 2) @ torch.randn(2, 80) + 0.1 * torch.randn(20, 80)
    spectrum = rankwise.probe({"w": weight}, spectra=True).layers[0].modes[0].spectrum
    living = rankwise.evbmf(rankwise.singular_values(weight[:20]), columns=80)
    assert len(spectrum.values) == 60
    assert spectrum.threshold == pytest.approx(living.threshold)
    assert spectrum.kept == pytest.approx(living.values)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("spectrum",), 3),
        (("spectrum",), {"values": [1.0]}),
        (("spectrum", "values"), "12"),
        (("spectrum", "values"), [None]),
        (("spectrum", "values"), [float("inf")]),
        (("spectrum", "values"), [10**400]),
        (("spectrum", "kept"), [float("nan")]),
        (("spectrum", "threshold"), "x"),
        (("rows",), 2.5),
        (("rows",), -1),
        (("rows",), 0),
        (("stable_rank",), 1.5),
        (("noise_fraction",), -0.5),
        (("mode",), 4),
        (("condition",), 10**400),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_damaged_spectra_and_modes_are_refused(where, value):
    data = json.loads(rankwise.probe({"w": torch.randn(4, 5)}, spectra=True).to_json())
    place = data["layers"][0]["modes"][0]
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    with pytest.raises(CheckpointError, match="Not a probe"):
        Probe.from_json(json.dumps(data))


@pytest.mark.parametrize("lost", ["modes", "quality", "frobenius_norm"])
def test_a_probed_layer_without_figures_is_refused(result, lost):
    data = json.loads(result.to_json())
    del data["layers"][0][lost]
    with pytest.raises(CheckpointError, match="Not a probe"):
        Probe.from_json(json.dumps(data))


def test_an_exponent_beyond_all_floats_is_refused(result):
    data = json.loads(result.to_json()) | {"p": 10**400}
    with pytest.raises(CheckpointError, match="Not a probe"):
        Probe.from_json(json.dumps(data))


def test_plots_say_what_they_show(result):
    pytest.importorskip("altair")
    assert result.plot().to_dict()["description"].endswith("of 3 layers.")
    assert result.plot("condition").to_dict()["description"].startswith("condition κ of 3 layers")
    with pytest.raises(rankwise.ArgumentError, match=r"'loss'.*quality"):
        result.plot("loss")


def test_a_spectrum_is_drawn_where_there_is_one(result):
    pytest.importorskip("altair")
    with pytest.raises(rankwise.ArgumentError, match="probe with spectra=True"):
        result.plot_spectrum("0.weight")
    kept = rankwise.probe(network(), spectra=True)
    both = kept.plot_spectrum("0.weight").to_dict()
    assert [part["title"] for part in both["vconcat"]] == [
        "by output channels",
        "by input channels",
    ]
    assert "vconcat" not in kept.plot_spectrum("2.weight").to_dict()
    with pytest.raises(rankwise.UnknownLayerError):
        kept.plot_spectrum("3.weight")


def test_a_plot_without_altair_says_what_to_install(result, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("rankwise.charts")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(rankwise, "figures", raising=False)
    monkeypatch.setitem(sys.modules, "altair", None)
    for draw in (result.plot, lambda: result.plot_spectrum("0.weight"), result.diff(result).plot):
        with pytest.raises(rankwise.MissingExtraError, match="pip install altair"):
            draw()
