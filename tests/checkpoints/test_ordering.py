import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import rankwise
from rankwise.checkpoints import open_weights
from rankwise.checkpoints.ordering import sort_names

BERT = [
    "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.token_type_embeddings.weight",
    "bert.embeddings.word_embeddings.weight",
    *(f"bert.encoder.layer.{i}.attention.self.query.weight" for i in range(12)),
    "bert.pooler.dense.weight",
    "classifier.weight",
    "classifier.bias",
]
GPT_2 = [
    "transformer.wpe.weight",
    "transformer.wte.weight",
    *(f"transformer.h.{i}.attn.c_attn.weight" for i in range(12)),
    "transformer.ln_f.weight",
    "lm_head.weight",
]
LLAMA = [
    "model.embed_tokens.weight",
    *(
        f"model.layers.{i}.{part}.weight"
        for i in range(30)
        for part in ("input_layernorm", "mlp.down_proj", "self_attn.q_proj")
    ),
    "model.norm.weight",
    "lm_head.weight",
]
VIT = [
    "cls_token",
    "patch_embed.proj.weight",
    "patch_embed.proj.bias",
    "pos_embed",
    *(f"blocks.{i}.attn.qkv.weight" for i in range(12)),
    "norm.weight",
    "fc_norm.weight",
    "head.weight",
    "head.bias",
]
HUGGING_FACE_VIT = [
    "vit.embeddings.cls_token",
    "vit.embeddings.patch_embeddings.projection.weight",
    *(f"vit.encoder.layer.{i}.output.dense.weight" for i in range(12)),
    "vit.layernorm.weight",
    "vit.pooler.dense.weight",
    "classifier.weight",
]
RESNET = [
    "conv1.weight",
    "bn1.weight",
    "bn1.bias",
    *(f"layer{i}.{j}.conv{k}.weight" for i in range(1, 5) for j in range(11) for k in (1, 2)),
    "fc.weight",
    "fc.bias",
]
T5 = [
    "shared.weight",
    *(f"{side}.block.{i}.layer.0.weight" for side in ("encoder", "decoder") for i in range(12)),
    "lm_head.weight",
]
EFFICIENT_NET = ["conv_stem.weight", "blocks.2.weight", "blocks.10.weight", "classifier.weight"]
CONV_NEXT = ["stem.0.weight", "stages.0.weight", "stages.3.weight", "head.fc.weight"]
GPT_NEOX = ["gpt_neox.embed_in.weight", "gpt_neox.layers.2.weight", "embed_out.weight"]
NETWORKS = {
    "bert": BERT,
    "gpt-2": GPT_2,
    "llama": LLAMA,
    "vit": VIT,
    "hugging face vit": HUGGING_FACE_VIT,
    "resnet": RESNET,
    "t5": T5,
    "efficientnet": EFFICIENT_NET,
    "convnext": CONV_NEXT,
    "gpt-neox": GPT_NEOX,
}


def names_of(target):
    weights = open_weights(target)
    return [weight.name for weight in weights.tensors], weights.order


@pytest.mark.parametrize("network", NETWORKS)
def test_beginnings_come_first_and_heads_last(network):
    names = NETWORKS[network]
    assert sort_names(sorted(names)) == names
    assert sort_names(reversed(names)) == names


@given(st.lists(st.text(st.sampled_from("ab.01_embdhcovns\x00é"), max_size=12), max_size=12))
def test_any_names_have_an_order_that_does_not_depend_on_the_first(names):
    once = sort_names(names)
    assert sorted(once) == sorted(names)
    numbers_apart = [name for name in dict.fromkeys(names) if not any(c in "01" for c in name)]
    assert sort_names(numbers_apart) == sort_names(reversed(numbers_apart))


def test_hostile_names_take_no_time():
    names = ["embed_" * 50_000 + "!", "a_" * 100_000 + "!", "9" * 100_000]
    assert sorted(sort_names(names)) == sorted(names)


@pytest.mark.parametrize("network", ["llama", "resnet"])
def test_a_safetensors_file_is_listed_by_name(tmp_path, network):
    names = NETWORKS[network]
    save_file({name: torch.zeros(2) for name in names}, tmp_path / "w.safetensors")
    assert names_of(tmp_path / "w.safetensors") == (names, "name")


def test_an_order_in_the_metadata_is_the_networks(tmp_path):
    names = ["second", "first", "head", "embed"]
    tensors = {name: torch.zeros(2) for name in names}
    save_file(tensors, tmp_path / "w.safetensors", metadata={"order": json.dumps(names)})
    assert names_of(tmp_path / "w.safetensors") == (names, "network")


def test_pytorch_and_numpy_files_keep_their_order(tmp_path):
    names = ["stem.weight", "stem.bias", "a.weight", "a.bias"]
    torch.save({name: torch.zeros(2) for name in names}, tmp_path / "w.pt")
    np.savez(tmp_path / "w.npz", **{name: np.zeros(2) for name in names})
    assert names_of(tmp_path / "w.pt") == (names, "network")
    assert names_of(tmp_path / "w.npz") == (names, "network")


@pytest.mark.parametrize(
    "names", [["a.bias", "a.weight", "stem.weight"], ["layer.10.w", "layer.2.w", "stem.w"]]
)
def test_what_somebody_has_sorted_is_no_order_of_the_network(tmp_path, names):
    tensors = {name: torch.zeros(2) for name in names}
    torch.save(tensors, tmp_path / "sorted.pt")
    assert names_of(tmp_path / "sorted.pt") == (sort_names(names), "name")
    result = rankwise.probe(tensors)
    assert ([layer.name for layer in result], result.order) == (sort_names(names), "name")


def test_a_state_dict_that_may_be_in_order_is_left_alone():
    result = rankwise.probe({"conv1.weight": torch.ones(2, 2), "fc.weight": torch.ones(2, 2)})
    assert result.order == "network"


def _write_shards(folder, shards, save, suffix):
    places = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}{suffix}"
        save({name: torch.zeros(2) for name in names}, folder / file)
        places |= dict.fromkeys(names, file)
    index = folder / f"model{suffix}.index.json"
    index.write_text(json.dumps({"weight_map": dict(sorted(places.items()))}))
    return index


def test_shards_of_safetensors_are_listed_by_name_as_one_file(tmp_path):
    index = _write_shards(tmp_path, [LLAMA[:31], LLAMA[31:]], save_file, ".safetensors")
    assert names_of(index) == (LLAMA, "name")


def test_shards_of_pytorch_come_in_the_order_of_their_numbers(tmp_path):
    shards = [["stem.weight", "stem.bias", "z.weight"], ["a.weight", "a.bias", "b.weight"]]
    index = _write_shards(tmp_path, shards, torch.save, ".bin")
    assert names_of(index) == ([name for names in shards for name in names], "network")


def test_a_probe_keeps_and_saves_how_its_layers_are_ordered(tmp_path):
    tensors = {name: torch.randn(4, 5) for name in ("blocks.2.w", "blocks.10.w", "embed.w")}
    save_file(tensors, tmp_path / "w.safetensors")
    result = rankwise.probe(tmp_path / "w.safetensors")
    assert [layer.name for layer in result] == ["embed.w", "blocks.2.w", "blocks.10.w"]
    assert (result.order, result.at_random().order) == ("name", "name")
    assert rankwise.Probe.from_json(result.to_json()).order == "name"
    module = rankwise.probe(torch.nn.Linear(4, 5))
    assert rankwise.Probe.from_json(module.to_json()).order == "network"


def test_of_an_older_probe_the_order_is_not_known():
    document = rankwise.probe(torch.nn.Linear(4, 5)).to_dict()
    del document["order"]
    assert rankwise.Probe.from_json(json.dumps(document)).order == "name"


def test_where_the_order_is_not_known_the_text_says_so(tmp_path):
    save_file({"fc.weight": torch.randn(4, 5)}, tmp_path / "w.safetensors")
    by_name = rankwise.probe(tmp_path / "w.safetensors")
    words = "by name"
    assert words in by_name.table()
    assert words in by_name._repr_html_()
    assert words not in rankwise.probe(torch.nn.Linear(4, 5)).table()
