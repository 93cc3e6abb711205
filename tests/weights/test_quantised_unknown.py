"""Layouts that are listed and not measured; parts without their codes; hostile files."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rankwise
from rankwise import Status
from tests.weights.quantised_files import plant, rows_by_status


def codes(*shape, dtype=torch.uint8):
    return torch.randint(0, 100, shape).to(dtype)


LAYOUTS = {
    "HQQ": {"W_q": codes(64, 64), "scale": torch.rand(64, 8), "zero": torch.rand(64, 8)},
    "AQLM": {
        "codes": codes(32, 16, 2, dtype=torch.int8),
        "codebooks": torch.rand(2, 256, 1, 8),
        "scales": torch.rand(32, 4, 1, 1),
    },
    "QuIP#": {
        "Qidxs": codes(64, 16, dtype=torch.int64),
        "SU": torch.rand(64),
        "SV": torch.rand(64),
    },
    "EXL2": {
        "q_weight": codes(64, 64, dtype=torch.int32),
        "q_scale": codes(8, 8, dtype=torch.int32),
        "q_scale_max": torch.rand(8),
    },
    "EXL3": {
        "trellis": codes(4, 4, 64, dtype=torch.int16),
        "suh": torch.rand(64),
        "svh": torch.rand(64),
    },
    "marlin": {"B": codes(8, 128, dtype=torch.int32), "s": torch.rand(8, 64)},
    "QQQ": {
        "B": codes(8, 128, dtype=torch.int32),
        "s_channel": torch.rand(1, 64),
        "s_group": torch.rand(8, 64),
    },
    "EETQ": {"weight": codes(64, 96, dtype=torch.int8), "weight_scales": torch.rand(96)},
    "HIGGS": {
        "weight": codes(64, 96, dtype=torch.int16),
        "scales": torch.rand(64, 8),
        "tables": torch.rand(16, 8),
        "tables2": torch.rand(16, 8, 8),
    },
    "SpQR": {
        "dense_weights": codes(64, 16, dtype=torch.int64),
        "row_offsets": codes(65, dtype=torch.int32),
        "col_vals": codes(30, dtype=torch.int32),
    },
    "SINQ": {"W_q": codes(64, 64), "scales": torch.rand(64, 8), "scale2": torch.rand(1, 64)},
    "packed codes of quanto": {
        "weight._data._data": codes(64, 32),
        "weight._scale": torch.rand(64, 4),
        "weight._shift": torch.rand(64, 4),
    },
    "neither GPTQ nor AWQ (gemm)": {  # AWQ (gemv): [out, in/8], scales [out, groups]
        "qweight": codes(64, 16, dtype=torch.int32),
        "qzeros": codes(64, 1, dtype=torch.int32),
        "scales": torch.rand(64, 8),
    },
    "VPTQ": {
        "indices": codes(1, 64, 16, dtype=torch.int16),
        "centroids.weight": torch.rand(16, 64),
        "weight_scale": torch.rand(64),
    },
    "FP-Quant": {
        "qweight": codes(64, 32),
        "scales": codes(64, 4),
        "forward_hadamard_matrix": torch.rand(32, 32),
        "backward_hadamard_matrix": torch.rand(32, 32),
        "weight_global_scale": torch.rand(()),
    },
    "compressed-tensors 2:4": {
        "weight_packed": codes(8, 128, dtype=torch.int32),
        "scale_packed": torch.rand(8, 64),
        "meta": codes(8, 8, dtype=torch.int16),
    },
    "compressed-tensors, sparse": {
        "bitmask": codes(64, 12),
        "compressed": torch.rand(300),
        "row_offsets": codes(64, dtype=torch.int64),
    },
    "uint8 codes": {"weight": codes(16, 64), "weight_scale": torch.rand(1)},
    "codes of a layout that is not known": {
        "packed": codes(64, 32, dtype=torch.int16),
        "zeros": torch.rand(64, 8),
        "scale": torch.rand(64, 8),
    },
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_listed_and_none_of_its_tensors_is_a_layer(name):
    state = {f"block.fc.{part}": tensor for part, tensor in LAYOUTS[name].items()}
    result = rankwise.probe({**state, "block.norm.weight": torch.ones(64)})
    assert not result.probed
    rows = rows_by_status(result)
    first = next(iter(state))
    assert rows[Status.QUANTISED] == {first}
    assert rows[Status.MERGED] == state.keys() - {first}
    assert result[first].reason.startswith("quantised, not measured: ")
    assert name in result[first].reason
    assert not [f for f in rankwise.check(state).findings if f.severity == "error"]


def comfy(text):
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@pytest.mark.parametrize("more", ["", ', "full_precision_matrix_mult": true'])
def test_fp8_of_comfyui_is_plain(more):
    weight = plant(96, 128)
    state = {
        "fc.weight": (weight / weight.abs().max() * 448).to(torch.float8_e4m3fn),
        "fc.weight_scale": weight.abs().max() / 448,
        "fc.comfy_quant": comfy(f'{{"format": "float8_e4m3fn"{more}}}'),
    }
    result = rankwise.probe(state)
    assert {row.name: row.rank for row in result.probed} == {"fc.weight": 6}
    assert rows_by_status(result)[Status.MERGED] == {"fc.weight_scale", "fc.comfy_quant"}


def test_a_rotated_weight_of_comfyui_is_not_measured():
    state = {
        "fc.weight": plant(96, 128).to(torch.float8_e4m3fn),
        "fc.weight_scale": torch.ones(()),
        "fc.comfy_quant": comfy('{"format": "float8_e4m3fn", "convrot": true}'),
    }
    assert rankwise.probe(state)["fc.weight"].status is Status.QUANTISED


def test_without_data_that_is_the_reason():
    state = {name: part.to("meta") for name, part in LAYOUTS["HQQ"].items()}
    assert rankwise.probe(state)["W_q"].status is Status.NO_DATA


@pytest.mark.parametrize("text", ['{"format": "nvfp4"}', "[]", "\x1b", '{"format": 3}'])
def test_other_formats_of_comfyui_are_not_measured(text):
    state = {
        "fc.weight": codes(128, 64),
        "fc.weight_scale": torch.ones(128, 8).to(torch.float8_e4m3fn),
        "fc.weight_scale_2": torch.ones(()),
        "fc.comfy_quant": comfy(text),
    }
    result = rankwise.probe(state)
    assert result["fc.weight"].reason.startswith("quantised, not measured: ComfyUI's ")
    assert rows_by_status(result)[Status.MERGED] == state.keys() - {"fc.weight"}


@pytest.mark.parametrize(
    "name",
    [
        *("fc.weight_scale", "fc.weight_scale_inv", "experts.gate_up_proj_scale_inv", "fc.scales"),
        *("experts.gate_up_proj_scales", "fc.weight.absmax", "fc.weight.quant_map", "fc.qzeros"),
    ],
)
def test_a_scale_without_its_codes_is_no_layer(name):
    row = rankwise.probe({name: plant(64, 96)})[name]
    assert row.status is Status.NOT_A_WEIGHT
    assert "scale" in row.reason


@pytest.mark.parametrize(
    "state",
    [
        {
            "attn.relative_position_index": codes(49, 49, dtype=torch.int64),
            "attn.scale": plant(9, 9),
        },
        {"position_ids": codes(64, 64, dtype=torch.int32)},
        {"mask": codes(64, 64), "mask_weight": plant(9, 9)},
    ],
)
def test_ordinary_integers_stay_what_they_are(state):
    assert rankwise.probe(state).layers[0].status is Status.INTEGER


SIDES = st.lists(st.integers(0, 40), max_size=4)
DTYPES = st.sampled_from(
    [
        *(torch.uint8, torch.int8, torch.int32, torch.float32, torch.float16),
        *(torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.int64),
    ]
)
NAMES = (
    *("weight", "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_zero_point"),
    *("weight_packed", "weight_shape", "weight_g_idx", "weight_global_scale", "SCB", "scale"),
    *("qweight", "qzeros", "scales", "g_idx", "proj_blocks", "proj_scales", "weight.absmax"),
    *("weight.quant_map", "weight.quant_state.bitsandbytes__nf4", "_weight_qdata"),
    *("_weight_scale", "weight._data", "weight._scale", "W_q", "zero", "codes", "codebooks"),
)
NEVER_LAYERS = {
    *("fc.weight_scale", "fc.weight_scale_2", "fc.weight_scale_inv", "fc.weight_zero_point"),
    *("fc.weight_global_scale", "fc.SCB", "fc.qzeros", "fc.scales", "fc.proj_scales"),
    *("fc.weight.absmax", "fc.weight.quant_map", "fc._weight_scale", "fc.weight._scale"),
}
SETTINGS = st.dictionaries(
    st.sampled_from(["bits", "group_size", "weight_block_size", "config_groups", "zero_point"]),
    st.one_of(
        st.none(), st.booleans(), st.integers(-1, 128), st.text(max_size=3), st.lists(st.integers())
    ),
)


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from(NAMES), st.tuples(SIDES, DTYPES), min_size=2, max_size=6),
    st.one_of(SETTINGS, st.integers(), st.none()),
)
def test_any_shapes_and_types_give_rows(parts, config):
    from rankwise.probes.parallel import measure_weights
    from rankwise.weights.combine import combine_parts
    from rankwise.weights.module import describe_tensor

    state = {f"fc.{name}": torch.ones(sides).to(dtype) for name, (sides, dtype) in parts.items()}
    stored = [describe_tensor(name, tensor) for name, tensor in state.items()]
    weights = combine_parts(stored, {"quantization_config": config})
    numbers = sum(tensor.numel() for tensor in state.values())
    assert all(weight.parameters is None or weight.parameters <= 32 * numbers for weight in weights)
    rows = measure_weights(weights)
    assert {row.name for row in rows} >= state.keys()
    assert not {row.name for row in rows if row.status is Status.PROBED} & NEVER_LAYERS
    scales = {"fc.weight_scale", "fc.weight_scale_inv", "fc.scale"} & state.keys()
    for row in rows:
        is_raw = row.dtype in {"float8_e4m3fn", "float8_e8m0fnu"} and row.name == "fc.weight"
        assert not (scales and is_raw and row.status is Status.PROBED)
    assert all(row.reason for row in rows if row.status is not Status.PROBED)
