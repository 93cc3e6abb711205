"""Splitting what is stacked in one matrix, and attention heads."""

import json

import pytest
import torch
from safetensors.torch import save_file

import rankwise
from rankwise import ArgumentError
from rankwise.weights.module import describe_tensor
from rankwise.weights.split import split_weights
from rankwise.weights.stacks import resolve_tensors

WIDTH, HEADS, SIZE = 32, 4, 8


def split(tensors, config=None, how="stacks"):
    weights = resolve_tensors([describe_tensor(*item) for item in tensors.items()])
    pieces, notes = split_weights(weights, config or {}, how)
    return {piece.name: piece.load() for piece in pieces}, notes


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "name", ["qkv_proj.weight", "Wqkv.weight", "attn.qkv.weight", "in_proj_weight"]
)
def test_three_equal_parts_need_no_configuration(name):
    weight = draw(96, 32)
    pieces, _ = split({name: weight})
    assert list(pieces) == [f"{name}[{letter}]" for letter in "qkv"]
    assert torch.equal(torch.cat(list(pieces.values())), weight)


@pytest.mark.parametrize("name", ["qkv_proj.weight", "Wqkv.weight"])
def test_grouped_queries_are_cut_as_the_configuration_says(name):
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    weight = draw((4 + 2 + 2) * 8, 32)
    pieces, _ = split({name: weight}, config)
    assert [len(piece) for piece in pieces.values()] == [32, 16, 16]
    assert torch.equal(torch.cat(list(pieces.values())), weight)


def test_heads_that_alternate_are_put_together():
    """GPT-NeoX and BLOOM store q, k and v of one head, then those of the next."""
    config = {"model_type": "gpt_neox", "num_attention_heads": 4, "hidden_size": 32}
    weight = draw(96, 32)
    pieces, _ = split({"attention.query_key_value.weight": weight}, config)
    blocks = weight.reshape(4, 3, 8, 32)
    for place, letter in enumerate("qkv"):
        expected = blocks[:, place].reshape(32, 32)
        assert torch.equal(pieces[f"attention.query_key_value.weight[{letter}]"], expected)


def test_groups_that_alternate_are_put_together():
    """InternLM2 and the newer Falcons store the queries of a group, then its key and value."""
    config = {"model_type": "internlm2", "num_attention_heads": 4, "num_key_value_heads": 2}
    weight = draw(64, 32)
    pieces, _ = split({"attention.wqkv.weight": weight}, config)
    blocks = weight.reshape(2, 4, 8, 32)
    q, k, v = pieces.values()
    assert torch.equal(q, blocks[:, :2].reshape(32, 32))
    assert torch.equal(k, blocks[:, 2].reshape(16, 32))
    assert torch.equal(v, blocks[:, 3].reshape(16, 32))


def test_falcon_with_one_key_and_value_for_all_heads():
    config = {
        "model_type": "falcon",
        "num_attention_heads": 4,
        "multi_query": True,
        "hidden_size": 32,
    }
    pieces, _ = split({"self_attention.query_key_value.weight": draw(48, 32)}, config)
    assert [len(piece) for piece in pieces.values()] == [32, 8, 8]


def test_query_key_value_of_unknown_order_stays_whole():
    pieces, _ = split({"attention.query_key_value.weight": draw(96, 32)})
    assert list(pieces) == ["attention.query_key_value.weight"]


def test_mamba_is_left_alone():
    tensors = {"mixer.in_proj.weight": draw(96, 32), "mixer.A_log": draw(48, 16)}
    pieces, _ = split(tensors, {"num_attention_heads": 4})
    assert list(pieces) == list(tensors)


def test_gate_and_up():
    weight = draw(64, 16)
    pieces, _ = split({"mlp.gate_up_proj.weight": weight})
    assert list(pieces) == ["mlp.gate_up_proj.weight[gate]", "mlp.gate_up_proj.weight[up]"]
    assert torch.equal(torch.cat(list(pieces.values())), weight)


def test_gate_and_up_of_experts_follow_their_outputs():
    stack = draw(2, 16, 64)  # [in, out], as Llama 4 stores them
    tensors = {"experts.gate_up_proj": stack, "experts.down_proj": draw(2, 32, 16)}
    pieces, _ = split(tensors)
    assert torch.equal(pieces["experts.gate_up_proj[1][up]"], stack[1][:, 32:])


def test_gate_and_up_of_gpt_oss_alternate():
    stack = draw(2, 16, 64)
    tensors = {"experts.gate_up_proj": stack, "experts.gate_up_proj_bias": draw(2, 64)}
    pieces, _ = split(tensors, {"model_type": "gpt_oss"})
    assert torch.equal(pieces["experts.gate_up_proj[0][gate]"], stack[0][:, ::2])
    assert torch.equal(pieces["experts.gate_up_proj[0][up]"], stack[0][:, 1::2])


CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}


def test_heads_of_every_projection():
    tensors = {
        "self_attn.q_proj.weight": draw(32, 32),
        "self_attn.k_proj.weight": draw(16, 32),
        "self_attn.v_proj.weight": draw(16, 32),
        "self_attn.o_proj.weight": draw(32, 32),
        "mlp.up_proj.weight": draw(64, 32),
    }
    pieces, notes = split(tensors, CONFIG, "heads")
    assert notes == ()
    counts = {name: sum(p.startswith(f"{name}[") for p in pieces) for name in tensors}
    assert list(counts.values()) == [4, 2, 2, 4, 0]
    assert torch.equal(
        pieces["self_attn.q_proj.weight[head 1]"], tensors["self_attn.q_proj.weight"][8:16]
    )
    output = tensors["self_attn.o_proj.weight"]
    assert torch.equal(pieces["self_attn.o_proj.weight[head 3]"], output[:, 24:])


def test_heads_of_a_fused_projection():
    config = {"model_type": "bloom", "n_head": 4, "hidden_size": 32}
    weight = draw(96, 32)
    pieces, _ = split({"self_attention.query_key_value.weight": weight}, config, "heads")
    blocks = weight.reshape(4, 3, 8, 32)
    assert torch.equal(pieces["self_attention.query_key_value.weight[k][head 2]"], blocks[2, 1])
    assert len(pieces) == 12


def test_heads_of_gpt2_lie_along_the_other_axis():
    config = {"model_type": "gpt2", "n_head": 4, "n_embd": 32}
    tensors = {"h.0.attn.c_attn.weight": draw(32, 96), "h.0.attn.c_proj.weight": draw(32, 32)}
    pieces, _ = split(tensors, config, "heads")
    stacked, output = tensors.values()
    assert torch.equal(pieces["h.0.attn.c_attn.weight[v][head 1]"], stacked[:, 72:80])
    assert torch.equal(pieces["h.0.attn.c_proj.weight[head 1]"], output[8:16])


def test_latent_attention_is_split_where_heads_are():
    config = {**CONFIG, "kv_lora_rank": 8, "num_key_value_heads": 4}
    tensors = {
        "self_attn.kv_a_proj_with_mqa.weight": draw(12, 32),
        "self_attn.kv_b_proj.weight": draw(4 * 14, 8),
        "self_attn.q_b_proj.weight": draw(4 * 12, 16),
        "self_attn.o_proj.weight": draw(32, 4 * 6),
    }
    pieces, _ = split(tensors, config, "heads")
    counts = [sum(p.startswith(f"{name}[") for p in pieces) for name in tensors]
    assert counts == [0, 4, 4, 4]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_attention_heads": 0},
        {"num_attention_heads": -4},
        {"num_attention_heads": "4"},
        {"num_attention_heads": 10**12},
        {"num_attention_heads": 5},
        {"num_attention_heads": 4, "head_dim": 3},
        {"num_attention_heads": True},
        {"text_config": []},
    ],
)
def test_a_configuration_that_does_not_fit_splits_nothing(config):
    weight = draw(32, 32)
    pieces, notes = split({"self_attn.q_proj.weight": weight}, config, "heads")
    assert list(pieces) == ["self_attn.q_proj.weight"]
    assert notes


def test_the_configuration_lies_beside_the_file(tmp_path):
    tensors = {"self_attn.q_proj.weight": draw(32, 32), "vision_model.q_proj.weight": draw(32, 32)}
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"text_config": CONFIG, "vision_config": {"num_attention_heads": 2}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = rankwise.probe(tmp_path, split="heads")
    groups = [layer.group for layer in result.probed]
    assert groups.count("self_attn.q_proj.weight") == 4
    assert groups.count("vision_model.q_proj.weight") == 2
    assert result["self_attn.q_proj.weight[head 0]"].shape == (8, 32)


def test_without_heads_there_is_a_note():
    result = rankwise.probe({"q_proj.weight": draw(32, 32)}, split="heads")
    assert any("heads were not split" in note for note in result.notes)


def test_a_wrong_option_is_refused():
    with pytest.raises(ArgumentError, match="stacks"):
        rankwise.probe({"w": draw(4, 4)}, split="layers")


def test_a_model_in_memory_knows_its_heads():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=4, n_embd=32, vocab_size=50, n_positions=16)
    result = rankwise.probe(transformers.GPT2Model(config), split="heads")
    heads = [layer for layer in result.probed if "[head" in layer.name]
    assert len(heads) == 4 * 4  # q, k, v and the output
    assert {layer.shape for layer in heads} == {(32, 8), (8, 32)}
