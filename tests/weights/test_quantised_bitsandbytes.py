"""nf4, fp4 and int8 of bitsandbytes, as files and in memory, against the library itself."""

import json

import bitsandbytes as bnb
import pytest
import torch
from bitsandbytes import functional
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import rankwise
from rankwise import Status
from tests.weights.quantised_files import load_weight, plant, probe_file, rows_by_status


def four_bit_layer(kind="nf4", *, nested=True, rows=96, columns=128, **options):
    layer = bnb.nn.Linear4bit(
        columns, rows, quant_type=kind, compress_statistics=nested, bias=False, **options
    )
    layer.load_state_dict({"weight": plant(rows, columns, noise=0.3)})
    return nn.Sequential(layer.to("cpu"))


def four_bit_expected(model):
    weight = model[0].weight
    return functional.dequantize_4bit(weight.data, weight.quant_state).float()


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_four_bits(tmp_path, kind, nested):
    model = four_bit_layer(kind, nested=nested)
    expected = four_bit_expected(model)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    for target in (tmp_path / "w.safetensors", model, model.state_dict()):
        torch.testing.assert_close(load_weight(target, "0.weight"), expected, rtol=1e-6, atol=1e-9)
        result = rankwise.probe(target)
        assert {row.name: (row.rank, row.dtype) for row in result.probed} == {"0.weight": (6, kind)}
        assert result["0.weight"].shape == (96, 128)
    merged = rows_by_status(probe_file(tmp_path / "w.safetensors"))[Status.MERGED]
    assert merged == state.keys() - {"0.weight"}


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32, torch.float16])
def test_codes_stored_in_another_type(tmp_path, storage):
    model = four_bit_layer(quant_storage=storage)
    assert model[0].weight.dtype == storage
    save_file(dict(model.state_dict()), tmp_path / "w.safetensors")
    for target in (tmp_path / "w.safetensors", model):
        values = load_weight(target, "0.weight")
        torch.testing.assert_close(values, four_bit_expected(model), rtol=1e-6, atol=1e-9)
    assert [row.name for row in probe_file(tmp_path / "w.safetensors").probed] == ["0.weight"]


def test_a_size_that_no_block_divides():
    model = four_bit_layer(rows=33, columns=70)
    for target in (model, model.state_dict()):
        values = load_weight(target, "0.weight")
        torch.testing.assert_close(values, four_bit_expected(model), rtol=1e-6, atol=1e-9)


def test_not_quantised_yet():
    layer = bnb.nn.Linear4bit(128, 96, bias=False)
    layer.load_state_dict({"weight": plant(96, 128)})
    assert rankwise.probe(nn.Sequential(layer))["0.weight"].rank == 6


def test_int8(tmp_path):
    layer = bnb.nn.Linear8bitLt(128, 96, has_fp16_weights=False, bias=False)
    layer.load_state_dict({"weight": plant(96, 128, noise=0.3)})
    model = nn.Sequential(layer.to("cpu"))
    codes, largest = layer.weight.data, layer.weight.SCB
    expected = functional.int8_vectorwise_dequant(codes, largest)
    state = {"0.weight": codes, "0.SCB": largest, "0.weight_format": torch.tensor(0).byte()}
    assert model.state_dict().keys() == state.keys()
    save_file(state, tmp_path / "w.safetensors")
    for target in (tmp_path / "w.safetensors", model, state):
        torch.testing.assert_close(load_weight(target, "0.weight"), expected, rtol=1e-6, atol=0)
        result = rankwise.probe(target)
        assert {row.name: row.rank for row in result.probed} == {"0.weight": 6}
        assert result["0.weight"].dtype == "int8 (bitsandbytes)"
    model(torch.randn(2, 128))  # the layer moves its scale from the weight into itself
    assert layer.weight.SCB is None
    torch.testing.assert_close(load_weight(model, "0.weight"), expected, rtol=1e-6, atol=0)


def test_int8_in_the_order_of_a_kernel():
    codes = torch.randint(-127, 127, (64, 96), dtype=torch.int8)
    state = {"l.weight": codes, "l.SCB": torch.ones(64), "l.weight_format": torch.tensor(2).byte()}
    result = rankwise.probe(state)
    assert result["l.weight"].status is Status.QUANTISED
    assert result["l.SCB"].status is Status.MERGED


def with_state(state, **changes):
    key = "0.weight.quant_state.bitsandbytes__nf4"
    value = json.loads(bytes(state[key].tolist())) | changes
    return {**state, key: torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)}


HOSTILE = st.one_of(
    st.none(), st.integers(-2, 3), st.sampled_from([2**40, 2**63, 1e300, "x", [], [2**40, 2**40]])
)


@given(
    st.sampled_from(["shape", "blocksize", "nested_blocksize", "nested_offset"]),
    HOSTILE,
)
def test_a_hostile_state_gives_a_row(key, value):
    state = with_state(four_bit_layer().state_dict(), **{key: value})
    row = rankwise.probe(state)["0.weight"]
    if key == "nested_offset" and isinstance(value, int | float):
        assert row.status in (Status.PROBED, Status.NOT_FINITE)
    elif key == "nested_blocksize" and isinstance(value, int) and value > 2**39:
        assert row.status is Status.PROBED  # the only block, however large, has all scales
    else:
        assert row.status is Status.QUANTISED
        assert row.reason.startswith("quantised, not measured: bitsandbytes 4-bit")


def test_a_shape_with_fewer_numbers_than_codes():
    state = with_state(four_bit_layer().state_dict(), shape=[1, 96 * 128 - 8])
    assert rankwise.probe(state)["0.weight"].status is Status.QUANTISED


@given(st.binary(max_size=40))
def test_a_state_that_is_not_json_gives_a_row(data):
    state = dict(four_bit_layer().state_dict())
    state["0.weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(data), dtype=torch.uint8)
    result = rankwise.probe(state)
    assert result["0.weight"].status is Status.QUANTISED
    assert not result.probed


@pytest.mark.parametrize("part", ["absmax", "quant_map", "nested_quant_map", "nested_absmax"])
def test_a_missing_or_short_table_gives_a_row(part):
    state = dict(four_bit_layer().state_dict())
    short = {**state, f"0.weight.{part}": state[f"0.weight.{part}"][:0]}
    assert rankwise.probe(short)["0.weight"].status is Status.QUANTISED
    if part != "nested_absmax":
        del state[f"0.weight.{part}"]
        assert rankwise.probe(state)["0.weight"].status is Status.QUANTISED
