"""The layouts of compressed-tensors, compressed and decompressed by the library itself."""

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

import rankwise
from rankwise import Status
from tests.weights.quantised_files import load_weight, plant, probe_file, rows_by_status

ROWS, COLUMNS = 96, 128


def parameters_of(weight, args):
    """Return scale and zero point of every group, from least and largest number."""
    strategy = args.strategy
    if strategy == "tensor":
        low, high = weight.amin().reshape(1), weight.amax().reshape(1)
    elif strategy == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    elif strategy == "block":
        grid = weight.reshape(3, 32, 4, 32)
        low, high = grid.amin((1, 3)), grid.amax((1, 3))
    else:
        grid = weight.reshape(ROWS, -1, args.group_size)
        low, high = grid.amin(-1), grid.amax(-1)
    factor = None
    if strategy == "tensor_group":
        factor = generate_gparam(weight.amin(), weight.amax())
    return (*calculate_qparams(low, high, args, global_scale=factor), factor)


def compress(name, **options):
    """Return the stored tensors, the library's own decompressed weight, and the scheme."""
    exponents = {"scale_dtype": torch.uint8} if name.startswith("mx") else {}
    args = QuantizationArgs(**options, **exponents)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = plant(ROWS, COLUMNS, noise=0.3)
    scale, zero, factor = parameters_of(weight, args)
    state = {"weight": weight, "weight_scale": scale}
    if not args.symmetric:
        state["weight_zero_point"] = zero
    if factor is not None:
        state["weight_global_scale"] = factor
    compressor = BaseCompressor.get_value_from_registry(name)
    stored = compressor.compress(state, scheme)
    expected = compressor.decompress(dict(stored), scheme)["weight"].float()
    return {f"fc.{key}": value.contiguous() for key, value in stored.items()}, expected


INTEGERS = [
    ("pack-quantized", {"num_bits": bits, "strategy": "group", "group_size": 32, "symmetric": s})
    for bits in (2, 3, 4, 5, 6, 7, 8)
    for s in (True, False)
]


@pytest.mark.parametrize(
    ("name", "options", "stored", "config"),
    [
        *(
            (name, options, f"int{options['num_bits']} (compressed-tensors)", True)
            for name, options in INTEGERS
        ),
        ("pack-quantized", {"num_bits": 4, "strategy": "channel"}, "int4", False),
        ("pack-quantized", {"num_bits": 8, "strategy": "channel"}, "int8", False),
        ("pack-quantized", {"num_bits": 3, "strategy": "channel"}, "int3", False),
        ("int-quantized", {"num_bits": 8, "strategy": "channel"}, "int8, a scale per row", False),
        ("int-quantized", {"num_bits": 8, "strategy": "tensor"}, "int8, a scale per ten", False),
        (
            "naive-quantized",
            {"num_bits": 8, "strategy": "channel", "symmetric": False},
            "int8, a scale per row",
            False,
        ),
        (
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "channel"},
            "fp8 e4m3, a scale per row",
            False,
        ),
        (
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]},
            "fp8 e4m3, 32×32 blocks",
            False,
        ),
        (
            "mxfp8-quantized",
            {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32},
            "fp8 e4m3, blocks of 32",
            False,
        ),
        (
            "mxfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
            "MXFP4",
            False,
        ),
        (
            "mxfp6-pack-quantized",
            {"num_bits": 6, "type": "float", "strategy": "group", "group_size": 32},
            "MXFP6",
            False,
        ),
        (
            "nvfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            "NVFP4",
            False,
        ),
    ],
)
def test_as_the_library_decompresses_it(tmp_path, name, options, stored, config):
    state, expected = compress(name, **options)
    save_file({**state, "fc.bias": torch.zeros(ROWS)}, tmp_path / "w.safetensors")
    settings = {"config_groups": {"group_0": {"weights": options}}} if config else {}
    # The library computes floats of fewer than 8 bits in bfloat16.
    tolerance = 2**-7 if options["num_bits"] < 8 and "type" in options else 1e-6
    for target in (tmp_path / "w.safetensors", state):
        values = load_weight(target, "fc.weight", {"quantization_config": settings})
        torch.testing.assert_close(values, expected, rtol=tolerance, atol=0)
    result = probe_file(tmp_path / "w.safetensors")
    assert [row.name for row in result.probed] == ["fc.weight"]
    assert result["fc.weight"].dtype.startswith(stored)
    assert result["fc.weight"].shape == (ROWS, COLUMNS)
    assert result["fc.weight"].rank == 6 or options["num_bits"] < 4
    merged = rows_by_status(result)[Status.MERGED]
    assert merged == state.keys() - {"fc.weight"}


def test_columns_in_another_order():
    """Groups by activation order, which newer versions of the library no longer write."""
    state, _ = compress("pack-quantized", num_bits=4, strategy="group", group_size=32)
    groups = (torch.arange(COLUMNS) // 32)[torch.randperm(COLUMNS)].int()
    state["fc.weight_g_idx"] = groups
    codes = unpack_from_int32(state["fc.weight_packed"], 4, torch.Size((ROWS, COLUMNS)))
    expected = codes.float() * state["fc.weight_scale"][:, groups.long()]
    assert torch.equal(load_weight(state, "fc.weight"), expected)
    in_order = {**state, "fc.weight_g_idx": torch.full_like(groups, -1)}
    del state["fc.weight_g_idx"]
    assert torch.equal(load_weight(in_order, "fc.weight"), load_weight(state, "fc.weight"))


@pytest.mark.parametrize("bits", [3, 4, 5])
def test_a_last_word_that_is_not_full(bits):
    codes = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (ROWS, 101), dtype=torch.int8)
    scale = torch.rand(ROWS, 1)
    state = {
        "fc.weight_packed": pack_to_int32(codes, bits),
        "fc.weight_scale": scale,
        "fc.weight_shape": torch.tensor([ROWS, 101]),
    }
    config = {"config_groups": {"a": {"weights": {"num_bits": bits}}, "b": None, "c": 3}}
    values = load_weight(state, "fc.weight", {"quantization_config": config})
    assert torch.equal(values, codes * scale)


def test_a_shape_with_other_rows_than_the_codes():
    state = {
        "fc.weight_packed": torch.zeros(ROWS, COLUMNS // 8, dtype=torch.int32),
        "fc.weight_scale": torch.ones(1),
        "fc.weight_shape": torch.tensor([ROWS - 1, COLUMNS]),
    }
    assert rankwise.probe(state)["fc.weight_packed"].status is Status.QUANTISED


def test_words_with_room_to_spare():
    """Older versions of the library put ten 3-bit codes into a word, and left two bits empty."""
    codes = torch.randint(0, 8, (ROWS, COLUMNS))
    padded = torch.nn.functional.pad(codes, (0, -COLUMNS % 10)).reshape(ROWS, -1, 10)
    words = sum(padded[..., k] << (3 * k) for k in range(10)).int()
    scale = torch.rand(ROWS, 4)
    state = {
        "fc.weight_packed": words,
        "fc.weight_scale": scale,
        "fc.weight_shape": torch.tensor([ROWS, COLUMNS]),
    }
    args = QuantizationArgs(num_bits=3, strategy="group", group_size=32)
    expected = dequantize((codes - 4).to(torch.int8), scale, args=args)
    assert torch.equal(load_weight(state, "fc.weight"), expected)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("weight_shape", None),
        ("weight_shape", torch.tensor([2**40, 2**40])),
        ("weight_shape", torch.tensor([ROWS, 2**40])),
        ("weight_shape", torch.tensor([ROWS, -5])),
        ("weight_shape", torch.tensor([ROWS - 1, COLUMNS])),
        ("weight_shape", torch.tensor([ROWS, COLUMNS, 1])),
        ("weight_shape", torch.tensor([float("nan"), 1])),
        ("weight_shape", torch.zeros(10**5)),
        ("weight_scale", torch.ones(ROWS, 5)),
        ("weight_scale", torch.ones(7)),
        ("weight_scale", torch.ones(ROWS, 4, dtype=torch.int64)),
        ("weight_zero_point", torch.ones(7, 4, dtype=torch.int32)),
        ("weight_g_idx", torch.ones(7, dtype=torch.int32)),
    ],
)
def test_parts_that_do_not_fit_are_not_measured(part, value):
    state, _ = compress("pack-quantized", num_bits=4, strategy="group", group_size=32)
    state[f"fc.{part}"] = value
    result = rankwise.probe({name: tensor for name, tensor in state.items() if tensor is not None})
    assert not result.probed
    assert result["fc.weight_packed"].status is Status.QUANTISED
    assert result["fc.weight_packed"].reason.startswith("quantised, not measured: ")
