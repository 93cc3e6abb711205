"""Quantised tensors in memory, and torchao's and quanto's files."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    quantize_,
)

import rankwise
from rankwise import Status
from tests.weights.quantised_files import load_weight, plant, probe_file, rows_by_status

CONFIGS = {
    "int8 by row": Int8WeightOnlyConfig(version=2),
    "int8 by group": Int8WeightOnlyConfig(version=2, granularity=PerGroup(32)),
    "fp8 by row": Float8WeightOnlyConfig(),
    "int4 by group": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
}


def make_layer():
    layer = nn.Linear(128, 96, bias=False)
    layer.load_state_dict({"weight": plant(96, 128, noise=0.3)})
    return nn.Sequential(layer)


@pytest.mark.parametrize("name", CONFIGS)
def test_torchao(tmp_path, name):
    model = make_layer()
    quantize_(model, CONFIGS[name])
    assert type(model[0].weight) is not nn.Parameter
    expected = model[0].weight.dequantize()
    for target in (model, model.state_dict()):
        assert torch.equal(load_weight(target, "0.weight"), expected)
        result = rankwise.probe(target)
        assert {row.name: row.rank for row in result.probed} == {"0.weight": 6}
        assert result["0.weight"].dtype == type(model[0].weight).__name__
    state, metadata = flatten_tensor_state_dict(model.state_dict())
    save_file(state, tmp_path / "w.safetensors", metadata)
    values = load_weight(tmp_path / "w.safetensors", "0.weight")
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=0)
    result = probe_file(tmp_path / "w.safetensors")
    assert {row.name: row.rank for row in result.probed} == {"0.weight": 6}
    assert rows_by_status(result)[Status.MERGED] == state.keys()


@pytest.mark.parametrize(
    "state",
    [
        {
            "fc._weight_qdata": torch.zeros(96, 64, dtype=torch.uint8),
            "fc._weight_scale": torch.ones(96, 8).to(torch.float8_e4m3fn),
            "fc._weight_per_tensor_scale": torch.ones(()),
        },
        {  # pairs of 4-bit integers, whose scales would fit integers of 8 bits as well
            "fc._weight_qdata": torch.zeros(16, 32, dtype=torch.int8),
            "fc._weight_scale": torch.ones(2, 16),
            "fc._weight_zero_point": torch.ones(2, 16),
        },
    ],
)
def test_a_layout_of_torchao_that_is_not_known(state):
    result = rankwise.probe(state)
    assert result["fc._weight_qdata"].status is Status.QUANTISED
    assert rows_by_status(result)[Status.MERGED] == state.keys() - {"fc._weight_qdata"}


class WithoutDequantize(torch.Tensor):
    """A tensor subclass that has codes and no way to dequantise them."""

    qdata = torch.zeros(4, 4, dtype=torch.int8)


def test_a_tensor_that_cannot_be_dequantised():
    weight = plant(96, 128).as_subclass(WithoutDequantize)
    row = rankwise.probe({"fc.weight": weight})["fc.weight"]
    assert row.status is Status.QUANTISED
    assert "WithoutDequantize" in row.reason


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quanto(tmp_path, dtype):
    weight = plant(96, 128, noise=0.3)
    scale = weight.abs().amax(1, keepdim=True) / (127 if dtype == torch.int8 else 448)
    codes = weight / scale
    codes = (codes.round() if dtype == torch.int8 else codes).to(dtype)
    state = {
        "fc.weight._data": codes,
        "fc.weight._scale": scale,
        "fc.input_scale": torch.ones(()),
        "fc.output_scale": torch.ones(()),
    }
    save_file(state, tmp_path / "w.safetensors")
    values = load_weight(tmp_path / "w.safetensors", "fc.weight")
    assert torch.equal(values, codes.float() * scale)
    result = probe_file(tmp_path / "w.safetensors")
    assert {row.name: row.rank for row in result.probed} == {"fc.weight": 6}
    assert rows_by_status(result)[Status.MERGED] == state.keys()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("by_row", [False, True])
def test_types_of_torch(by_row):
    weight = plant(96, 128, noise=0.3)
    scale = weight.abs().amax(1) / 127
    zero = torch.zeros(96, dtype=torch.int64)
    if by_row:
        tensor = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
    else:
        tensor = torch.quantize_per_tensor(weight, float(scale.max()), 0, torch.qint8)
    assert torch.equal(load_weight({"w": tensor}, "w"), tensor.dequantize())
    result = rankwise.probe({"w": tensor})
    assert (result["w"].rank, result["w"].dtype) == (6, "qint8")


@pytest.mark.parametrize("dtype", [torch.float8_e8m0fnu, torch.float4_e2m1fn_x2])
def test_codes_alone_are_not_measured(dtype):
    row = rankwise.probe({"w": torch.ones(96, 128, dtype=torch.uint8).view(dtype)})["w"]
    assert row.status is Status.QUANTISED
