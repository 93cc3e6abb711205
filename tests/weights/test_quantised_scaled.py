"""FP8 and int8 codes with scales, against plain arithmetic and transformers' dequantisation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import rankwise
from rankwise import Status
from tests.weights.quantised_files import load_weight, plant, probe_file, rows_by_status

FP8 = torch.float8_e4m3fn


def quantise(weight, rows, columns, dtype=FP8):
    """Return codes and the scale of every block, from the definition."""
    top = torch.finfo(dtype).max if dtype.is_floating_point else 127.0
    grid = (-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
    scale, codes = torch.empty(grid), torch.empty_like(weight)
    for r in range(grid[0]):
        for c in range(grid[1]):
            block = (slice(r * rows, (r + 1) * rows), slice(c * columns, (c + 1) * columns))
            scale[r, c] = weight[block].abs().max() / top
            codes[block] = weight[block] / scale[r, c]
    return (codes if dtype.is_floating_point else codes.round()).to(dtype), scale


def spread(scale, rows, columns, shape):
    """Return the scale of every entry."""
    expanded = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return expanded[: shape[0], : shape[1]]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize(
    ("block", "shape", "stored"),
    [
        ((200, 300), (), "a scale per tensor"),
        ((200, 300), (1,), "a scale per tensor"),
        ((1, 300), (200,), "a scale per row"),
        ((1, 300), (200, 1), "a scale per row"),
        ((200, 1), (1, 300), "a scale per column"),
        ((128, 128), (2, 3), "128×128 blocks"),
        ((1, 50), (200, 6), "blocks of 50"),
    ],
)
def test_a_scale_multiplies_its_block(tmp_path, dtype, block, shape, stored):
    codes, scale = quantise(plant(200, 300), *block, dtype)
    state = {"fc.weight": codes, "fc.weight_scale": scale.reshape(shape)}
    path = tmp_path / "model.safetensors"
    save_file({**state, "fc.bias": torch.zeros(200), "fc.input_scale": torch.ones(())}, path)
    expected = codes.float() * spread(scale, *block, (200, 300))
    assert torch.equal(load_weight(path, "fc.weight"), expected)
    result = probe_file(path)
    assert [layer.name for layer in result.probed] == ["fc.weight"]
    assert result["fc.weight"].dtype.endswith(f", {stored}")
    assert result["fc.weight"].rank == 6
    assert result.parameters == 200 * 300 + 200
    assert rows_by_status(result)[Status.MERGED] == {"fc.weight_scale", "fc.input_scale"}
    assert torch.equal(load_weight(state, "fc.weight"), expected)


@pytest.mark.parametrize(
    ("name", "scale_name"),
    [
        ("fc.weight", "fc.weight_scale_inv"),
        ("fc.weight", "fc.scale_weight"),
        ("fc.weight", "fc.scale"),
        ("experts.gate_up_proj", "experts.gate_up_proj_scale_inv"),
        ("experts.gate_up_proj", "experts.gate_up_proj_scale"),
        ("experts.gate_up_proj", "experts.gate_up_proj_weight_scale"),
    ],
)
def test_names_of_scales(name, scale_name):
    codes, scale = quantise(plant(64, 96), 1, 96)
    result = rankwise.probe({scale_name: scale, name: codes})
    assert torch.equal(load_weight({name: codes, scale_name: scale}, name), codes.float() * scale)
    assert result[scale_name].reason == f"part of {name}"
    assert result[name].rank == 6


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.randoms())
def test_ragged_blocks(rows, columns, high, wide, random):
    torch.manual_seed(random.randrange(2**31))
    weight = torch.randn(rows, columns).clamp(min=1e-3)
    codes, scale = quantise(weight, high, wide)
    config = {"quantization_config": {"weight_block_size": [high, wide]}}
    state = {"fc.weight": codes, "fc.weight_scale_inv": scale}
    expected = codes.float() * spread(scale, high, wide, weight.shape)
    assert torch.equal(load_weight(state, "fc.weight", config), expected)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_scales_that_are_exponents(tmp_path, as_bytes):
    weight = plant(64, 96)
    exponents = torch.randint(110, 120, (64, 3), dtype=torch.uint8)
    scale = 2.0 ** (exponents.float() - 127)
    codes = (weight / spread(scale, 1, 32, (64, 96))).clamp(-448, 448).to(FP8)
    stored = exponents if as_bytes else exponents.view(torch.float8_e8m0fnu)
    save_file({"fc.weight": codes, "fc.weight_scale": stored}, tmp_path / "w.safetensors")
    expected = codes.float() * spread(scale, 1, 32, (64, 96))
    assert torch.equal(load_weight(tmp_path / "w.safetensors", "fc.weight"), expected)
    state = {"fc.weight": codes, "fc.weight_scale": stored}
    assert torch.equal(load_weight(state, "fc.weight"), expected)
    assert rows_by_status(probe_file(tmp_path / "w.safetensors"))[Status.MERGED] == {
        "fc.weight_scale"
    }


@pytest.mark.parametrize("stored", [torch.uint8, torch.float8_e8m0fnu])
def test_an_exponent_that_stands_for_no_number(stored):
    exponents = torch.full((64, 3), 127, dtype=torch.uint8)
    exponents[5, 1] = 255
    state = {"fc.weight": plant(64, 96).to(FP8), "fc.weight_scale": exponents.view(stored)}
    assert rankwise.probe(state)["fc.weight"].status is Status.NOT_FINITE


@pytest.mark.parametrize("scale", [(5,), (5, 2, 3), (7, 300), (0,), (200, 300, 1)])
def test_a_scale_that_does_not_fit_is_never_measured_as_codes(scale):
    state = {"fc.weight": plant(200, 300).to(FP8), "fc.weight_scale": torch.ones(scale)}
    result = rankwise.probe(state)
    assert not result.probed
    row = result["fc.weight"]
    assert row.status is Status.QUANTISED
    assert row.reason.startswith("quantised, not measured: fp8 e4m3 with a scale of shape")
    assert result["fc.weight_scale"].status is Status.MERGED


def test_fp8_without_a_scale_is_a_plain_cast():
    weight = plant(64, 96)
    result = rankwise.probe({"fc.weight": weight.to(FP8)})
    assert (result["fc.weight"].rank, result["fc.weight"].dtype) == (6, "float8_e4m3fn")


def test_an_expert_is_dequantised_alone():
    pairs = [quantise(plant(40, 64), 1, 64) for _ in range(3)]
    codes, scale = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    state = {"experts.down_proj": codes, "experts.down_proj_scale_inv": scale}
    whole = load_weight(state, "experts.down_proj")
    assert torch.equal(whole, codes.float() * scale)
    for rows in ((0, 1), (1, 2), (2, 1)):
        piece = load_weight(state, "experts.down_proj", rows=rows)
        assert torch.equal(piece, whole[rows[0] : sum(rows)])


def test_a_scale_per_expert():
    codes = torch.stack([plant(40, 64).mul(100).to(FP8) for _ in range(3)])
    scale = torch.tensor([0.5, 1.0, 2.0])
    state = {"experts.w": codes, "experts.w_scale": scale}
    assert torch.equal(load_weight(state, "experts.w"), codes.float() * scale[:, None, None])
    assert torch.equal(load_weight(state, "experts.w", rows=(2, 1)), 2 * codes[2:].float())


def test_a_scale_per_filter_of_a_convolution():
    codes, scale = torch.randn(16, 8, 3, 3).to(FP8), torch.rand(16)
    state = {"conv.weight": codes, "conv.weight_scale": scale}
    expected = codes.float() * scale[:, None, None, None]
    assert torch.equal(load_weight(state, "conv.weight"), expected)
    row = rankwise.probe(state)["conv.weight"]
    assert (row.kind, row.dtype) == ("conv2d", "fp8 e4m3, a scale per filter")


def test_int8_with_zero_points():
    codes = torch.randint(-128, 128, (64, 96), dtype=torch.int8)
    scale, zero = torch.rand(64, 3), torch.randint(-9, 9, (64, 3), dtype=torch.int8)
    state = {"l.weight": codes, "l.weight_scale": scale, "l.weight_zero_point": zero}
    expected = (codes.float() - spread(zero, 1, 32, (64, 96))) * spread(scale, 1, 32, (64, 96))
    assert torch.equal(load_weight(state, "l.weight"), expected)


def test_integers_without_a_scale_stay_integers():
    state = {"codes": torch.randint(-128, 128, (64, 96), dtype=torch.int8)}
    assert rankwise.probe(state)["codes"].status is Status.INTEGER


def test_a_linear_layer_of_transformers_in_memory():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, FP8Linear

    codes, scale = quantise(plant(256, 384), 128, 128)
    layer = FP8Linear(384, 256, block_size=(128, 128))
    layer.load_state_dict({"weight": codes, "weight_scale_inv": scale})
    model = nn.Sequential(layer)
    real = Fp8Dequantize(None)._dequantize_one(codes, scale, torch.float32)
    assert torch.equal(load_weight(model, "0.weight"), real)
    result = rankwise.probe(model)
    assert {layer.name: layer.rank for layer in result.probed} == {"0.weight": 6}


def test_without_data_there_is_no_measurement():
    with torch.device("meta"):
        state = {"l.weight": torch.empty(8, 8, dtype=FP8), "l.weight_scale": torch.empty(8)}
    assert rankwise.probe(state)["l.weight"].status is Status.NO_DATA
