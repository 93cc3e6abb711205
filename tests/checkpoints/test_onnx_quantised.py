"""Quantised models: the numbers that codes stand for, as ONNX's reference evaluator has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import rankwise
from tests.checkpoints.onnx_models import draw, open_model, save_model

node = helper.make_node
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}


def _codes(kind: str, *shape: int, seed: int = 0) -> TensorProto:
    low, high = RANGES[kind]
    values = np.random.default_rng(seed).integers(low, high, shape, endpoint=True)
    return helper.make_tensor("", getattr(TensorProto, kind.upper()), shape, values.flatten())


def _evaluate(path: Path, name: str) -> np.ndarray:
    """Returns a value of the graph, computed by ONNX's own reference evaluator."""
    model = onnx.load(path)
    # Only what the value needs; the operator that uses it has no input here.
    model.graph.node.pop()
    model.graph.output[0].name = name
    (value,) = ReferenceEvaluator(model).run(None, {})
    return np.asarray(value, np.float32)


@pytest.mark.parametrize("has_zero", [True, False])
@pytest.mark.parametrize(
    ("attributes", "scales"),
    [({}, ()), ({"axis": 0}, (6,)), ({"axis": 1}, (8,)), ({"axis": 1, "block_size": 4}, (6, 2))],
)
@pytest.mark.parametrize("kind", sorted(RANGES))
def test_dequantized_weights_equal_the_reference(
    tmp_path: Path, kind: str, attributes, scales, has_zero: bool
) -> None:
    stored = {"q": _codes(kind, 6, 8), "s": np.abs(draw(*scales)) + 0.1}
    if has_zero:
        stored["z"] = _codes(kind, *scales, seed=1)
    nodes = [
        node("DequantizeLinear", list(stored), ["w"], **attributes),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    rows = open_model(tmp_path, nodes, stored)
    assert (rows["q"].kind, rows["q"].output_axis, rows["q"].obstacle) == ("linear", 1, None)
    assert rows["q"].stored == f"{kind} (QDQ)"
    expected = _evaluate(tmp_path / "model.onnx", "w")
    np.testing.assert_array_equal(rows["q"].load().numpy(), expected)
    assert {rows[name].obstacle for name in stored if name != "q"} == {("merged", "part of q")}


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1"])
def test_small_floating_point_types_are_scaled(tmp_path: Path, kind: str) -> None:
    codes = helper.make_tensor("", getattr(TensorProto, kind), (4, 6), draw(24))
    stored = {"q": codes, "s": np.array([0.5, 2, 3, 4], np.float32)}
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"], axis=0),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    rows = open_model(tmp_path, nodes, stored)
    expected = numpy_helper.to_array(codes).astype(np.float32) * stored["s"][:, None]
    np.testing.assert_array_equal(rows["q"].load().numpy(), expected)


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.integers(1, 12),
    st.integers(0, 1),
    st.integers(0, 2**31),
)
def test_blocks_of_any_size(
    tmp_path_factory, shape: tuple[int, int], block: int, axis: int, seed: int
) -> None:
    rows, columns = shape
    sides = [-(-side // block) if i == axis else side for i, side in enumerate((rows, columns))]
    stored = {"q": _codes("int8", rows, columns, seed=seed), "s": draw(*sides, seed=seed)}
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"], axis=axis, block_size=block),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    folder = tmp_path_factory.mktemp("m")
    given_values = open_model(folder, nodes, stored)["q"].load().numpy()
    expected = numpy_helper.to_array(stored["q"]).astype(np.float32) * np.repeat(
        stored["s"], block, axis
    )[:rows, :columns].reshape(rows, columns)
    np.testing.assert_array_equal(given_values, expected)


def test_fake_quantisation_is_rounded_as_in_the_reference(tmp_path: Path) -> None:
    stored = {
        "w": 3 * draw(6, 8),
        "s": np.abs(draw(6, seed=1)) / 20 + 0.01,
        "z": np.arange(-3, 3).astype(np.int8),
    }
    nodes = [
        node("QuantizeLinear", ["w", "s", "z"], ["q"], axis=0),
        node("DequantizeLinear", ["q", "s", "z"], ["v"], axis=0),
        node("Gemm", ["x", "v"], ["y"], transB=1),
    ]
    row = open_model(tmp_path, nodes, stored)["w"]
    assert row.output_axis == 0
    expected = _evaluate(tmp_path / "model.onnx", "v")
    np.testing.assert_array_equal(row.load().numpy(), expected)
    assert np.abs(expected - stored["w"]).max() > 0.01


@pytest.mark.parametrize(
    "case",
    [
        ("QLinearConv", ["x", "a", "b", "q", "s", "z", "c", "d"], (6, 2, 3, 3), "", ("conv2d", 0)),
        ("QLinearMatMul", ["x", "a", "b", "q", "s", "z", "c", "d"], (4, 6), "", ("linear", 1)),
        ("DynamicQuantizeMatMul", ["x", "q", "s", "z"], (4, 6), "com.microsoft", ("linear", 1)),
        (
            "MatMulIntegerToFloat",
            ["x", "q", "a", "s", "", "z"],
            (4, 6),
            "com.microsoft",
            ("linear", 1),
        ),
        (
            "QAttention",
            ["x", "q", "b", "a", "s", "", "", "z"],
            (4, 6),
            "com.microsoft",
            ("attention", 1),
        ),
    ],
)
def test_operators_that_take_codes(tmp_path: Path, case) -> None:
    operator, inputs, shape, domain, (kind, axis) = case
    stored = {"q": _codes("int8", *shape), "s": np.abs(draw(6)), "z": _codes("int8", 6, seed=1)}
    rows = open_model(tmp_path, [node(operator, inputs, ["y"], domain=domain)], stored)
    assert (rows["q"].kind, rows["q"].output_axis, rows["q"].obstacle) == (kind, axis, None)
    sides = [-1 if i == axis else 1 for i in range(len(shape))]
    q, s, z = (
        np.asarray(numpy_helper.to_array(v) if isinstance(v, TensorProto) else v, np.float32)
        for v in stored.values()
    )
    np.testing.assert_array_equal(rows["q"].load(), (q - z.reshape(sides)) * s.reshape(sides))
    assert rows["s"].obstacle == rows["z"].obstacle == ("merged", "part of q")


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("operator", ["MatMulInteger", "ConvInteger"])
def test_scales_that_multiply_the_product(tmp_path: Path, operator: str, has_bias: bool) -> None:
    """As dynamic quantisation writes it: (x ⊗ q)·(scale of x · scale of q)."""
    shape, axis = ((4, 6), 1) if operator == "MatMulInteger" else ((6, 2, 3, 3), 0)
    stored = {"q": _codes("int8", *shape), "s": np.abs(draw(6)), "z": _codes("int8", 6, seed=1)}
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        node("Mul", ["xs", "s"], ["scale"]),
        node(operator, ["xq", "q", "xz", "z"], ["h"]),
        node("Add", ["h", "b"], ["hb"]),
        node("Cast", ["hb" if has_bias else "h"], ["f"], to=1),
        node("Mul", ["f", "scale"], ["y"]),
    ]
    row = open_model(tmp_path, nodes, stored)["q"]
    sides = [-1 if i == axis else 1 for i in range(len(shape))]
    q, z = (numpy_helper.to_array(stored[name]).astype(np.float32) for name in "qz")
    expected = (q - z.reshape(sides)) * stored["s"].reshape(sides)
    np.testing.assert_array_equal(row.load().numpy(), expected)
    assert row.output_axis == axis


def test_a_quantised_table_of_embeddings(tmp_path: Path) -> None:
    stored = {"q": _codes("uint8", 16, 4), "s": np.float32(0.25), "z": np.uint8(7)}
    nodes = [
        node("Gather", ["q", "x"], ["h"]),
        node("DequantizeLinear", ["h", "s", "z"], ["y"]),
    ]
    stored = {name: np.asarray(v) if name != "q" else v for name, v in stored.items()}
    row = open_model(tmp_path, nodes, stored)["q"]
    expected = (numpy_helper.to_array(stored["q"]).astype(np.float32) - 7) * 0.25
    assert row.kind == "embedding"
    np.testing.assert_array_equal(row.load().numpy(), expected)


def test_a_quantised_lstm(tmp_path: Path) -> None:
    """ONNX Runtime stores [directions, in, 4·hidden]; gates along the columns."""
    stored = {
        "w": _codes("int8", 2, 3, 8),
        "r": _codes("int8", 2, 2, 8),
        "ws": np.abs(draw(2, 8)),
        "wz": _codes("int8", 2, 8, seed=1),
        "rs": np.abs(draw(2)),
        "rz": _codes("int8", 2, seed=2),
    }
    inputs = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    nodes = [node("DynamicQuantizeLSTM", inputs, ["y"], domain="com.microsoft", hidden_size=2)]
    rows = open_model(tmp_path, nodes, stored)
    w, wz, r, rz = (
        numpy_helper.to_array(stored[name]).astype(np.float32) for name in ("w", "wz", "r", "rz")
    )
    for i, label in enumerate(("[forward]", "[reverse]")):
        expected = ((w[i] - wz[i]) * stored["ws"][i]).T
        np.testing.assert_array_equal(rows["w" + label].load(), expected)
        np.testing.assert_array_equal(
            rows["r" + label].load(), ((r[i] - rz[i]) * stored["rs"][i]).T
        )
        assert (rows["w" + label].kind, rows["w" + label].gates) == ("recurrent", "iofc")


@pytest.mark.parametrize("zeros", ["none", "packed", "floating"])
@pytest.mark.parametrize(("bits", "columns"), [(4, 48), (4, 40), (8, 48), (2, 33)])
def test_blocks_of_packed_codes(tmp_path: Path, bits: int, columns: int, zeros: str) -> None:
    rows, block = 5, 16
    blocks = -(-columns // block)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**bits, (rows, blocks, block)).astype(np.uint8)
    offsets = np.full((rows, blocks), 2.0 ** (bits - 1), np.float32)
    stored = {"q": _pack(codes, bits), "s": draw(rows * blocks)}
    if zeros == "packed":
        whole = rng.integers(0, 2**bits, (rows, blocks)).astype(np.uint8)
        offsets = whole.astype(np.float32)
        width = 8 // bits
        padded = np.pad(whole, ((0, 0), (0, -blocks % width)))
        stored["z"] = _pack(padded, bits).reshape(-1)
    elif zeros == "floating":
        stored["z"] = offsets = draw(rows, blocks)
    attributes = {"K": columns, "N": rows, "bits": bits, "block_size": block}
    nodes = [node("MatMulNBits", ["x", *stored], ["y"], domain="com.microsoft", **attributes)]
    row = open_model(tmp_path, nodes, stored)["q"]
    expected = (codes - offsets[..., None]) * stored["s"].reshape(rows, blocks, 1)
    np.testing.assert_array_equal(row.load(), expected.reshape(rows, -1)[:, :columns])
    assert (row.kind, row.shape, row.stored) == (
        "linear",
        (rows, columns),
        f"int{bits} (MatMulNBits)",
    )


def test_blocks_in_another_order_are_not_measured(tmp_path: Path) -> None:
    codes = np.zeros((5, 3, 8), np.uint8)
    stored = {"q": codes, "s": draw(15), "g": np.zeros(48, np.int32)}
    attributes = {"K": 48, "N": 5, "bits": 4, "block_size": 16}
    inputs = ["x", "q", "s", "", "g"]
    nodes = [node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **attributes)]
    row = open_model(tmp_path, nodes, stored)["q"]
    assert row.obstacle is not None
    assert row.obstacle[0] is rankwise.Status.QUANTISED


def _pack(codes: np.ndarray, bits: int) -> np.ndarray:
    width = 8 // bits
    groups = codes.reshape(*codes.shape[:-1], -1, width).astype(np.uint32)
    return sum(groups[..., i] << (bits * i) for i in range(width)).astype(np.uint8)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("MatMulInteger", ["x", "q"], ["y"])], "its scale was not found"),
        (
            [node("QLinearMatMul", ["x", "a", "b", "q", "dynamic", "z", "c", "d"], ["y"])],
            "int8 codes of QLinearMatMul",
        ),
        (
            [node("MatMulBnb4", ["x", "q", "s"], ["y"], domain="com.microsoft", K=8, N=8)],
            "int8 codes of MatMulBnb4",
        ),
    ],
)
def test_codes_are_never_measured_as_numbers(tmp_path: Path, nodes, reason: str) -> None:
    stored = {"q": _codes("int8", 8, 8), "s": draw(8)}
    path = save_model(tmp_path / "m.onnx", nodes, stored)
    row = rankwise.probe(path)["q"]
    assert (row.status, row.reason) == ("quantised", f"quantised, not measured: {reason}")


def test_a_quantised_model_is_measured_like_the_original(tmp_path: Path) -> None:
    weight = draw(48, 4) @ draw(4, 64) + 0.3 * draw(48, 64, seed=1)
    scale = np.abs(weight).max(axis=0) / 127
    stored = {"q": np.round(weight / scale).astype(np.int8), "s": scale.astype(np.float32)}
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    path = save_model(tmp_path / "m.onnx", nodes, stored)
    quantised = rankwise.probe(path)["q"]
    (original,) = rankwise.probe({"w": weight}).layers
    assert quantised.rank == original.rank
    assert quantised.frobenius_norm == pytest.approx(original.frobenius_norm, rel=1e-3)
    assert quantised.dtype == "int8 (QDQ)"
