"""Tensors of all types, shapes and places: what is checked, what is skipped, how serious it is."""

import pytest
import torch
from torch import nn

import rankwise
from tests.checks.networks import plant

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def list_findings(target, **options):
    return [(f.kind, f.severity.value, f.layer) for f in rankwise.check(target, **options)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, *FLOAT8])
def test_all_floating_types_are_checked(dtype):
    healthy = plant(64, 64).to(dtype)
    result = rankwise.check({"fc.weight": healthy})
    assert not list(result)
    assert result.probe.layers[0].verdict == "differs from random"
    broken = healthy.clone()
    broken[1, 2] = torch.nan
    assert list_findings({"fc.weight": broken}) == [("not-finite", "error", "fc.weight")]


@pytest.mark.parametrize("name", ["fc.bias", "bn.running_var", "scale"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_vectors_and_scalars_must_be_finite(name, value):
    shape = () if name == "scale" else (32,)
    weights = {"fc.weight": plant(32, 32), name: torch.full(shape, value)}
    assert list_findings(weights) == [("not-finite", "error", name)]


def test_minus_infinity_is_a_note_in_a_mask_and_a_warning_among_numbers():
    mask = torch.full((32, 32), -torch.inf).triu(1)
    weights = {"fc.weight": plant(32, 32), "attn.mask": mask, "row": mask[0]}
    assert {finding[:2] for finding in list_findings(weights)} == {("not-finite", "note")}
    weights = {"fc.weight": plant(32, 32), "scores": mask + torch.randn(32, 32)}
    assert list_findings(weights) == [("not-finite", "warning", "scores")]
    mask[3, 4] = torch.nan
    assert ("not-finite", "error", "mask") in list_findings({"mask": mask})


def test_zeros_in_all_layers_of_a_kind_are_a_warning():
    weights = {f"{i}.weight": plant(32, 48, seed=i) for i in range(4)}
    zeros = {f"{i}.lora_b.weight": torch.zeros(32, 32) for i in range(4)}
    assert {finding[:2] for finding in list_findings(weights | zeros)} == {("all-zero", "warning")}


def test_what_holds_no_weights_is_skipped():
    weights = {
        "fc.weight": plant(32, 32),
        "none.weight": torch.zeros(0, 32),
        "empty": torch.zeros(0),
        "scalar": torch.tensor(1.0),
        "steps": torch.zeros(8, 8, dtype=torch.int64),
        "flags": torch.zeros(8, 8, dtype=torch.bool),
    }
    assert not list_findings(weights)
    assert not list_findings({"fc.weight": plant(64, 64), "freqs": torch.zeros(4, 4) + 0j})


def test_dead_filters_run_along_the_output_axis_of_a_transposed_convolution():
    layer = nn.ConvTranspose2d(64, 32, 3)
    with torch.no_grad():
        layer.weight.copy_(plant(64, 32, 3, 3))
        layer.weight[:, :20] = 0
    (finding,) = rankwise.check(nn.Sequential(layer)).select("error")
    assert finding.kind == "dead-filters"
    assert (finding.figures["dead"], finding.figures["filters"]) == (20, 32)
    with torch.no_grad():
        layer.weight.copy_(plant(64, 32, 3, 3))
        layer.weight[:40] = 0
    (finding,) = rankwise.check(nn.Sequential(layer)).findings
    assert finding.kind == "dead-inputs"


@pytest.mark.parametrize(
    ("dead", "severity"), [(1, "note"), (10, "warning"), (40, "error"), (63, "error")]
)
def test_dead_filters_are_graded_by_their_share(dead, severity):
    weight = plant(64, 64)
    weight[:dead] = 0
    found = [row for row in list_findings({"fc.weight": weight}) if row[0] == "dead-filters"]
    assert found == [("dead-filters", severity, "fc.weight")]


def test_dead_filters_in_many_layers_or_beside_pruned_weights_are_a_warning():
    pruned = plant(64, 64)
    pruned[:40] = 0
    pruned[torch.rand(64, 64) < 0.8] = 0
    assert ("dead-filters", "warning", "fc.weight") in list_findings({"fc.weight": pruned})
    weights = {f"{i}.weight": plant(64, 64, seed=i) for i in range(4)}
    for weight in weights.values():
        weight[:40] = 0
    assert {finding[:2] for finding in list_findings(weights)} == {("dead-filters", "warning")}


def test_rows_of_an_embedding_may_be_dead_or_copies():
    weight = plant(64, 64)
    weight[:40] = 0
    weight[50:60] = weight[50]
    found = list_findings({"embed_tokens.weight": weight})
    assert {kind for kind, _, _ in found} >= {"dead-filters", "identical-filters"}
    assert {severity for _, severity, _ in found} == {"note"}


def test_near_copies_count_and_scaled_ones_too():
    weight = plant(64, 64)
    weight[32:] = 3 * weight[:32] * (1 + 1e-4 * torch.randn(32, 64))
    (finding,) = rankwise.check({"fc.weight": weight}).select("error")
    assert (finding.kind, finding.figures["copies"]) == ("identical-filters", 32)


@pytest.mark.parametrize("width", [4, 15])
def test_narrow_layers_are_not_judged(width):
    result = rankwise.check({"fc.weight": torch.randn(64, width)})
    assert not list(result)
    assert "1 too small to tell" in result.summary()


def test_a_lone_layer_that_looks_random_is_a_note():
    assert list_findings({"fc.weight": torch.randn(64, 64)}) == [
        ("looks-untrained", "note", "fc.weight")
    ]


def test_a_narrow_sibling_that_looks_random_is_a_warning():
    weights = {f"{i}.weight": plant(24, 200, seed=i, strength=4.0) for i in range(4)}
    weights["1.weight"] = torch.randn(24, 200) * weights["1.weight"].std()
    assert list_findings(weights) == [("looks-untrained", "warning", "1.weight")]


def test_a_sibling_with_heavier_tails_than_an_initialisation_is_a_note():
    weights = {f"{i}.weight": plant(64, 64, seed=i) for i in range(4)}
    heavy = torch.randn(64, 64) * torch.randn(64, 64).exp()
    weights["1.weight"] = heavy / heavy.std() * weights["1.weight"].std()
    assert ("looks-untrained", "note", "1.weight") in list_findings(weights)


def test_a_dominant_number_of_a_bias():
    bias = torch.linspace(-1, 1, 32)
    bias[3] = 2.0**100
    weights = {"fc.weight": plant(32, 32), "fc.bias": bias}
    assert list_findings(weights) == [("dominant-entry", "error", "fc.bias")]


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_findings_do_not_depend_on_the_scale(scale):
    weight = plant(64, 64).double()
    assert not list_findings({"fc.weight": scale * weight})
    weight[:40] = 0
    assert list_findings({"fc.weight": scale * weight}) == [("dead-filters", "error", "fc.weight")]


def test_siblings_of_any_scale_can_be_compared():
    weights = {f"{i}.weight": 1e-300 * plant(32, 32, seed=i).double() for i in range(4)}
    weights["1.weight"] *= 1e300
    weights["1.weight"] *= 1e300
    result = rankwise.check(weights)
    assert ("scale-outlier", "1.weight") in [(f.kind, f.layer) for f in result.select("error")]
    assert result.to_json()


def test_tied_weights_are_checked_once():
    weight = torch.zeros(32, 32)
    assert list_findings({"a.weight": weight, "b.weight": weight}) == [
        ("all-zero", "error", "a.weight")
    ]


def test_the_default_device_does_not_matter():
    weights = {"fc.weight": plant(64, 100), "fc.bias": torch.ones(64)}
    with torch.device("meta"):
        result = rankwise.check(weights)
    assert not list(result)
    assert result.probe.layers[0].verdict == "differs from random"


def test_a_real_network_has_no_errors(zoo):
    path = next((zoo / "cifar_resnet").glob("*.npz"), None) or next(zoo.rglob("*.npz"))
    result = rankwise.check(path)
    assert not result.has_errors
    assert result.count_verdicts()["differs from random"] > 0


@pytest.mark.parametrize("shape", [(10, 84), (64, 64), (300,)])
def test_a_flipped_exponent_bit_is_one_error_at_any_width(shape):
    weights = {f"layers.{i}.weight": plant(*shape, seed=i) for i in range(4)}
    weights["layers.2.weight"].view(-1).view(torch.int32)[7] ^= 1 << 30
    errors = rankwise.check(weights).select("error")
    assert [(finding.kind, finding.layer) for finding in errors] == [
        ("dominant-entry", "layers.2.weight")
    ]


def test_of_hundreds_of_siblings_one_that_looks_random_is_found():
    weights = {f"experts.{i}.weight": plant(32, 40, seed=i) for i in range(300)}
    weights["experts.123.weight"] = torch.randn(32, 40, generator=torch.Generator().manual_seed(0))
    errors = rankwise.check(weights).select("error")
    assert [(finding.kind, finding.layer) for finding in errors] == [
        ("looks-untrained", "experts.123.weight")
    ]


def test_metrics_of_the_largest_numbers_do_not_overflow():
    (row,) = rankwise.check({"conv.weight": plant(32, 16, 3, 3).double() * 1e300}).probe.probed
    assert row.is_probed
