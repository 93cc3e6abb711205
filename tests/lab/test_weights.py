"""A run's weights are a file that any tool reads."""

import os
import sys

import pytest
import torch
from torch import nn

import rankwise
from rankwise.lab.networks.language import build_language_network
from rankwise.lab.weights import save_weights

pytest.importorskip("safetensors")
from safetensors.torch import load_file


def test_weights_come_back_as_they_were(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(
        memory_format=torch.channels_last
    )
    save_weights(tmp_path / "w.safetensors", {"": network.state_dict()})
    found = load_file(tmp_path / "w.safetensors")
    assert found.keys() == network.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in network.state_dict().items())


def test_several_parts_are_told_apart(tmp_path):
    parts = {"generator": {"a": torch.ones(2)}, "critic": {"a": torch.zeros(2)}}
    save_weights(tmp_path / "w.safetensors", parts)
    found = load_file(tmp_path / "w.safetensors")
    assert {name: float(value[0]) for name, value in found.items()} == {
        "generator.a": 1.0,
        "critic.a": 0.0,
    }


def test_tied_weights_are_under_each_of_their_names_and_can_be_probed(tmp_path):
    network = build_language_network("lstm1", 40, width=0.05, tied=True)
    assert network.decoder.weight is network.embedding.weight
    path = tmp_path / "w.safetensors"
    save_weights(path, {"": network.state_dict()})
    found = load_file(path)
    assert torch.equal(found["decoder.weight"], found["embedding.weight"])
    fresh = build_language_network("lstm1", 40, width=0.05, tied=True)
    fresh.load_state_dict(found)
    assert torch.equal(fresh.decoder.weight, network.decoder.weight)
    by_name = {layer.name: layer for layer in rankwise.probe(path).layers}
    for layer in rankwise.probe(network).probed:
        assert by_name[layer.name].quality == pytest.approx(layer.quality, abs=1e-6)


def test_a_file_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_weights(path, {"": {"a": torch.ones(2)}})

    def fail(_):
        raise OSError("broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="broken"):
        save_weights(path, {"": {"a": torch.zeros(2)}})
    assert load_file(path)["a"].tolist() == [1.0, 1.0]


def test_without_safetensors_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(rankwise.MissingExtraError, match=r"pip install 'rankwise\[lab\]'"):
        save_weights(tmp_path / "w.safetensors", {"": {}})


def test_a_probe_of_the_file_has_the_layers_in_the_networks_order(tmp_path):
    network = nn.ModuleDict({"stem": nn.Linear(4, 4), "body": nn.Linear(4, 4)})
    save_weights(tmp_path / "w.safetensors", {"": network.state_dict()})
    found = rankwise.probe(tmp_path / "w.safetensors")
    assert [layer.name for layer in found.layers] == list(network.state_dict())
