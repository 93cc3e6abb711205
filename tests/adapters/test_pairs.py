"""Pairs of tensors of a base and a tuned network, and why a pair can't be compared."""

import json

import pytest
import torch
from torch import nn

import rankwise
from rankwise.adapters.pairs import PairStatus, open_pairs
from rankwise.errors import CheckpointError, NotFiniteError, ProbeMismatchError, TargetError

safetensors = pytest.importorskip("safetensors.torch")


def by_name(pairing):
    return {pair.name: pair for pair in pairing.pairs}


def test_names_are_matched_across_a_prefix_in_the_order_of_the_tuned_network():
    base = {"a.weight": torch.zeros(4, 3), "b.weight": torch.zeros(4, 3), "b.bias": torch.zeros(4)}
    tuned = {f"model.{name}": base[name] + 1 for name in reversed(base)}
    pairing = open_pairs(base, tuned)
    assert pairing.renamed_prefix == "+model."
    assert [pair.name for pair in pairing.pairs] == list(tuned)
    assert [pair.base.name for pair in pairing.pairs] == list(reversed(base))
    assert all((pair.load_change() == 1).all() for pair in pairing.comparable)
    assert (pairing.only_base, pairing.only_tuned) == ((), ())


def test_vectors_norms_and_statistics_are_pairs_too():
    old = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 1))
    new = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 1))
    pairs = by_name(open_pairs(old, new))
    assert pairs["0.weight"].form == "matrix"
    assert (
        pairs["0.bias"].form == pairs["1.weight"].form == pairs["1.running_mean"].form == "vector"
    )
    assert pairs["2.weight"].form == "other"  # a single row
    assert pairs["1.num_batches_tracked"].status is PairStatus.NOT_FLOATING
    assert pairs["0.weight"].matrix_shape == (4, 27)
    assert pairs["0.weight"].unfold(torch.zeros(4, 3, 3, 3)).shape == (4, 27)


def test_reshaped_added_and_removed_tensors_are_listed():
    base = {
        "a.weight": torch.zeros(8, 4),
        "gone.weight": torch.zeros(4, 4),
        "b.weight": torch.zeros(6, 2),
    }
    tuned = {
        "a.weight": torch.zeros(9, 4),
        "new.weight": torch.zeros(4, 4),
        "b.weight": torch.zeros(2, 6),
    }
    pairing = open_pairs(base, tuned)
    status, reason = by_name(pairing)["a.weight"].obstacle
    assert (status, reason) == (PairStatus.RESHAPED, "8×4 and 9×4")
    assert "transposed" in by_name(pairing)["b.weight"].obstacle[1]
    assert [w.name for w in pairing.only_base] == ["gone.weight"]
    assert [w.name for w in pairing.only_tuned] == ["new.weight"]
    assert pairing.comparable == ()


class Tied(nn.Module):
    def __init__(self, *, tied=True):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        if tied:
            self.head.weight = self.embed.weight


def test_tensors_that_are_tied_on_both_sides_are_compared_once():
    pairs = by_name(open_pairs(Tied(), Tied()))
    assert pairs["embed.weight"].is_comparable
    assert pairs["head.weight"].obstacle == (PairStatus.TIED, "tied to embed.weight")


def test_a_tensor_that_was_tied_in_the_base_alone_is_compared():
    pairs = by_name(open_pairs(Tied(), Tied(tied=False)))
    assert pairs["head.weight"].is_comparable


def test_types_may_differ_and_the_difference_is_exact():
    base = torch.randn(16, 8).bfloat16()
    tuned = base.float() + 2.0**-20
    (pair,) = open_pairs({"a.weight": base}, {"a.weight": tuned}).pairs
    assert pair.load_change().dtype is torch.float64
    assert torch.equal(pair.load_change(), tuned.double() - base.double())
    (pair,) = open_pairs({"a.weight": base}, {"a.weight": base.half()}).pairs
    assert pair.load_change().dtype is torch.float32


def test_a_side_that_is_not_finite_is_named_when_it_is_loaded():
    good, bad = torch.ones(4, 4), torch.full((4, 4), torch.nan)
    (pair,) = open_pairs({"a.weight": good}, {"a.weight": bad}).pairs
    with pytest.raises(NotFiniteError, match="tuned network"):
        pair.load()
    (pair,) = open_pairs({"a.weight": bad}, {"a.weight": good}).pairs
    with pytest.raises(NotFiniteError, match="the base"):
        pair.load_change()


def test_what_has_no_values_is_unreadable_with_the_reason():
    good = {"a.weight": torch.ones(4, 4), "b.weight": torch.ones(4, 4)}
    meta = good | {"b.weight": torch.ones(4, 4, device="meta")}
    status, reason = by_name(open_pairs(good, meta))["b.weight"].obstacle
    assert status is PairStatus.UNREADABLE
    assert "tuned network" in reason


def test_experts_in_one_tensor_are_a_pair_each(tmp_path):
    stack = torch.randn(3, 8, 6)
    changed = stack.clone()
    changed[1] += 1
    name = "mlp.experts.down_proj"
    safetensors.save_file({name: stack}, tmp_path / "a.safetensors")
    safetensors.save_file({name: changed}, tmp_path / "b.safetensors")
    pairs = open_pairs(tmp_path / "a.safetensors", tmp_path / "b.safetensors").pairs
    assert [pair.name for pair in pairs] == [f"{name}[{i}]" for i in range(3)]
    assert [bool(pair.load_change().any()) for pair in pairs] == [False, True, False]
    assert {pair.tuned.group for pair in pairs} == {name}


def test_gpt2_layers_are_unfolded_by_their_outputs():
    weights = {f"h.{i}.attn.c_attn.weight": torch.randn(6, 18) for i in range(2)}
    for pair in open_pairs(weights, weights).pairs:
        assert pair.output_axis == 1
        assert pair.matrix_shape == (18, 6)
        assert torch.equal(pair.unfold(pair.load()[1]), weights[pair.name].T)


def test_fused_and_separate_projections_are_named():
    owner = "layers.0.self_attn"
    apart = {f"{owner}.{x}_proj.weight": torch.randn(8, 8) for x in "qkvo"}
    fused = {
        f"{owner}.qkv_proj.weight": torch.randn(24, 8),
        f"{owner}.o_proj.weight": torch.randn(8, 8),
    }
    (note,) = open_pairs(apart, fused).notes
    assert "tuned network stores several" in note
    assert "qkv_proj.weight holds" in note
    (note,) = open_pairs(fused, apart).notes
    assert "base stores several" in note


def test_an_adapter_instead_of_a_network_is_refused_with_what_to_do(tmp_path):
    base = {"layers.0.fc.weight": torch.randn(8, 6)}
    names = ("lora_A.weight", "lora_B.weight")
    tensors = (torch.randn(2, 6), torch.randn(8, 2))
    adapter = {f"base_model.model.layers.0.fc.{n}": t for n, t in zip(names, tensors, strict=True)}
    safetensors.save_file(adapter, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 2}))
    with pytest.raises(CheckpointError, match="merge_and_unload"):
        open_pairs(base, tmp_path)
    with pytest.raises(CheckpointError, match="an adapter of 1 layer"):
        open_pairs(tmp_path, base)
    assert len(open_pairs(tmp_path, tmp_path).comparable) == 1  # two adapters can be compared


def test_a_network_with_an_adapter_that_is_not_merged_is_refused():
    prefix = "base_model.model.fc"
    tuned = {
        f"{prefix}.base_layer.weight": torch.randn(8, 6),
        f"{prefix}.lora_A.default.weight": torch.randn(2, 6),
        f"{prefix}.lora_B.default.weight": torch.randn(8, 2),
        "base_model.model.head.weight": torch.randn(3, 8),
    }
    base = {"fc.weight": torch.randn(8, 6), "head.weight": torch.randn(3, 8)}
    with pytest.raises(CheckpointError, match="adapter next to the weight"):
        open_pairs(base, tuned)


def test_the_same_file_twice_is_said(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.save_file({"a.weight": torch.ones(4, 4)}, path)
    assert "same" in open_pairs(path, str(path)).notes[0]
    assert open_pairs(path, {"a.weight": torch.ones(4, 4)}).notes == ()


def test_networks_without_a_common_name_are_refused():
    with pytest.raises(ProbeMismatchError, match=r"'a\.weight' and 'b\.weight'"):
        open_pairs({"a.weight": torch.ones(4, 4)}, {"b.weight": torch.ones(4, 4)})


def test_a_probe_has_no_weights():
    probe = rankwise.probe({"a.weight": torch.eye(4)})
    with pytest.raises(TargetError, match="a probe"):
        open_pairs(probe, {"a.weight": torch.eye(4)})


def test_wrapped_state_dicts_and_sharded_folders_are_opened(tmp_path):
    weights = {"a.weight": torch.randn(8, 4), "b.weight": torch.randn(8, 4)}
    torch.save({"epoch": 1, "state_dict": weights}, tmp_path / "base.pt")
    folder = tmp_path / "sharded"
    folder.mkdir()
    files = {}
    for number, (name, tensor) in enumerate(weights.items(), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        safetensors.save_file({name: tensor + 1}, folder / file)
        files[name] = file
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    pairs = open_pairs(tmp_path / "base.pt", folder).comparable
    assert [float(pair.load_change().mean()) for pair in pairs] == pytest.approx([1, 1])


def test_norms_of_old_checkpoints_are_matched_with_todays_names():
    old = {"bert.LayerNorm.gamma": torch.ones(4), "bert.LayerNorm.beta": torch.zeros(4)}
    new = {"bert.LayerNorm.weight": torch.ones(4), "bert.LayerNorm.bias": torch.ones(4)}
    pairs = open_pairs(old, new).pairs
    assert [(pair.base.name, pair.tuned.name) for pair in pairs] == list(zip(old, new, strict=True))
    assert open_pairs({"a.gamma": torch.ones(4)}, {"a.gamma": torch.ones(4)}).pairs[0].is_comparable
