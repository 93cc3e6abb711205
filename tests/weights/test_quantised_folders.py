"""Quantised models as folders: the configuration, the experts and the heads all come together."""

import json

import pytest
import torch
from safetensors.torch import save_file

import rankwise
from rankwise import Status
from tests.weights.quantised_files import plant
from tests.weights.test_quantised_gptq import expected_of, gptq_state


def write(folder, tensors, config):
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("checkpoint_format", "minus_one"), [("gptq", 1), ("gptq_v2", 0)])
def test_the_configuration_tells_how_zero_points_are_stored(tmp_path, checkpoint_format, minus_one):
    torch.manual_seed(0)
    state = gptq_state(4, minus_one=minus_one)
    quantization = {"quant_method": "gptq", "bits": 4, "checkpoint_format": checkpoint_format}
    folder = write(tmp_path, state, {"quantization_config": quantization})
    (row,) = rankwise.probe(folder).probed
    expected = expected_of(state, 4, minus_one).double()
    assert row.name == "fc.weight"
    assert row.frobenius_norm == pytest.approx(float(expected.norm()), rel=1e-6)
    assert row.spectral_norm == pytest.approx(float(torch.linalg.svdvals(expected)[0]), rel=1e-6)


def test_block_sizes_come_from_the_configuration(tmp_path):
    torch.manual_seed(0)
    weight, scale = plant(96, 160), torch.rand(2, 3) + 0.5
    codes = (weight * 50).to(torch.float8_e4m3fn)
    spread = scale.repeat_interleave(64, 0)[:96].repeat_interleave(64, 1)[:, :160]
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}
    tensors = {"l.weight": codes, "l.weight_scale_inv": scale}
    (row,) = rankwise.probe(write(tmp_path, tensors, config)).probed
    expected = (codes.float() * spread).double()
    assert row.frobenius_norm == pytest.approx(float(expected.norm()), rel=1e-6)
    assert "64×64" in row.dtype


def test_fp8_experts_are_measured_one_by_one(tmp_path):
    torch.manual_seed(0)
    stack = torch.stack([plant(64, 128, noise=0.1) for _ in range(4)])
    scale = stack.abs().amax(dim=(1, 2), keepdim=True) / 400
    tensors = {
        "mlp.experts.gate_up_proj": (stack / scale).to(torch.float8_e4m3fn),
        "mlp.experts.gate_up_proj_scale_inv": scale,
    }
    result = rankwise.probe(write(tmp_path, tensors, {}))
    assert [layer.name for layer in result.probed] == [
        f"mlp.experts.gate_up_proj[{i}]" for i in range(4)
    ]
    assert {layer.rank for layer in result.probed} == {6.0}
    assert result.figures.coverage == 1.0


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.02, 0.2])
def test_rounding_to_fp8_is_no_structure_whatever_the_scale(tmp_path, noise):
    torch.manual_seed(0)
    weight = plant(128, 256, noise=noise)
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    tensors = {"l.weight": codes, "l.weight_scale": scale}
    (row,) = rankwise.probe(write(tmp_path, tensors, {})).probed
    assert row.rank == 6


def test_mxfp4_experts_of_gpt_oss(tmp_path):
    torch.manual_seed(0)
    tensors = {
        "mlp.experts.down_proj_blocks": torch.randint(0, 256, (3, 64, 4, 16), dtype=torch.uint8),
        "mlp.experts.down_proj_scales": torch.full((3, 64, 4), 120, dtype=torch.uint8),
        "mlp.experts.down_proj_bias": torch.zeros(3, 64),
    }
    result = rankwise.probe(write(tmp_path, tensors, {"model_type": "gpt_oss"}))
    assert [layer.name for layer in result.probed] == [
        f"mlp.experts.down_proj[{i}]" for i in range(3)
    ]
    assert {layer.shape for layer in result.probed} == {(64, 128)}
    assert result["mlp.experts.down_proj_bias"].status is Status.NOT_A_WEIGHT
    others = {layer.status for layer in result.layers if not layer.is_probed}
    assert others == {Status.NOT_A_WEIGHT, Status.MERGED}


def test_heads_of_a_quantised_projection(tmp_path):
    torch.manual_seed(0)
    weight = plant(64, 96)
    codes, scale = (weight * 50).to(torch.float8_e4m3fn), torch.rand(64, 1) + 0.5
    tensors = {"self_attn.q_proj.weight": codes, "self_attn.q_proj.weight_scale": scale}
    folder = write(tmp_path, tensors, {"num_attention_heads": 4, "head_dim": 16})
    result = rankwise.probe(folder, split="heads")
    assert len(result.probed) == 4
    expected = (codes.float() * scale)[16:32].double()
    row = result["self_attn.q_proj.weight[head 1]"]
    assert row.frobenius_norm == pytest.approx(float(expected.norm()), rel=1e-6)


def test_only_an_embedding_was_read(tmp_path):
    """The count of parameters must not hide that all other weights are quantised and unread."""
    torch.manual_seed(0)
    tensors = {
        "embed_tokens.weight": plant(64, 32),
        "l.W_q": torch.randint(0, 256, (512, 512), dtype=torch.uint8),
        "l.scale": torch.rand(64, 1),
        "l.zero": torch.rand(64, 1),
    }
    result = rankwise.probe(write(tmp_path, tensors, {}))
    assert [layer.name for layer in result.probed] == ["embed_tokens.weight"]
    assert result["l.W_q"].status is Status.QUANTISED
    assert result["l.W_q"].reason.startswith("quantised, not measured")
    assert result.figures.coverage < 0.05
    assert "quantised" in str(result)
    assert "1 quantised weight not measured" in rankwise.check(tmp_path).summary()
