"""MXFP4 and NVFP4 against references in plain Python, and transformers' own MXFP4."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import rankwise
from rankwise import Status
from tests.reference.quantised_reference import dequantise_mxfp4, dequantise_nvfp4
from tests.weights.quantised_files import load_weight, plant, probe_file, rows_by_status

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def to_pairs(scaled):
    """Return the nearest 4-bit floats, two in a byte, low half first."""
    nearest = (scaled.abs().unsqueeze(-1) - VALUES).abs().argmin(-1)
    codes = (nearest + 8 * (scaled < 0)).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4


def quantise_mxfp4(weight):
    grid = weight.reshape(*weight.shape[:-1], -1, 32)
    exponents = (grid.abs().amax(-1).log2().floor() - 2).clamp(-127, 127)
    scaled = (grid / 2.0 ** exponents.unsqueeze(-1)).reshape(weight.shape)
    return to_pairs(scaled), (exponents + 127).to(torch.uint8)


def quantise_nvfp4(weight):
    factor = weight.abs().max() / (6 * 448)
    grid = weight.reshape(*weight.shape[:-1], -1, 16)
    scale = (grid.abs().amax(-1) / 6 / factor).to(torch.float8_e4m3fn)
    step = (scale.float() * factor).unsqueeze(-1)
    return to_pairs((grid / step).reshape(weight.shape)), scale, factor


def reference_mxfp4(codes, exponents):
    pairs = zip(codes.tolist(), exponents.tolist(), strict=True)
    return torch.tensor([dequantise_mxfp4(row, scales) for row, scales in pairs])


def experts_state():
    pairs = [quantise_mxfp4(plant(96, 128, noise=0.3)) for _ in range(3)]
    codes, exponents = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    return {
        "experts.gate_up_proj_blocks": codes.reshape(3, 96, 4, 16),
        "experts.gate_up_proj_scales": exponents,
    }


def test_experts_in_blocks(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    state = experts_state()
    save_file(state, tmp_path / "w.safetensors")
    blocks, scales = state.values()
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    values = load_weight(tmp_path / "w.safetensors", "experts.gate_up_proj")
    assert torch.equal(values, expected)
    assert torch.equal(values[1], reference_mxfp4(blocks[1].flatten(1), scales[1]))
    for first, count in ((0, 1), (1, 2)):
        rows = (first, count)
        piece = load_weight(tmp_path / "w.safetensors", "experts.gate_up_proj", rows=rows)
        assert torch.equal(piece, expected[first : first + count])
    result = probe_file(tmp_path / "w.safetensors")
    assert rows_by_status(result)[Status.MERGED] == state.keys()


def test_one_matrix_in_blocks(tmp_path):
    codes, exponents = quantise_mxfp4(plant(96, 128, noise=0.3))
    state = {"mlp.proj_blocks": codes.reshape(96, 4, 16), "mlp.proj_scales": exponents}
    save_file(state, tmp_path / "w.safetensors")
    result = probe_file(tmp_path / "w.safetensors")
    assert {row.name: (row.rank, row.dtype) for row in result.probed} == {"mlp.proj": (6, "MXFP4")}


@pytest.mark.parametrize("codes_type", [torch.uint8, torch.int8, torch.float4_e2m1fn_x2])
@pytest.mark.parametrize("scale_type", [torch.uint8, torch.float8_e8m0fnu])
@pytest.mark.parametrize("scale_name", ["weight_scale", "weight_scale_inv", "scale"])
def test_mxfp4_beside_its_scale(tmp_path, codes_type, scale_type, scale_name):
    codes, exponents = quantise_mxfp4(plant(96, 128, noise=0.3))
    state = {"fc.weight": codes.view(codes_type), f"fc.{scale_name}": exponents.view(scale_type)}
    save_file(state, tmp_path / "w.safetensors")
    expected = reference_mxfp4(codes, exponents)
    for target in (tmp_path / "w.safetensors", state):
        assert torch.equal(load_weight(target, "fc.weight"), expected)
    result = probe_file(tmp_path / "w.safetensors")
    assert {row.name: row.rank for row in result.probed} == {"fc.weight": 6}
    assert result[f"fc.{scale_name}"].reason == "part of fc.weight"


def test_pairs_in_int8_with_any_scale_where_the_configuration_says_so():
    codes, exponents = quantise_mxfp4(plant(96, 128, noise=0.3))
    scale = 2.0 ** (exponents.float() - 127)
    state = {"experts.w": codes.view(torch.int8), "experts.w_scale_inv": scale}
    expected = reference_mxfp4(codes, exponents)
    assert torch.equal(load_weight(state, "experts.w", {"expert_dtype": "fp4"}), expected)
    assert load_weight(state, "experts.w").shape == (96, 64)


@pytest.mark.parametrize("codes_type", [torch.uint8, torch.float4_e2m1fn_x2])
def test_nvfp4_of_modelopt(tmp_path, codes_type):
    codes, scale, factor = quantise_nvfp4(plant(96, 128, noise=0.3))
    state = {
        "fc.weight": codes.view(codes_type),
        "fc.weight_scale": scale,
        "fc.weight_scale_2": factor,
        "fc.input_scale": torch.tensor(0.1),
    }
    save_file(state, tmp_path / "w.safetensors")
    rows = zip(codes.tolist(), scale.float().tolist(), strict=True)
    expected = torch.tensor([dequantise_nvfp4(row, s, float(factor)) for row, s in rows])
    for target in (tmp_path / "w.safetensors", state):
        values = load_weight(target, "fc.weight")
        torch.testing.assert_close(values, expected, rtol=1e-6, atol=0)
    result = probe_file(tmp_path / "w.safetensors")
    assert {row.name: (row.rank, row.dtype) for row in result.probed} == {"fc.weight": (6, "NVFP4")}
    assert rows_by_status(result)[Status.MERGED] == state.keys() - {"fc.weight"}


def test_nvfp4_experts_with_a_factor_each():
    parts = [quantise_nvfp4(scale * plant(32, 64)) for scale in (1.0, 2.0, 3.0)]
    codes, scale, factor = (torch.stack([part[i] for part in parts]) for i in range(3))
    names = ("experts.w", "experts.w_scale", "experts.w_scale_2")
    state = dict(zip(names, (codes, scale, factor), strict=True))
    whole = load_weight(state, "experts.w")
    for e, (one, its_scale, its_factor) in enumerate(parts):
        alone = {"w": one, "w_scale": its_scale, "w_scale_2": its_factor}
        assert torch.equal(whole[e], load_weight(alone, "w"))
        assert torch.equal(load_weight(state, "experts.w", rows=(e, 1))[0], whole[e])


def test_a_module_with_blocks():
    model = nn.Module()
    model.experts = nn.Module()
    for name, tensor in experts_state().items():
        model.experts.register_buffer(name.removeprefix("experts."), tensor)
    expected = load_weight(experts_state_of(model), "experts.gate_up_proj")
    assert torch.equal(load_weight(model, "experts.gate_up_proj"), expected)


def experts_state_of(model):
    return dict(model.state_dict())


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_scale_2": None},
        {"weight_scale_2": torch.ones(5)},
        {"weight_scale": torch.ones(128, 8).to(torch.float8_e4m3fn)},
        {"weight_scale": torch.ones(96, 7).to(torch.float8_e4m3fn)},
        {"weight_scale": torch.ones(96, 3, dtype=torch.uint8)},
        {"weight_scale": torch.ones(96, 1)},
        {"weight_scale": torch.ones(())},
    ],
)
def test_scales_that_do_not_fit_are_not_measured(changes):
    codes, scale, factor = quantise_nvfp4(plant(96, 128))
    state = {"weight": codes, "weight_scale": scale, "weight_scale_2": factor, **changes}
    result = rankwise.probe({f"fc.{k}": v for k, v in state.items() if v is not None})
    assert not result.probed
    assert result["fc.weight"].status is Status.QUANTISED
    assert result["fc.weight"].reason.startswith("quantised, not measured: ")
    assert result["fc.weight_scale"].status is Status.MERGED


@pytest.mark.parametrize("scales", [(3, 96), (3, 96, 5), (3, 96, 4, 1)])
def test_blocks_whose_scales_do_not_fit_are_not_measured(scales):
    state = experts_state() | {"experts.gate_up_proj_scales": torch.ones(scales).byte()}
    result = rankwise.probe(state)
    assert result["experts.gate_up_proj_blocks"].status is Status.QUANTISED
    assert result["experts.gate_up_proj_scales"].status is Status.MERGED
    assert not result.probed
