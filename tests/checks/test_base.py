"""A network beside the one that it was made from."""

import json

import pytest
import torch

import rankwise
from rankwise.errors import CheckpointError, ProbeMismatchError
from tests.checks.networks import plant, plant_network, randomise, save_damaged, tune

LAYER = "blocks.0.mlp.up.weight"


@pytest.fixture(scope="module")
def base():
    return plant_network(blocks=2)


def find(result, kind):
    return [finding for finding in result if finding.kind == kind]


def test_a_copy_of_the_base_is_a_warning(base):
    (finding,) = rankwise.check(base, base)
    assert (finding.kind, finding.severity, finding.layer) == ("unchanged", "warning", None)
    assert finding.figures["count"] == finding.figures["layers"] == 10


def test_frozen_layers_are_a_note_that_names_them(base):
    frozen = {name: tensor for name, tensor in base.items() if name.startswith("blocks.0.")}
    (finding,) = rankwise.check(tune(base) | frozen, base)
    assert (finding.kind, finding.severity) == ("unchanged", "note")
    assert finding.figures["names"].split("\n") == [n for n in frozen if n.endswith(".weight")]


def test_the_layer_that_changed_most_is_named_with_its_figures(base):
    (finding,) = rankwise.check(tune(base) | {LAYER: 2 * base[LAYER]}, base)
    assert (finding.kind, finding.layer) == ("changed-most", LAYER)
    assert finding.figures["change"] == pytest.approx(1.0)
    assert finding.figures["cosine"] == pytest.approx(1.0)
    assert finding.figures["median_change"] < 0.02


def test_a_head_that_starts_at_zero_has_no_measure_of_change(base):
    zero = base | {"head.weight": torch.zeros(20, 64)}
    for others in (base, tune(base)):
        result = rankwise.check(others | {"head.weight": base["head.weight"]}, zero)
        assert not find(result, "changed-most")
        assert json.loads(result.to_json())


def test_a_layer_that_was_initialised_anew_is_an_error(base):
    result = rankwise.check(tune(base) | {LAYER: randomise(base[LAYER])}, base)
    assert [(f.kind, f.layer) for f in result.select("error")] == [("looks-untrained", LAYER)]


def test_a_layer_that_looked_random_before_is_no_error(base):
    random = base | {LAYER: randomise(base[LAYER])}
    assert not rankwise.check(tune(random), random).has_errors


def test_the_stable_rank_falls_against_the_base():
    weight = plant(64, 64)
    left, right = torch.randn(64, 1), torch.randn(1, 64)
    spiked = weight + weight.norm() / 64 * 3 * left @ right
    (finding,) = find(rankwise.check({"w": spiked}, {"w": weight}), "rank-collapse")
    assert finding.severity == "warning"
    assert finding.figures["base_stable_rank"] > 4 * finding.figures["stable_rank"]


def test_swapped_layers_are_errors_that_name_each_other(base):
    one, two = "blocks.0.attn.o.weight", "blocks.1.attn.o.weight"
    result = rankwise.check(base | {one: base[two], two: base[one]}, base)
    found = {f.layer: f.figures["other"] for f in find(result, "swapped-layer")}
    assert found == {one: two, two: one}


def test_layers_that_are_equal_in_the_base_are_not_swapped(base):
    one, two = "blocks.0.attn.o.weight", "blocks.1.attn.o.weight"
    shared = base | {two: base[one].clone()}
    assert not find(rankwise.check(shared, shared), "swapped-layer")


def test_missing_added_reshaped_and_recast_tensors(base):
    changed = {name: tensor for name, tensor in tune(base).items() if name != "head.weight"}
    changed["classifier.weight"] = plant(10, 64)
    changed["embed.weight"] = plant(100, 64)
    changed[LAYER] = changed[LAYER].bfloat16()
    result = rankwise.check(changed, base)
    assert {f.kind: (f.severity.value, f.layer) for f in result} == {
        "missing-tensor": ("warning", None),
        "added-tensor": ("warning", None),
        "changed-shape": ("warning", "embed.weight"),
        "changed-dtype": ("note", None),
    }
    assert find(result, "missing-tensor")[0].figures["names"] == "head.weight"
    assert find(result, "added-tensor")[0].figures["names"] == "classifier.weight"
    assert find(result, "changed-dtype")[0].figures["names"] == LAYER


def test_two_networks_without_a_common_name_can_not_be_compared(base):
    with pytest.raises(ProbeMismatchError, match="no tensor of the same name"):
        rankwise.check({"other.weight": plant(32, 32)}, base)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_base_that_is_not_finite_is_compared_as_far_as_it_can_be(base, value):
    broken = base[LAYER].clone()
    broken[0, 0] = value
    result = rankwise.check(tune(base), base | {LAYER: broken})
    assert not result.has_errors
    assert json.loads(result.to_json())
    assert rankwise.check(tune(base) | {LAYER: broken}, base).to_json()


def test_a_damaged_base_can_not_be_compared_with(tmp_path):
    weights = {"a.weight": plant(32, 32), "b.weight": plant(20_000, 2)}
    path = save_damaged(tmp_path / "base.npz", weights, "b.weight")
    with pytest.raises(CheckpointError, match=r"base\.npz: can't be read"):
        rankwise.check(tune(weights), path)


def test_numbers_beyond_float32_squares_or_not_finite_spoil_no_other_comparison(base):
    changed = tune(base)
    changed["blocks.0.attn.o.weight"][0, 0] = 3e37
    changed["blocks.1.attn.o.weight"][0, 0] = float("nan")
    changed["blocks.1.attn.q.weight"] = 3 * changed["blocks.1.attn.q.weight"]
    result = rankwise.check(changed, base)
    layers = {finding.layer for finding in result if finding.kind == "changed-most"}
    assert layers == {"blocks.0.attn.o.weight", "blocks.1.attn.q.weight"}
    assert result.to_json()  # which has no way to write NaN or infinity
