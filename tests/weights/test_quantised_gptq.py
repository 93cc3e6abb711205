"""GPTQ and AWQ against references in plain Python, and AWQ against compressed-tensors' reader."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import rankwise
from rankwise import Status
from rankwise.weights.combine import combine_parts
from rankwise.weights.module import describe_tensor
from tests.reference.quantised_reference import dequantise_awq, dequantise_gptq, pack_words
from tests.weights.quantised_files import load_weight, plant, probe_file, rows_by_status

IN, OUT, GROUP = 128, 96, 32


def int32(rows):
    return torch.tensor(rows, dtype=torch.int32)


def quantise(weight, bits, groups):
    """Return codes [in, out], scales and zero points [group, out], by least and largest number."""
    top = 2**bits - 1
    count = int(groups.max()) + 1
    scales, zeros = torch.empty(count, OUT), torch.empty(count, OUT)
    codes = torch.empty(IN, OUT)
    for g in range(count):
        block = weight.T[groups == g]
        low, high = block.amin(0).clamp(max=0), block.amax(0).clamp(min=0)
        scales[g] = ((high - low) / top).half().float()
        zeros[g] = (-low / scales[g]).round().clamp(1, top)
        codes[groups == g] = (block / scales[g] + zeros[g]).round().clamp(0, top)
    return codes.int(), scales, zeros.int()


def gptq_state(bits, *, shuffled=False, minus_one=1):
    groups = torch.arange(IN) // GROUP
    if shuffled:
        groups = groups[torch.randperm(IN)]
    codes, scales, zeros = quantise(plant(OUT, IN, noise=0.3), bits, groups)
    qweight = int32([pack_words(column, bits) for column in codes.T.tolist()]).T.contiguous()
    qzeros = int32([pack_words([z - minus_one for z in row], bits) for row in zeros.tolist()])
    return {
        "fc.qweight": qweight,
        "fc.qzeros": qzeros,
        "fc.scales": scales.half(),
        "fc.g_idx": groups.int(),
        "fc.bias": torch.zeros(OUT),
    }


def expected_of(state, bits, minus_one=1):
    parts = [state[f"fc.{part}"].tolist() for part in ("qweight", "qzeros", "scales", "g_idx")]
    return torch.tensor(dequantise_gptq(*parts, size=bits, stored_minus_one=minus_one)).T


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("shuffled", [False, True])
def test_gptq(tmp_path, bits, shuffled):
    state = gptq_state(bits, shuffled=shuffled)
    save_file(state, tmp_path / "w.safetensors")
    values = load_weight(tmp_path / "w.safetensors", "fc.weight")
    torch.testing.assert_close(values, expected_of(state, bits), rtol=1e-6, atol=0)
    result = probe_file(tmp_path / "w.safetensors")
    assert {layer.name: layer.rank for layer in result.probed} == {
        "fc.weight": result["fc.weight"].rank
    }
    assert (result["fc.weight"].shape, result["fc.weight"].dtype) == ((OUT, IN), f"GPTQ int{bits}")
    assert result["fc.weight"].rank == 6 or bits == 2
    assert rows_by_status(result)[Status.MERGED] == state.keys() - {"fc.bias"}


@pytest.mark.parametrize("bits", [3, 4])
def test_a_last_word_that_is_not_full(bits):
    state = gptq_state(bits)
    inputs = IN - 9
    state["fc.g_idx"] = state["fc.g_idx"][:inputs].clone()
    state["fc.qweight"] = state["fc.qweight"][: -(-inputs * bits // 32)].clone()
    values = load_weight(state, "fc.weight")
    torch.testing.assert_close(values, expected_of(state, bits), rtol=1e-6, atol=0)


def test_a_zero_point_of_zero_is_stored_as_the_largest_code():
    state = gptq_state(4)
    state["fc.qzeros"] = torch.full_like(state["fc.qzeros"], -1)
    values = load_weight(state, "fc.weight")
    torch.testing.assert_close(values, expected_of(state, 4), rtol=1e-6, atol=0)
    assert values.min() >= 0


def test_the_buffers_of_a_module():
    state = gptq_state(4, shuffled=True)
    layer = nn.Module()
    for name, tensor in state.items():
        layer.register_buffer(name.removeprefix("fc."), tensor)
    model = nn.Module()
    model.fc = layer
    assert torch.equal(load_weight(model, "fc.weight"), load_weight(state, "fc.weight"))
    assert [row.name for row in rankwise.probe(model).probed] == ["fc.weight"]


@pytest.mark.parametrize("quantizer", ["gptq_v2", "auto_round"])
def test_zero_points_as_they_are(quantizer):
    state = gptq_state(4, minus_one=0)
    key = "checkpoint_format" if quantizer == "gptq_v2" else "packing_format"
    config = {"quantization_config": {"bits": 4, "group_size": GROUP, key: quantizer}}
    expected = expected_of(state, 4, minus_one=0)
    assert torch.allclose(load_weight(state, "fc.weight", config), expected, rtol=1e-6, atol=0)


def test_planes_of_bits_are_not_measured():
    stored = [describe_tensor(name, tensor) for name, tensor in gptq_state(3).items()]
    config = {"quantization_config": {"checkpoint_format": "gptq_p"}}
    rows = {weight.name: weight for weight in combine_parts(stored, config)}
    assert rows["fc.qweight"].obstacle[0] is Status.QUANTISED
    assert "gptq_p" in rows["fc.qweight"].obstacle[1]


def test_centred_zero_points_show_the_format():
    state = gptq_state(4)
    state["fc.qzeros"] = torch.full_like(state["fc.qzeros"], 0x77777777)
    first = load_weight(state, "fc.weight")
    state["fc.qzeros"] = int32([[0x88888888 - 2**32] * (OUT // 8)] * (IN // GROUP))
    assert torch.equal(load_weight(state, "fc.weight"), first)


def test_without_a_list_of_groups_columns_are_in_order():
    state = gptq_state(4)
    expected = load_weight(state, "fc.weight")
    del state["fc.g_idx"]
    assert torch.equal(load_weight(state, "fc.weight"), expected)


@pytest.mark.parametrize("config", [{}, {"bits": 3}, {"bits": "four"}, {"bits": 4.0}, ["gptq"], 4])
def test_shapes_decide_where_the_configuration_is_wrong(config):
    state = gptq_state(4)
    expected = load_weight(state, "fc.weight")
    config = {"quantization_config": config}
    assert torch.equal(load_weight(state, "fc.weight", config), expected)


def awq_state():
    groups = torch.arange(IN) // GROUP
    codes, scales, zeros = quantise(plant(OUT, IN, noise=0.3), 4, groups)

    def pack(rows):
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        starts = range(0, OUT, 8)
        return int32(
            [pack_words([row[s + k] for s in starts for k in order], 4) for row in rows.tolist()]
        )

    return {"fc.qweight": pack(codes), "fc.qzeros": pack(zeros), "fc.scales": scales.half()}


def test_awq(tmp_path):
    state = awq_state()
    save_file(state, tmp_path / "w.safetensors")
    parts = [state[f"fc.{part}"].tolist() for part in ("qweight", "qzeros", "scales")]
    expected = torch.tensor(dequantise_awq(*parts, GROUP)).T
    values = load_weight(tmp_path / "w.safetensors", "fc.weight")
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=0)
    result = probe_file(tmp_path / "w.safetensors")
    assert {layer.name: (layer.rank, layer.dtype) for layer in result.probed} == {
        "fc.weight": (6, "AWQ int4")
    }
    assert rows_by_status(result)[Status.MERGED] == state.keys()


def test_awq_as_compressed_tensors_reads_it():
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

    state = awq_state()
    converter = AutoAWQConverter(bits=4, group_size=GROUP, zero_point=True, version="gemm")
    converted = converter.process(dict(state))
    assert "fc.weight_packed" in converted
    expected = load_weight(converted, "fc.weight")
    assert torch.equal(load_weight(state, "fc.weight"), expected)


def damage(state, part, value):
    return (
        {**state, f"fc.{part}": value}
        if value is not None
        else {name: tensor for name, tensor in state.items() if name != f"fc.{part}"}
    )


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("qzeros", None),
        ("qzeros", torch.zeros(4, 5, dtype=torch.int32)),
        ("qzeros", torch.zeros(4, 12)),
        ("scales", torch.ones(4, 7)),
        ("scales", torch.ones(0, OUT)),
        ("scales", torch.ones(3, OUT)),
        ("scales", torch.ones(4, OUT, dtype=torch.int32)),
        ("g_idx", torch.zeros(5, dtype=torch.int32)),
        ("g_idx", torch.zeros(IN)),
        ("qweight", torch.zeros(16, OUT, dtype=torch.int16)),
        ("qweight", torch.zeros(2, 16, OUT, dtype=torch.int32)),
        ("qweight", torch.zeros(16, 0, dtype=torch.int32)),
    ],
)
def test_shapes_that_do_not_fit_are_not_measured(part, value):
    result = rankwise.probe(damage(gptq_state(4), part, value))
    assert not result.probed
    assert result["fc.qweight"].status is Status.QUANTISED
    assert result["fc.qweight"].reason.startswith("quantised, not measured: ")
    assert result["fc.scales"].status is Status.MERGED


@pytest.mark.parametrize("group", [-1, 4, 2**31 - 1])
def test_a_group_that_does_not_exist(group):
    state = gptq_state(4)
    state["fc.g_idx"][7] = group
    row = rankwise.probe(state)["fc.weight"]
    assert row.status is Status.UNREADABLE
    assert row.reason.startswith("Expected groups from 0 to 3 in g_idx")
