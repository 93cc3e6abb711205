# ruff: noqa: S311 - damage needn't be unpredictable
"""What stored tensors are used for: kinds, orientation, and what is no weight at all."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import rankwise
from rankwise.checkpoints import open_weights
from rankwise.errors import RankwiseError
from rankwise.weights.tensor import Weight
from tests.checkpoints.onnx_models import draw, open_model, save_model

node = helper.make_node
METRICS = ("rank", "stable_rank", "condition", "quality", "frobenius_norm")


def _summarize(weight: Weight) -> tuple[str | None, tuple[int, ...], int]:
    assert weight.obstacle is None, weight.obstacle
    return weight.kind, weight.shape, weight.output_axis


@pytest.mark.parametrize(
    "case",
    [
        ("Conv", ["x", "w"], (8, 4, 3, 3), {}, ("conv2d", 0)),
        ("Conv", ["x", "w"], (8, 4, 5), {}, ("conv1d", 0)),
        ("Conv", ["x", "w"], (8, 1, 3, 3), {"group": 8}, ("depthwise2d", 0)),
        ("Conv", ["x", "w"], (8, 2, 3, 3), {"group": 4}, ("conv2d", 0)),
        ("ConvTranspose", ["x", "w"], (8, 4, 3, 3), {}, ("conv_transpose2d", 1)),
        ("Gemm", ["x", "w"], (8, 4), {}, ("linear", 1)),
        ("Gemm", ["x", "w"], (8, 4), {"transB": 1}, ("linear", 0)),
        ("Gemm", ["w", "x"], (8, 4), {}, ("linear", 0)),
        ("Gemm", ["w", "x"], (8, 4), {"transA": 1}, ("linear", 1)),
        ("MatMul", ["x", "w"], (8, 4), {}, ("linear", 1)),
        ("MatMul", ["w", "x"], (8, 4), {}, ("linear", 0)),
        ("Gather", ["w", "x"], (8, 4), {}, ("embedding", 0)),
        ("Einsum", ["x", "w"], (8, 4), {"equation": "bi,oi->bo"}, ("linear", 0)),
        ("Einsum", ["w", "x"], (8, 4), {"equation": "io, bi -> bo"}, ("linear", 1)),
    ],
)
def test_operators_tell_kind_and_orientation(tmp_path: Path, case) -> None:
    operator, inputs, shape, attributes, (kind, axis) = case
    rows = open_model(tmp_path, [node(operator, inputs, ["y"], **attributes)], {"w": draw(*shape)})
    assert _summarize(rows["w"]) == (kind, shape, axis)


@pytest.mark.parametrize(
    ("operator", "inputs", "kind", "axis"),
    [
        ("Attention", ["x", "w", "b"], "attention", 1),
        ("FusedMatMul", ["x", "w"], "linear", 1),
        ("FusedGemm", ["x", "w", "b"], "linear", 1),
        ("EmbedLayerNormalization", ["i", "", "w"], "embedding", 0),
    ],
)
def test_operators_of_onnx_runtime(tmp_path: Path, operator, inputs, kind, axis) -> None:
    nodes = [node(operator, inputs, ["y"], domain="com.microsoft")]
    rows = open_model(tmp_path, nodes, {"w": draw(8, 24), "b": draw(24)})
    assert _summarize(rows["w"]) == (kind, (8, 24), axis)


@pytest.mark.parametrize(
    ("nodes", "shape", "reason"),
    [
        ([node("PRelu", ["x", "w"], ["y"])], (8, 1, 1), "slopes of a PReLU"),
        ([node("Add", ["x", "w"], ["y"])], (8, 8), "a constant used by Add"),
        ([node("GridSample", ["x", "w"], ["y"])], (1, 8, 8, 2), "a constant used by GridSample"),
        ([node("Where", ["c", "x", "w"], ["y"])], (8, 8), "a constant used by Where"),
        ([node("Gemm", ["x", "v", "w"], ["y"])], (4, 8), "a constant used by Gemm"),
        ([node("LayerNormalization", ["x", "w"], ["y"])], (4, 8), "a scale or bias of a Layer"),
        ([node("LSTM", ["x", "v", "r", "w"], ["y"])], (2, 32), "stacked biases of an LSTM"),
        ([node("LSTM", ["x", "v", "r", *[""] * 4, "w"], ["y"])], (2, 12), "peepholes of an LSTM"),
        (
            [node("GRU", ["x", "v", "r", "", "", "w"], ["y"])],
            (2, 1, 4),
            "an initial state of a GRU",
        ),
        ([node("Relu", ["x"], ["y"])], (8, 8), "not used by the graph"),
        ([node("Identity", ["w"], ["y"])], (8, 8), "returned by the graph as it is"),
        (
            [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("Mul", ["x", "t"], ["y"])],
            (8, 4),
            "a constant used by Mul",
        ),
    ],
)
def test_constants_that_are_no_weights(tmp_path: Path, nodes, shape, reason: str) -> None:
    weight = open_model(tmp_path, nodes, {"w": draw(*shape)})["w"]
    assert weight.obstacle is not None
    assert weight.obstacle[0] == "not a weight"
    assert weight.obstacle[1].startswith(reason)


def test_operators_that_are_not_known_leave_it_to_names_and_shapes(tmp_path: Path) -> None:
    nodes = [
        node("Mystery", ["x", "w"], ["h"], domain="example.com"),
        node("NewInOpset99", ["h", "v"], ["y"]),
    ]
    rows = open_model(tmp_path, nodes, {"w": draw(8, 4), "v": draw(4, 4)})
    assert [(row.kind, row.obstacle) for row in rows.values()] == [(None, None), (None, None)]


def test_a_stack_of_matrices_gets_a_row_for_each(tmp_path: Path) -> None:
    stored = {"w": draw(2, 3, 8, 4), "one": draw(1, 4, 6)}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "one"], ["y"])]
    rows = open_model(tmp_path, nodes, stored)
    assert list(rows) == ["w[0,0]", "w[0,1]", "w[0,2]", "w[1,0]", "w[1,1]", "w[1,2]", "one"]
    assert rows["w[1,0]"].group == "w"
    assert _summarize(rows["w[1,0]"]) == ("linear", (8, 4), 1)
    assert np.array_equal(rows["w[1,0]"].load().numpy(), stored["w"][1, 0])
    assert np.array_equal(rows["one"].load().numpy(), stored["one"][0])
    assert rows["one"].group is None


def test_an_einsum_over_heads_is_one_matrix_or_one_for_each_head(tmp_path: Path) -> None:
    nodes = [
        node("Einsum", ["x", "w"], ["h"], equation="btd,hdk->bthk"),
        node("Einsum", ["h", "v"], ["y"], equation="bthk,hkd->bthd"),
    ]
    stored = {"w": draw(2, 8, 4), "v": draw(2, 4, 8)}
    rows = open_model(tmp_path, nodes, stored)
    assert _summarize(rows["w"]) == ("linear", (8, 8), 0)
    expected = stored["w"].transpose(0, 2, 1).reshape(8, 8)
    assert np.array_equal(rows["w"].load().numpy(), expected)
    assert _summarize(rows["v[1]"]) == ("linear", (8, 4), 0)
    assert np.array_equal(rows["v[1]"].load().numpy(), stored["v"][1].T)


@pytest.mark.parametrize(
    ("operator", "module", "gates"),
    [("LSTM", nn.LSTM, "iofc"), ("GRU", nn.GRU, "zrh"), ("RNN", nn.RNN, "")],
)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_recurrent_layers_have_the_metrics_of_torch(
    tmp_path: Path, operator: str, module, gates: str, bidirectional: bool
) -> None:
    torch.manual_seed(0)
    layer = module(12, 20, bidirectional=bidirectional)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.ndim == 2:  # something to find
                parameter.add_(torch.outer(*(torch.randn(side) for side in parameter.shape)))
    ends = ("", "_reverse") if bidirectional else ("",)

    def stack(name: str, axis: int = 0) -> np.ndarray:
        return np.stack([getattr(layer, f"{name}_l0{end}").detach().numpy() for end in ends], axis)

    biases = np.concatenate([stack("bias_ih"), stack("bias_hh")], axis=1)
    direction = "bidirectional" if bidirectional else "forward"
    nodes = [node(operator, ["x", "W", "R", "B"], ["y"], hidden_size=20, direction=direction)]
    stored = {"W": stack("weight_ih"), "R": stack("weight_hh"), "B": biases}
    path = save_model(tmp_path / "m.onnx", nodes, stored)
    labels = ("[forward]", "[reverse]") if bidirectional else ("",)
    expected, given = rankwise.probe(layer), rankwise.probe(path)
    assert len(given.probed) == len(expected.probed)
    for label, end in zip(labels, ends, strict=True):
        for name, twin in (("W", "weight_ih_l0"), ("R", "weight_hh_l0")):
            row, other = given[name + label], expected[twin + end]
            assert (row.kind, row.shape) == ("recurrent", other.shape)
            for metric in METRICS:
                assert getattr(row, metric) == pytest.approx(getattr(other, metric), rel=1e-9)
    assert {w.gates for w in open_weights(path).tensors if w.kind == "recurrent"} == {gates}
    assert given["B"].reason.startswith("stacked biases")


def test_gates_that_the_graph_reorders(tmp_path: Path) -> None:
    """As torch exports an LSTM whose weights are not folded: i, f, g, o → i, o, f, c."""
    forward, reverse = draw(8, 3), draw(8, 3, seed=1)
    nodes, joined = [], []
    for name in ("forward", "reverse"):
        cuts = []
        for start, end in [(0, 2), (6, 8), (2, 6)]:
            cuts.append(f"{name}.{start}")
            nodes.append(node("Slice", [name, f"s{start}", f"s{end}", "axes"], [cuts[-1]]))
        nodes += [
            node("Concat", cuts, [f"{name}.gates"], axis=0),
            node("Unsqueeze", [f"{name}.gates", "axes"], [f"{name}.stack"]),
        ]
        joined.append(f"{name}.stack")
    nodes += [
        node("Concat", joined, ["W"], axis=0),
        node("LSTM", ["x", "W", "R"], ["y"], hidden_size=2, direction="bidirectional"),
    ]
    numbers = {f"s{i}": np.array([i]) for i in (0, 2, 6, 8)}
    stored = {"forward": forward, "reverse": reverse, "axes": np.array([0]), **numbers}
    rows = open_model(tmp_path, nodes, stored)
    order = [0, 1, 6, 7, 2, 3, 4, 5]
    for name in ("forward", "reverse"):
        assert _summarize(rows[name]) == ("recurrent", (8, 3), 0)
        assert rows[name].gates == "iofc"
        assert np.array_equal(rows[name].load().numpy(), stored[name][order])


def test_a_transposed_convolution_has_the_metrics_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(6, 10, 3)
    nodes = [node("ConvTranspose", ["x", "w"], ["y"])]
    path = save_model(tmp_path / "m.onnx", nodes, {"w": layer.weight.detach().numpy()})
    (row,), (other,) = rankwise.probe(path).probed, rankwise.probe(layer).probed
    assert (row.kind, row.modes) == (other.kind, other.modes)
    assert row.verdict == other.verdict


@pytest.mark.parametrize(
    ("nodes", "outputs_first"),
    [
        ([node("MatMul", ["x", "w"], ["y"])], False),
        ([node("MatMul", ["w", "x"], ["y"])], True),
        ([node("Gemm", ["x", "w"], ["y"], transB=1)], True),
        ([node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])], True),
        (
            [
                node("Transpose", ["w"], ["t"]),
                node("Identity", ["t"], ["i"]),
                node("Transpose", ["i"], ["u"]),
                node("MatMul", ["x", "u"], ["y"]),
            ],
            False,
        ),
    ],
)
def test_dead_outputs_are_found_along_the_right_axis(
    tmp_path: Path, nodes: list[onnx.NodeProto], outputs_first: bool
) -> None:
    weight = draw(32, 48)
    dead = (slice(0, 6), slice(None))
    (weight if outputs_first else weight.T)[dead] = 0
    path = save_model(tmp_path / "m.onnx", nodes, {"w": weight})
    found = [finding for finding in rankwise.check(path) if finding.kind == "dead-filters"]
    assert [finding.figures["dead"] for finding in found] == [6]
    assert rankwise.probe(path)["w"].shape == (32, 48)


def test_arithmetic_with_other_constants_is_followed(tmp_path: Path) -> None:
    stored = {"v": draw(8, 4), "g": draw(8, 1, seed=1), "mask": np.tri(8, 4, dtype=np.float32)}
    nodes = [
        node("ReduceL2", ["v", "axes"], ["norm"]),
        node("Div", ["v", "norm"], ["unit"]),
        node("Mul", ["g", "unit"], ["w"]),
        node("Mul", ["w", "mask"], ["pruned"]),
        node("Gemm", ["x", "pruned"], ["y"], transB=1),
    ]
    rows = open_model(tmp_path, nodes, {**stored, "axes": np.array([1])})
    assert _summarize(rows["v"]) == ("linear", (8, 4), 0)
    unit = stored["v"] / np.linalg.norm(stored["v"], axis=1, keepdims=True)
    np.testing.assert_allclose(rows["v"].load(), stored["g"] * unit * stored["mask"], rtol=1e-6)
    assert rows["g"].obstacle == rows["mask"].obstacle == ("merged", "part of v")


def test_what_the_graph_merges_is_not_merged_again_by_name(tmp_path: Path) -> None:
    stored = {"fc.weight_v": draw(8, 4), "fc.weight_g": 3 * draw(8, 1, seed=1)}
    nodes = [
        node("ReduceL2", ["fc.weight_v", "axes"], ["norm"]),
        node("Div", ["fc.weight_v", "norm"], ["unit"]),
        node("Mul", ["unit", "fc.weight_g"], ["w"]),
        node("Gemm", ["x", "w"], ["y"], transB=1),
    ]
    probe = rankwise.probe(save_model(tmp_path / "m", nodes, {**stored, "axes": np.array([1])}))
    (row,) = probe.probed
    assert row.name == "fc.weight_v"
    assert row.frobenius_norm == pytest.approx(np.linalg.norm(stored["fc.weight_g"]), rel=1e-5)


def test_arithmetic_that_is_not_followed_is_named(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["b", "a"], ["change"]),
        node("Add", ["w", "change"], ["sum"]),
        node("MatMul", ["x", "sum"], ["y"]),
    ]
    rows = open_model(tmp_path, nodes, {"w": draw(8, 8), "a": draw(2, 8), "b": draw(8, 2)})
    assert rows["w"].obstacle is None
    assert "by MatMul, which is not followed" in rows["w"].note


def test_weights_are_found_through_views(tmp_path: Path) -> None:
    stored = {"w": draw(8, 36), "shape": np.array([8, 4, 3, -1])}
    nodes = [node("Reshape", ["w", "shape"], ["v"]), node("Conv", ["x", "v"], ["y"])]
    rows = open_model(tmp_path, nodes, stored)
    assert _summarize(rows["w"]) == ("conv2d", (8, 4, 3, 3), 0)
    assert np.array_equal(rows["w"].load().numpy(), stored["w"].reshape(8, 4, 3, 3))


def test_weights_are_found_in_subgraphs_and_loops(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    names = ("i", "cond", "state", "kept")
    body = helper.make_graph(
        [
            node("Identity", ["cond"], ["go_on"]),
            node("Identity", ["kept"], ["kept_on"]),
            node("MatMul", ["state", "kept"], ["h"]),
            node("MatMul", ["h", "outer"], ["next"]),
        ],
        "body",
        [info(name, 1, None) for name in names],
        [info(name, 1, None) for name in ("go_on", "next", "kept_on")],
    )
    nodes = [node("Loop", ["n", "", "start", "passed"], ["y", "z"], body=body)]
    stored = {"outer": draw(8, 8), "passed": draw(8, 8), "start": draw(2, 8)}
    rows = open_model(tmp_path, nodes, stored)
    assert _summarize(rows["outer"]) == ("linear", (8, 8), 1)
    assert _summarize(rows["passed"]) == ("linear", (8, 8), 1)
    assert rows["start"].obstacle == ("not a weight", "an initial state or input of a Loop")


def test_weights_are_found_through_functions_of_the_model(tmp_path: Path) -> None:
    gemm = node("Gemm", ["a", "b"], ["c"])
    gemm.attribute.append(onnx.AttributeProto(name="transB", ref_attr_name="turned", type=2))
    opsets = [helper.make_opsetid("", 21)]
    linear = helper.make_function("local", "Linear", ["a", "b"], ["c"], [gemm], opsets, ["turned"])
    outer = helper.make_function(
        "local",
        "Block",
        ["a", "b"],
        ["c"],
        [node("Linear", ["a", "b"], ["c"], domain="local", turned=1)],
        opsets,
    )
    nodes = [node("Block", ["x", "w"], ["y"], domain="local")]
    rows = open_model(tmp_path, nodes, {"w": draw(8, 4)}, functions=[linear, outer])
    assert _summarize(rows["w"]) == ("linear", (8, 4), 0)


def test_a_table_that_is_embedding_and_head_has_one_row(tmp_path: Path) -> None:
    nodes = [
        node("Gather", ["w", "x"], ["h"]),
        node("Transpose", ["w"], ["t"]),
        node("MatMul", ["h", "t"], ["y"]),
    ]
    rows = open_model(tmp_path, nodes, {"w": draw(16, 4)})
    assert list(rows) == ["w"]
    assert _summarize(rows["w"]) == ("embedding", (16, 4), 0)


def test_functions_that_call_functions_many_times_take_little_time(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function(
            "local",
            f"f{i}",
            ["a", "b"],
            ["c"],
            [node(f"f{i - 1}", ["a", "b"], ["c"], domain="local") for _ in range(10)],
            opsets,
        )
        for i in range(1, 30)
    ]
    nodes = [node("f29", ["x", "w"], ["y"], domain="local")]  # 10²⁹ calls
    rows = open_model(tmp_path, nodes, {"w": draw(8, 4)}, functions=functions)
    assert rows["w"].obstacle is None


@pytest.mark.parametrize("operator", ["Identity", "Add", "Concat"])
def test_long_chains_end(tmp_path: Path, operator: str) -> None:
    """A chain of sums or lists of themselves would have 2^20000 terms."""
    count = {"Identity": 1, "Add": 2, "Concat": 2}[operator]
    attributes = {"axis": 0} if operator == "Concat" else {}
    nodes = [node(operator, [f"v{i}"] * count, [f"v{i + 1}"], **attributes) for i in range(20_000)]
    nodes.append(node("MatMul", ["x", "v20000"], ["y"]))
    (weight,) = open_model(tmp_path, nodes, {"v0": draw(8, 4)}).values()
    assert weight.obstacle is None
    assert weight.load().shape == (8, 4)


def test_nodes_that_refer_to_each_other_end(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["b", "w"], ["a"]),
        node("Mul", ["a", "w"], ["b"]),
        node("Identity", ["c"], ["c"]),
        node("MatMul", ["c", "a"], ["y"]),
    ]
    weight = open_model(tmp_path, nodes, {"w": draw(8, 4)})["w"]
    assert weight.obstacle == ("not a weight", "a constant used by Mul: a bias table, grid or mask")


def test_no_constant_is_larger_than_what_it_comes_from(tmp_path: Path) -> None:
    side = 2**14
    stored = {"a": draw(side, 1), "b": draw(1, side)}
    nodes = [node("Add", ["a", "b"], ["w"]), node("MatMul", ["x", "w"], ["y"])]
    rows = open_model(tmp_path, nodes, stored)
    assert {row.shape for row in rows.values()} == {(side, 1), (1, side)}


def test_a_stack_of_too_many_matrices_is_one_row(tmp_path: Path) -> None:
    rows = open_model(tmp_path, [node("MatMul", ["x", "w"], ["y"])], {"w": draw(5000, 2, 2)})
    assert list(rows) == ["w"]
    assert rows["w"].obstacle is not None
    assert "5000 matrices" in rows["w"].obstacle[1]


def test_matrices_of_a_stack_in_external_data_are_read_alone(tmp_path: Path) -> None:
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(2**38)  # more than fits into memory; takes no space on the disk
    tensor = onnx.TensorProto(dims=[4096, 4096, 4096], data_type=1, data_location=1)
    tensor.external_data.add(key="location", value="w.bin")
    rows = open_model(tmp_path, [node("MatMul", ["x", "w"], ["y"])], {"w": tensor})
    assert len(rows) == 4096
    assert rows["w[4095]"].load().shape == (4096, 4096)


def test_damaged_graphs_give_one_sentence(tmp_path: Path) -> None:
    """Bytes of the nodes change at random: only rankwise's own errors may come out."""
    stored = {
        "w": draw(8, 4),
        "q": np.arange(32, dtype=np.int8).reshape(4, 8),
        "s": draw(8),
        "r": draw(2, 16, 8),
        "k": draw(8, 4, 3),
        "shape": np.array([2, -1]),
        "axes": np.array([0]),
    }
    nodes = [
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["x", "t"], ["a"]),
        node("DequantizeLinear", ["q", "s"], ["d"], axis=1),
        node("Gemm", ["a", "d"], ["b"], transB=1),
        node("LSTM", ["b", "r", "r"], ["c"], hidden_size=4, direction="bidirectional"),
        node("Reshape", ["k", "shape"], ["l"]),
        node("Slice", ["l", "axes", "shape", "axes"], ["m"]),
        node("Einsum", ["c", "m"], ["e"], equation="abc,cd->abd"),
        node("Conv", ["e", "k"], ["y"], group=2),
    ]
    path = save_model(tmp_path / "m.onnx", nodes, stored)
    content, rng = path.read_bytes(), random.Random(0)
    size = content.index(stored["w"].tobytes())  # the nodes come before the tensors
    read = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(size)] = rng.choice((0, 1, 2, 3, 8, 127, 255, rng.randrange(256)))
        path.write_bytes(damaged)
        try:
            weights = open_weights(path).tensors
        except RankwiseError:
            continue
        for weight in weights:
            try:
                tensor = weight.load()
            except RankwiseError:
                continue
            assert weight.obstacle is not None or tuple(tensor.shape) == weight.shape
            read += 1
    assert read > 300
