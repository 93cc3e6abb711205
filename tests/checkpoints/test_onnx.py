from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from rankwise.checkpoints import open_weights
from rankwise.errors import CheckpointError, MissingExtraError, UnsafeFileError


def _model(path: Path, initializers=(), nodes=(), **more) -> Path:
    graph = helper.make_graph(list(nodes), "graph", [], [], initializer=list(initializers), **more)
    path.write_bytes(helper.make_model(graph, ir_version=8).SerializeToString())
    return path


def _constant(name: str, value: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=value)


def _external(name: str, location: str, shape=(2, 3), **entries: int) -> TensorProto:
    tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


VALUES = [0.5, -1.5, 2.0, 0.0, 3.0, -0.25]


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    ("onnx_type", "dtype"),
    [
        (TensorProto.FLOAT, torch.float32),
        (TensorProto.DOUBLE, torch.float64),
        (TensorProto.FLOAT16, torch.float16),
        (TensorProto.BFLOAT16, torch.bfloat16),
        (TensorProto.FLOAT8E4M3FN, torch.float8_e4m3fn),
        (TensorProto.FLOAT8E5M2, torch.float8_e5m2),
    ],
)
def test_floating_point_types(
    tmp_path: Path, onnx_type: int, dtype: torch.dtype, raw: bool
) -> None:
    expected = torch.tensor(VALUES).to(dtype).reshape(2, 3)
    if raw:
        content = bytes(expected.contiguous().view(torch.uint8).flatten().tolist())
        tensor = helper.make_tensor("w", onnx_type, [2, 3], content, raw=True)
    else:
        tensor = helper.make_tensor("w", onnx_type, [2, 3], VALUES)
    (weight,) = open_weights(_model(tmp_path / "m.onnx", [tensor])).tensors
    assert (weight.name, weight.shape, weight.dtype) == ("w", (2, 3), dtype)
    assert weight.load().dtype == dtype
    assert torch.equal(weight.load().float(), expected.float())


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "int64", "uint64", "bool", "complex64"]
)
def test_other_types_come_as_they_are(tmp_path: Path, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    (weight,) = open_weights(_model(tmp_path / "m", [numpy_helper.from_array(array, "w")])).tensors
    assert np.array_equal(weight.load().numpy(), array)
    assert weight.obstacle is None


@pytest.mark.parametrize(
    ("tensor", "status"),
    [
        (helper.make_tensor("w", TensorProto.INT4, [2, 2], [1, 2, 3, 4]), "quantised"),
        (helper.make_tensor("w", TensorProto.STRING, [1], [b"text"]), "unreadable"),
        (TensorProto(name="w", dims=[2**31, 2**31], data_type=1), "no data"),
        (TensorProto(name="w", dims=[2, 2], data_type=1, raw_data=b""), "no data"),
        (TensorProto(name="w", dims=[2, 2], data_type=1, raw_data=b"1234"), "unreadable"),
        (TensorProto(name="w", dims=[-1, 2], data_type=1, raw_data=b"1234"), "unreadable"),
        (TensorProto(name="w", dims=[-1, 2], data_type=1, raw_data=b""), "unreadable"),
        (TensorProto(name="w", dims=[2], data_type=999, raw_data=b"1234"), "unreadable"),
    ],
)
def test_what_cannot_be_probed_gets_a_row(tmp_path: Path, tensor: TensorProto, status: str) -> None:
    (weight,) = open_weights(_model(tmp_path / "m.onnx", [tensor])).tensors
    assert weight.obstacle is not None
    assert weight.obstacle[0] == status
    with pytest.raises(CheckpointError, match="'w' can't be read"):
        weight.load()


def test_values_that_are_listed_and_too_few(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", dims=[3, 3], data_type=1, float_data=[1, 2, 3])
    with pytest.raises(CheckpointError):
        open_weights(_model(tmp_path / "m.onnx", [tensor])).tensors[0].load()


def test_constants_and_subgraphs(tmp_path: Path) -> None:
    def value(number: float) -> TensorProto:
        return numpy_helper.from_array(np.full((2, 2), number, np.float32))

    inner = helper.make_graph([_constant("deep", value(1))], "inner", [], [])
    branch = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)],
        "branch",
        [],
        [],
        initializer=[numpy_helper.from_array(np.full((2, 2), 3, np.float32), "deep")],
    )
    nodes = [
        _constant("first", value(4)),
        helper.make_node("Loop", [], ["z"], body=branch),
        helper.make_node("ConstantOfShape", ["s"], ["t"], value=value(5)),
        helper.make_node("Constant", [], ["list"], value_floats=[1.0, 2.0]),
    ]
    means = {
        w.name: w.load().mean().item()
        for w in open_weights(_model(tmp_path / "m", [], nodes)).tensors
    }
    assert means == {"first": 4, "deep": 1, "deep#2": 1, "deep#3": 3}


def test_functions_hold_constants_too(tmp_path: Path) -> None:
    node = _constant("inside", numpy_helper.from_array(np.ones((2, 2), np.float32)))
    function = helper.make_function("domain", "f", [], ["inside"], [node], [])
    graph = helper.make_graph([], "graph", [], [])
    (tmp_path / "m").write_bytes(
        helper.make_model(graph, functions=[function], ir_version=8).SerializeToString()
    )
    assert [w.name for w in open_weights(tmp_path / "m").tensors] == ["inside"]


def test_sparse_tensors_get_a_row(tmp_path: Path) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "indices")
    sparse = helper.make_sparse_tensor(values, indices, [4, 4])
    (weight,) = open_weights(_model(tmp_path / "m", sparse_initializer=[sparse])).tensors
    assert (weight.name, weight.shape) == ("sparse", (4, 4))
    assert weight.obstacle == ("unreadable", "stored sparsely")


def test_external_data_is_read_tensor_by_tensor(tmp_path: Path) -> None:
    data = np.arange(12, dtype=np.float32)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "m.bin").write_bytes(data.tobytes())
    path = _model(
        tmp_path / "m.onnx",
        [
            _external("a", "data/m.bin", offset=0, length=24),
            _external("b", "data/m.bin", offset=24, length=24),
            _external("all", "data/m.bin", shape=(12,)),
        ],
    )
    a, b, everything = open_weights(path).tensors
    assert a.load().flatten().tolist() == data[:6].tolist()
    assert b.load().flatten().tolist() == data[6:].tolist()
    assert everything.load().tolist() == data.tolist()


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": 30},
        {"offset": 30, "length": 24},
        {"offset": -4},
        {"length": 4},
        {"offset": 2**70},
    ],
)
def test_external_data_out_of_range_gets_a_row(tmp_path: Path, entries: dict[str, int]) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(48))
    (weight,) = open_weights(_model(tmp_path / "m", [_external("w", "w.bin", **entries)])).tensors
    assert weight.obstacle is not None
    assert weight.obstacle[0] == "unreadable"


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret", "", "link"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(24))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to("../secret")
    with pytest.raises(UnsafeFileError):
        open_weights(_model(folder / "m.onnx", [_external("w", location)]))


def test_external_data_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'w\.bin', which is missing"):
        open_weights(_model(tmp_path / "m", [_external("w", "w.bin")]))


def test_external_data_with_odd_numbers(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(24))
    with pytest.raises(CheckpointError):
        open_weights(_model(tmp_path / "m", [_external("w", "w.bin", offset="x")]))  # type: ignore[arg-type]


def test_a_name_for_several_tensors_drops_none(tmp_path: Path) -> None:
    tensors = [
        numpy_helper.from_array(np.full(2, i, np.float32), name) for i, name in enumerate("aab")
    ]
    weights = open_weights(_model(tmp_path / "m", [*tensors, TensorProto(data_type=1)])).tensors
    assert [w.name for w in weights] == ["a", "a#2", "b", "constant"]
    assert [w.load()[0].item() for w in weights[:3]] == [0, 1, 2]


def test_a_file_beyond_the_limit_of_protocol_buffers_is_refused_unread(tmp_path: Path) -> None:
    path = _model(tmp_path / "m", [numpy_helper.from_array(np.ones((9, 9)), "w")])
    with path.open("r+b") as file:
        file.truncate(2**31)
    with pytest.raises(CheckpointError, match="2 GB"):
        open_weights(path)


def test_external_data_is_not_read_before_it_is_asked_for(tmp_path: Path) -> None:
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(2**42)  # more than any memory; takes no space on the disk
    tensor = _external("w", "w.bin", shape=(2**20, 2**20))
    (weight,) = open_weights(_model(tmp_path / "m", [tensor])).tensors
    assert weight.load_slice(2**19, 2).shape == (2, 2**20)


@pytest.mark.parametrize("how", ["written again", "replaced"])
def test_external_data_that_is_another_file_by_now_is_noticed(tmp_path: Path, how: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(24))
    (weight,) = open_weights(_model(tmp_path / "m", [_external("w", "w.bin")])).tensors
    status = (tmp_path / "w.bin").stat()
    if how == "replaced":  # with the same size and time
        (tmp_path / "other").write_bytes(bytes(24))
        os.utime(tmp_path / "other", ns=(status.st_atime_ns, status.st_mtime_ns))
        (tmp_path / "other").replace(tmp_path / "w.bin")
    else:
        os.utime(tmp_path / "w.bin", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(CheckpointError, match="changed while it was being read"):
        weight.load()


def test_rows_of_external_data_are_read_alone(tmp_path: Path) -> None:
    data = np.arange(12, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(b"odd" + data.tobytes())
    tensor = _external("w", "w.bin", shape=(4, 3), offset=3)
    (weight,) = open_weights(_model(tmp_path / "m", [tensor])).tensors
    assert weight.load_rows is not None
    assert weight.load_rows(1, 2).tolist() == data[3:9].reshape(2, 3).tolist()
    assert weight.load().tolist() == data.reshape(4, 3).tolist()


def test_external_data_that_shrinks_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(24))
    (weight,) = open_weights(_model(tmp_path / "m", [_external("w", "w.bin")])).tensors
    (tmp_path / "w.bin").write_bytes(bytes(8))
    with pytest.raises(CheckpointError, match="w\\.bin"):
        weight.load()


def test_graphs_nested_too_deep_are_refused(tmp_path: Path) -> None:
    def field(number: int, content: bytes) -> bytes:
        length = len(content)
        return bytes((number << 3 | 2, length & 0x7F | 0x80, length >> 7)) + content

    graph = b""
    for _ in range(40):  # a graph in an attribute of a node of a graph
        graph = field(1, field(5, field(6, graph)))
    (tmp_path / "m").write_bytes(b"\x08\x08" + field(7, graph))
    with pytest.raises(CheckpointError, match="can't be read as an ONNX model"):
        open_weights(tmp_path / "m")


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    path = _model(tmp_path / "m", [numpy_helper.from_array(np.ones((9, 9)), "w")])
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match="pip install onnx"):
        open_weights(path)
