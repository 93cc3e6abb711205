"""Kinds by name and shape, and tensors that are no weight matrices."""

import pytest
import torch
from torch import nn

import rankwise
from rankwise import Status, infer_kind
from rankwise.weights.kinds import find_non_weight


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("fc.weight", (10, 20), "linear"),
        ("embed_tokens.weight", (1000, 64), "embedding"),
        ("bert.embeddings.word_embeddings.weight", (1000, 64), "embedding"),
        ("transformer.wte.weight", (1000, 64), "embedding"),
        ("shared.weight", (1000, 64), "embedding"),
        ("token_embedding_table.weight", (1000, 64), "embedding"),
        ("model/embedding/embeddings:0", (1000, 64), "embedding"),
        ("time_embedding.linear_1.weight", (64, 64), "linear"),
        ("time_embed.0.weight", (64, 64), "linear"),
        ("embeddings.0.weight", (64, 64), "embedding"),
        ("embedding_hidden_mapping_in.weight", (64, 64), "linear"),
        ("embed_out.weight", (64, 64), "linear"),
        ("lstm.weight_ih_l0", (400, 100), "recurrent"),
        ("lstm.weight_hh_l1_reverse", (400, 100), "recurrent"),
        ("lstm.weight_hh_l1[i]", (100, 100), "recurrent"),
        ("cell.weight_hh", (400, 100), "recurrent"),
        ("attn.in_proj_weight", (192, 64), "attention"),
        ("vit.pos_embed", (1, 197, 768), "embedding"),
        ("patch_embed.proj.weight", (768, 3, 16, 16), "conv2d"),
        ("encoder.pos_conv_embed.conv.weight", (768, 48, 128), "conv1d"),
        ("mixer.conv1d.weight", (64, 1, 4), "conv1d"),
        ("0.weight", (64, 32, 5), "conv1d"),
        ("features.0.weight", (64, 32, 50), "conv1d"),
        ("features.0.weight", (32, 1, 80), "conv1d"),
        ("block.weight", (8, 256, 64), "stack"),
        ("conv.weight", (8, 4, 3), "conv1d"),
        ("conv.weight", (8, 4, 3, 3), "conv2d"),
        ("conv.weight", (8, 4, 3, 3, 3), "conv3d"),
        ("conv.weight", (8, 1, 3, 3), "conv2d"),
        ("mlp.experts.gate_up_proj", (8, 256, 64), "stack"),
        ("block_sparse_moe.input_linear.weight", (8, 256, 64), "stack"),
        ("attn.W_Q", (12, 768, 64), "stack"),
        ("mlp.experts.3.conv.weight", (8, 4, 3, 3), "conv2d"),
        ("mlp.experts.3.w1.weight", (8, 4), "linear"),
        ("w", (2, 2, 2, 2, 2, 2), "tensor"),
        ("bias", (3,), "vector"),
        ("step", (), "scalar"),
    ],
)
def test_kind(name, shape, kind):
    assert infer_kind(name, shape) == kind


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mixer.A_log", (1536, 16)),
        ("attn.relative_position_bias_table", (169, 12)),
        ("layer.0.SelfAttention.relative_attention_bias.weight", (32, 8)),
        ("experts.gate_up_proj_bias", (32, 5760)),
        ("cls_token", (1, 1, 768)),
        ("register_tokens", (1, 4, 768)),
        ("act.prelu.weight", (8, 4)),
        ("attn.bias", (1, 1, 64, 64)),
        ("relative_coords_table", (1, 15, 15, 2)),
        ("rotary_emb.cos_cached", (64, 32)),
        ("scale_shift_table", (6, 768)),
        ("norm.weight", (16, 16)),
        ("blocks.0.ln_1.weight", (16, 16)),
    ],
)
def test_what_is_no_weight_matrix(name, shape):
    result = rankwise.probe({name: torch.randn(shape), "fc.weight": torch.randn(40, 40)})
    assert result[name].status is Status.NOT_A_WEIGHT
    assert result[name].reason
    assert [layer.name for layer in result.probed] == ["fc.weight"]
    assert result.figures.total_rank == result["fc.weight"].rank


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("norm1.linear.weight", (64, 64)),
        ("embed_tokens.weight", (64, 64)),
        ("mixer.in_proj.weight", (64, 64)),
        ("mixer.x_proj.weight", (64, 64)),
        ("time_maa_w1", (64, 64)),
        ("bias_net.fc.weight", (64, 64)),
        ("a", (64, 64)),
        ("b", (64, 64)),
        ("w", (64, 64)),
    ],
)
def test_matrices_with_similar_names_are_weights(name, shape):
    assert find_non_weight(name, shape) == ""


def test_names_of_any_length_are_read_quickly():
    for text in (
        "_" * 100_000,
        "[a]" * 30_000 + "x",
        "." * 100_000,
        "bias_" * 20_000,
        "conv" * 30_000,
    ):
        for shape in ((4, 4), (4, 4, 4)):
            infer_kind(text, shape)
            find_non_weight(text, shape)


def test_buffers_in_memory_are_constants_unless_they_are_called_weights():
    module = nn.Linear(8, 8)
    module.register_buffer("table", torch.randn(8, 8))
    module.register_buffer("frozen_weight", torch.randn(8, 8))
    result = rankwise.probe(module)
    assert result["table"].status is Status.NOT_A_WEIGHT
    assert result["frozen_weight"].status is Status.PROBED


def test_an_untrained_state_space_layer_has_no_rank():
    torch.manual_seed(0)
    decay = torch.arange(1, 17).float().repeat(256, 1).log()  # how Mamba begins
    tensors = {"mixer.A_log": decay, "mixer.in_proj.weight": torch.randn(512, 128)}
    result = rankwise.probe(tensors)
    assert result.quality == 0.0


def test_what_is_no_weight_may_be_zero():
    torch.manual_seed(0)
    tensors = {"experts.up_bias": torch.zeros(8, 64), "fc.weight": torch.randn(64, 64)}
    findings = rankwise.check(tensors)
    assert "experts.up_bias" not in {finding.layer for finding in findings.findings}


def test_what_is_no_weight_is_checked_for_numbers_that_are_not_finite():
    broken = torch.zeros(64, 16)
    broken[3, 3] = torch.nan
    findings = rankwise.check({"mixer.A_log": broken, "mixer.in_proj.weight": torch.randn(64, 64)})
    assert ("not-finite", "mixer.A_log") in {(f.kind, f.layer) for f in findings.findings}
