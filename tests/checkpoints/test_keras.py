"""Files of Keras and plain HDF5 files: layouts, names, order, types."""

from __future__ import annotations

import json
import sys
import threading
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import rankwise
from rankwise.checkpoints import open_weights
from rankwise.errors import ArgumentError, CheckpointError, MissingExtraError
from tests.checkpoints.keras_files import (
    KerasLayer,
    make_config,
    make_networks,
    save_keras,
    save_model,
    save_weights,
    save_weights_3,
    write_listed,
)

RNG = np.random.default_rng(0)
WRITERS = {
    "model.h5": save_model,
    "weights.h5": save_weights,
    "model.weights.h5": save_weights_3,
    "model.keras": save_keras,
}
TORCH_NAMES = {
    "kernel": "weight",
    "depthwise_kernel": "weight",
    "embeddings": "weight",
    "lstm.kernel": "weight_ih_l0",
    "lstm.recurrent_kernel": "weight_hh_l0",
    "gru.kernel": "weight_ih_l0",
    "gru.recurrent_kernel": "weight_hh_l0",
}


def _draw(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def _find_torch_name(name: str) -> str:
    layer, *_, variable = name.split(".")
    return f"{layer}.{TORCH_NAMES.get(f'{layer}.{variable}', TORCH_NAMES.get(variable, ''))}"


def _open(path: Path) -> dict:
    return {weight.name: weight for weight in open_weights(path).tensors}


def _write(path: Path, config: object = None, **arrays: np.ndarray) -> Path:
    """Write a file of Keras 2; names are paths of layer and variable, with __ for a slash."""
    with h5py.File(path, "w") as file:
        layers: dict[str, list[str]] = {}
        for name, array in arrays.items():
            layer, _, rest = name.partition("__")
            rest = rest.replace("__", "/")
            layers.setdefault(layer, []).append(f"{layer}/{rest}:0")
            file[f"{layer}/{layer}/{rest}:0"] = array
        file.attrs["layer_names"] = [name.encode() for name in layers]
        for layer, names in layers.items():
            file[layer].attrs["weight_names"] = [name.encode() for name in names]
        if config is not None:
            file.attrs["model_config"] = json.dumps(config)
    return path


def _sequential(**layers: object) -> dict:
    """Return a configuration of layers, given as a class or as a class and options."""
    parts = [
        {"class_name": name, "config": {"name": key, **options}}
        for key, value in layers.items()
        for name, options in [value if isinstance(value, tuple) else (value, {})]
    ]
    return {"class_name": "Sequential", "config": {"name": "model", "layers": parts}}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_layer_has_the_metrics_of_the_same_layer_in_torch(tmp_path: Path, kind: str) -> None:
    modules, layers = make_networks()
    probe = rankwise.probe(WRITERS[kind](tmp_path / kind, layers))
    expected = {row.name: row for row in rankwise.probe(modules).layers if row.is_probed}
    rows = {_find_torch_name(row.name): row for row in probe.layers if row.is_probed}
    assert set(rows) == set(expected)
    for name, row in rows.items():
        other = expected[name]
        # Without a configuration, groups of channels are seen by nobody; their shape is the same.
        assert (row.kind, row.shape, row.verdict) == (other.kind, other.shape, other.verdict), name
        assert len(row.modes) == len(other.modes)
        for mode, same in zip(row.modes, other.modes, strict=True):
            assert (mode.mode, mode.rank, mode.rows) == (same.mode, same.rank, same.rows), name
            figures = [mode.stable_rank, mode.condition, mode.quality, mode.noise_variance]
            wanted = [same.stable_rank, same.condition, same.quality, same.noise_variance]
            assert figures == pytest.approx(wanted, rel=1e-5), name
    assert {row.rank for row in rows.values()} != {1.0}


@pytest.mark.parametrize("kind", WRITERS)
def test_tensors_are_those_of_torch(tmp_path: Path, kind: str) -> None:
    modules, layers = make_networks()
    state = modules.state_dict()
    weights = _open(WRITERS[kind](tmp_path / kind, layers))
    for name, weight in weights.items():
        if len(weight.shape) < 2 or "gru" in name:  # the order of whose gates differs
            continue
        assert torch.equal(weight.load(), state[_find_torch_name(name)]), name
        assert weight.output_axis == int("back" in name)


@pytest.mark.parametrize("kind", WRITERS)
def test_gates_are_told_apart(tmp_path: Path, kind: str) -> None:
    modules, layers = make_networks()
    path = WRITERS[kind](tmp_path / kind, layers)
    expected = {row.name: row for row in rankwise.probe(modules, split=True).layers}
    rows = [row for row in rankwise.probe(path, split=True).layers if "[" in row.name]
    assert len(rows) == 2 * (4 + 3)
    labels = {"lstm": dict(zip("ifco", "ifgo", strict=True)), "gru": {"z": "z", "r": "r", "h": "n"}}
    for row in rows:
        whole, _, label = row.name.removesuffix("]").rpartition("[")
        same = expected[f"{_find_torch_name(whole)}[{labels[row.name.split('.')[0]][label]}]"]
        assert row.shape == same.shape == (12, same.shape[1])
        assert row.rank == same.rank
        assert row.spectral_norm == pytest.approx(same.spectral_norm, rel=1e-6)


@pytest.mark.parametrize("kind", WRITERS)
def test_layers_are_in_the_networks_order_where_it_is_known(tmp_path: Path, kind: str) -> None:
    _, layers = make_networks()
    weights = open_weights(WRITERS[kind](tmp_path / kind, layers))
    names = list(dict.fromkeys(weight.name.split(".")[0] for weight in weights.tensors))
    known = [layer.name for layer in layers]
    assert sorted(names) == sorted(known)
    assert weights.order == ("name" if kind == "model.weights.h5" else "network")
    assert (names == known) == (weights.order == "network")


@pytest.mark.parametrize("kind", ["model.h5", "model.weights.h5", "model.keras"])
def test_the_optimizers_state_is_left_out(tmp_path: Path, kind: str) -> None:
    weights = open_weights(WRITERS[kind](tmp_path / kind, make_networks()[1]))
    assert not any("optimizer" in weight.name for weight in weights.tensors)
    assert any("optimizer state" in note and "1 tensor" in note for note in weights.notes)


def test_a_file_of_an_optimizer_alone_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["optimizer/vars/0"] = np.zeros((4, 4), np.float32)
    with pytest.raises(CheckpointError, match="only an optimizer's state"):
        open_weights(tmp_path / "w.h5")


def test_state_of_metrics_is_left_out(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["layers/dense/vars/0"] = _draw(4, 5)
        file["metrics/mean/vars/0"] = np.float32(1)
    weights = open_weights(tmp_path / "w.h5")
    assert [weight.name for weight in weights.tensors] == ["dense.kernel"]
    assert any("metrics" in note for note in weights.notes)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_may_be_compressed(tmp_path: Path, compression: int) -> None:
    modules, layers = make_networks()
    path = save_keras(tmp_path / "m.keras", layers, compression=compression)
    weights = _open(path)
    assert torch.equal(weights["dense.kernel"].load(), modules["dense"].weight.detach())


def test_lists_that_keras_cuts_into_pieces_are_joined(tmp_path: Path) -> None:
    names = [f"dense_{i}" for i in (3, 1, 2)]
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.attrs["layer_names0"] = [name.encode() for name in names[:2]]
        file.attrs["layer_names1"] = np.array([name.encode() for name in names[2:]])  # fixed
        for name in names:
            file[f"{name}/{name}/kernel:0"] = _draw(3, 4)
            file[name].attrs["weight_names"] = [f"{name}/kernel:0".encode()]
    assert list(_open(tmp_path / "w.h5")) == [f"{name}.kernel" for name in names]


@pytest.mark.parametrize("track", [False, True])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_headers_of_every_version_are_read(tmp_path: Path, libver: str, track: bool) -> None:
    layers = [KerasLayer("Dense", f"layer_{i}", {"kernel": _draw(3, 4)}) for i in range(200)]
    with h5py.File(tmp_path / "w.h5", "w", libver=libver, track_order=track) as file:
        write_listed(file, layers[::-1])
        file.attrs["model_config"] = json.dumps(make_config(layers))
    names = [weight.name for weight in open_weights(tmp_path / "w.h5").tensors]
    assert names == [f"layer_{i}.kernel" for i in reversed(range(200))]


@pytest.mark.parametrize(
    ("equation", "stored", "shape", "kind"),
    [
        ("ab,bc->ac", (6, 5), (5, 6), "linear"),
        ("abc,cde->abde", (6, 2, 4), (8, 6), "linear"),
        ("abde,dec->abc", (2, 4, 6), (6, 8), "linear"),
        ("...x,xy->...y", (6, 5), (5, 6), "linear"),
        ("bhi,hio->bho", (3, 6, 5), (3, 5, 6), "stack"),
    ],
)
def test_products_by_their_equation(tmp_path: Path, equation, stored, shape, kind) -> None:
    kernel = _draw(*stored)
    config = _sequential(e=("EinsumDense", {"equation": equation}))
    weight = _open(_write(tmp_path / "w.h5", config, e__kernel=kernel))["e.kernel"]
    assert (weight.shape, weight.kind) == (shape, kind)
    # What the layer computes, on an input with a number for each of the kernel's inputs.
    left, letters, right = equation.replace("...", "").replace("->", ",").split(",")
    inputs = RNG.normal(size=[{**dict(zip(letters, stored, strict=True))}.get(c, 1) for c in left])
    expected = np.einsum(f"{left},{letters}->{right}", inputs, kernel)
    matrix = weight.load().numpy().astype(np.float64)
    if kind == "stack":
        computed = np.einsum("hoi,bhi->bho", matrix, inputs)
    else:
        computed = inputs.reshape(-1, shape[1]) @ matrix.T
    assert computed.reshape(-1) == pytest.approx(expected.reshape(-1), rel=1e-5)


@pytest.mark.parametrize(
    ("bias", "shape", "is_noted"),
    [((2, 5), (10, 7), False), ((5,), (5, 14), False), (None, (10, 7), True)],
)
def test_products_without_an_equation(tmp_path: Path, bias, shape, is_noted: bool) -> None:
    arrays = {"einsum_dense__kernel": _draw(7, 2, 5)}
    if bias is not None:
        arrays["einsum_dense__bias"] = _draw(*bias)
    weights = open_weights(_write(tmp_path / "w.h5", **arrays))
    assert (weights.tensors[0].kind, weights.tensors[0].shape) == ("linear", shape)
    assert any("shape and name alone" in note for note in weights.notes) == is_noted


@pytest.mark.parametrize("config", [None, _sequential(att="MultiHeadAttention")])
def test_attention_is_four_matrices(tmp_path: Path, config) -> None:
    query, output = _draw(7, 2, 5), _draw(2, 5, 7)
    arrays = {f"att__{n}__kernel": _draw(7, 2, 5) for n in ("key", "value")}
    arrays |= {"att__query__kernel": query, "att__attention_output__kernel": output}
    arrays["att__query__bias"] = _draw(2, 5)
    weights = _open(_write(tmp_path / "w.h5", config, **arrays))
    assert torch.equal(weights["att.query.kernel"].load(), torch.from_numpy(query.reshape(7, 10).T))
    expected = torch.from_numpy(output.reshape(10, 7).T)
    assert torch.equal(weights["att.attention_output.kernel"].load(), expected)
    rows = {row.name: row for row in rankwise.probe(tmp_path / "w.h5").layers}
    assert rows["att.query.bias"].status is rankwise.Status.NOT_A_WEIGHT
    assert rows["att.key.kernel"].kind == "linear"


def test_layers_in_layers(tmp_path: Path) -> None:
    conv = {"class_name": "Conv2DTranspose", "config": {"name": "up"}}
    inner = {"class_name": "Functional", "config": {"name": "inner", "layers": [conv]}}
    wrapped = {"class_name": "TimeDistributed", "config": {"name": "each", "layer": conv}}
    cell = {"class_name": "GRU", "config": {"name": "rnn"}}
    both = {"class_name": "Bidirectional", "config": {"name": "both", "layer": cell}}
    layers = [
        {"class_name": "Model", "config": {"name": "outer", "layers": [inner]}},
        wrapped,
        both,
    ]
    config = {"class_name": "Sequential", "config": layers}  # a list, as before Keras 2.3
    path = _write(
        tmp_path / "w.h5",
        config,
        outer__up__kernel=_draw(3, 3, 4, 6),
        each__kernel=_draw(3, 3, 4, 6),
        both__forward_rnn__kernel=_draw(6, 15),
        both__backward_rnn__gru_cell__recurrent_kernel=_draw(5, 15),
    )
    weights = _open(path)
    kinds = {name: (weight.kind, weight.shape, weight.gates) for name, weight in weights.items()}
    assert kinds == {
        "outer.up.kernel": ("conv_transpose2d", (6, 4, 3, 3), ""),
        "each.kernel": ("conv_transpose2d", (6, 4, 3, 3), ""),
        "both.forward_rnn.kernel": ("recurrent", (15, 6), "zrh"),
        "both.backward_rnn.gru_cell.recurrent_kernel": ("recurrent", (15, 5), "zrh"),
    }


def test_variables_that_are_no_matrices(tmp_path: Path) -> None:
    config = _sequential(act="PReLU", norm="Normalization", local="LocallyConnected1D", gru="GRU")
    path = _write(
        tmp_path / "w.h5",
        config,
        act__alpha=_draw(4, 4, 3),
        norm__mean=_draw(4, 4),
        gru__bias=_draw(2, 12),
        local__kernel=_draw(5, 8, 3),
    )
    rows = {row.name: row for row in rankwise.probe(path).layers}
    not_weights = ["act.alpha", "norm.mean", "gru.bias"]
    assert all(rows[name].status is rankwise.Status.NOT_A_WEIGHT for name in not_weights)
    assert [row.shape for name, row in rows.items() if "local" in name] == [(3, 8)] * 5


def test_separable_convolutions_are_two(tmp_path: Path) -> None:
    depthwise, pointwise = _draw(3, 3, 4, 2), _draw(1, 1, 8, 6)
    path = _write(tmp_path / "w.h5", s__depthwise_kernel=depthwise, s__pointwise_kernel=pointwise)
    first, second = open_weights(path).tensors
    assert (first.kind, first.shape) == ("depthwise2d", (8, 1, 3, 3))
    # Channel 1 times multiplier 2, plus 0.
    assert torch.equal(first.load()[2, 0], torch.from_numpy(depthwise[:, :, 1, 0]))
    assert (second.kind, second.shape) == ("conv2d", (6, 8, 1, 1))
    assert torch.equal(second.load()[:, :, 0, 0], torch.from_numpy(pointwise[0, 0].T))


@pytest.mark.parametrize(
    ("name", "bias", "kind", "is_noted"),
    [
        ("a", 6, "conv2d", False),
        ("a", 4, "conv_transpose2d", False),
        ("a", 24, "depthwise2d", False),
        ("a", None, "conv2d", True),
        ("my_deconv", None, "conv_transpose2d", True),
        ("conv2d_transpose_4", None, "conv_transpose2d", False),
    ],
)
def test_without_a_configuration_the_bias_tells_what_a_kernel_is(
    tmp_path: Path, name: str, bias: int | None, kind: str, is_noted: bool
) -> None:
    arrays = {f"{name}__kernel": _draw(3, 3, 4, 6)}
    if bias is not None:
        arrays[f"{name}__bias"] = _draw(bias)
    weights = open_weights(_write(tmp_path / "w.h5", **arrays))
    assert weights.tensors[0].kind == kind
    assert any("shape and name alone" in note for note in weights.notes) == is_noted


def test_what_is_not_known_is_noted(tmp_path: Path) -> None:
    path = _write(tmp_path / "w.h5", custom__w_a=_draw(5, 6), custom__odd=_draw(2, 5, 6))
    weights = open_weights(path)
    assert weights.tensors[0].shape == (6, 5)
    (note,) = (note for note in weights.notes if "shape and name alone" in note)
    assert "custom.w_a" in note


@pytest.mark.parametrize("text", ["{", "[1]", '{"class_name": 3}', "{" * 5000, '{"a":1,"a":2}'])
def test_a_configuration_that_is_broken_counts_as_absent(tmp_path: Path, text: str) -> None:
    path = _write(tmp_path / "w.h5", dense_1__kernel=_draw(5, 6))
    with h5py.File(path, "a") as file:
        file.attrs["model_config"] = text
    (weight,) = open_weights(path).tensors
    assert (weight.name, weight.shape) == ("dense_1.kernel", (6, 5))


def test_code_in_a_configuration_stays_text(tmp_path: Path) -> None:
    code = ["gASVIgAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAd0b3VjaCB4lIWUUpQu", None, None]
    config = _sequential(fn=("Lambda", {"function": code, "function_type": "lambda"}))
    path = _write(tmp_path / "w.h5", config, dense__kernel=_draw(5, 6))
    assert rankwise.probe(path).layers[0].is_probed


def test_a_state_dict_of_torch_stays_as_it_is(tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 4))
    with h5py.File(tmp_path / "w.h5", "w", track_order=True) as file:
        for name, tensor in network.state_dict().items():
            file[name] = tensor.numpy()
    weights = open_weights(tmp_path / "w.h5")
    assert weights.order == "network"
    for weight, (name, tensor) in zip(weights.tensors, network.state_dict().items(), strict=True):
        assert weight.name == name
        assert torch.equal(weight.load(), tensor)
        if tensor.ndim > 1:
            assert torch.equal(weight.load_rows(2, 2), tensor[2:4])
    assert [row.kind for row in rankwise.probe(tmp_path / "w.h5").layers][::2] == [
        "conv2d",
        "linear",
    ]
    with pytest.raises(ArgumentError):
        weights.tensors[0].load_rows(7, 2)


def test_plain_files_in_groups_are_sorted_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for name in ("layer10/weight", "layer2/weight", "flax/kernel"):
            file[name] = _draw(3, 4)
    weights = open_weights(tmp_path / "w.h5")
    assert [weight.name for weight in weights.tensors] == [
        "flax.kernel",
        "layer2.weight",
        "layer10.weight",
    ]
    assert weights.tensors[0].shape == (4, 3)
    assert weights.order == "name"


TYPES = ["<f2", ">f4", "<f8", "i1", ">i2", "<i4", ">i8", "u1", "<u2", ">u4", "<u8", "?"]


@pytest.mark.parametrize("options", [{}, {"chunks": (2, 3), "compression": "gzip"}])
@pytest.mark.parametrize("dtype", TYPES)
def test_types_in_both_byte_orders(tmp_path: Path, dtype: str, options: dict) -> None:
    array = (100 * RNG.normal(size=(5, 7))).astype(dtype)
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_dataset("w", data=array, **options)
    (weight,) = open_weights(tmp_path / "w.h5").tensors
    assert weight.load().dtype == weight.dtype
    assert np.array_equal(weight.load().numpy(), array)


@pytest.mark.parametrize("layout", ["numbered", "listed"])
def test_bfloat16_as_keras_saves_it(tmp_path: Path, layout: str) -> None:
    numbers = torch.randn(4, 8).to(torch.bfloat16)
    stored = numbers.view(torch.int16).numpy().view("V2")
    with h5py.File(tmp_path / "w.h5", "w") as file:
        if layout == "numbered":
            file["layers/dense/vars/0"] = stored
            file["layers/dense/vars/0"].attrs["dtype"] = "bfloat16"
        else:
            write_listed(file, [KerasLayer("Dense", "dense", {"kernel": stored})])
            file.attrs["keras_version"] = "3.0.0"
    (weight,) = open_weights(tmp_path / "w.h5").tensors
    assert weight.dtype == torch.bfloat16
    assert torch.equal(weight.load(), numbers.T)


def test_bfloat16_as_a_type_of_floats(tmp_path: Path) -> None:
    numbers = torch.randn(4, 8).to(torch.bfloat16)
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_precision(16)
    kind.set_size(2)
    kind.set_ebias(127)
    with h5py.File(tmp_path / "w.h5", "w") as file:
        space = h5py.h5s.create_simple((4, 8))
        item = h5py.h5d.create(file.id, b"w", kind, space)
        data = numbers.view(torch.int16).numpy()
        item.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=kind)
    (weight,) = open_weights(tmp_path / "w.h5").tensors
    assert torch.equal(weight.load(), numbers)


FILTERS = [
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"compression": "lzf"},
    {"compression": "lzf", "shuffle": True, "fletcher32": True},
    {"fletcher32": True},
    {"shuffle": True},
    {},
]


@pytest.mark.parametrize("options", FILTERS, ids=str)
@pytest.mark.parametrize("content", ["random", "repeated", "zeros"])
def test_chunks_are_unpacked(tmp_path: Path, options: dict, content: str) -> None:
    array = {
        "random": _draw(37, 21),
        "repeated": np.tile(_draw(1, 3), (37, 7)),
        "zeros": np.zeros((37, 21), np.float32),
    }[content]
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_dataset("w", data=array, chunks=(8, 10), **options)
        file.create_dataset(
            "cut", data=array[:3, :5], chunks=(8, 10), maxshape=(None, None), **options
        )
    weights = _open(tmp_path / "w.h5")
    assert np.array_equal(weights["w"].load().numpy(), array)
    assert np.array_equal(weights["cut"].load().numpy(), array[:3, :5])


def test_a_compact_dataset_is_read(tmp_path: Path) -> None:
    array = _draw(3, 4)
    with h5py.File(tmp_path / "w.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(array.shape)
        item = h5py.h5d.create(file.id, b"w", h5py.h5t.IEEE_F32BE, space, properties)
        item.write(h5py.h5s.ALL, h5py.h5s.ALL, array)
    (weight,) = open_weights(tmp_path / "w.h5").tensors
    weight.load().zero_()
    assert np.array_equal(weight.load().numpy(), array)


def test_a_dataset_with_two_names_is_tied(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["a"] = _draw(9, 9)
        file["b"] = file["a"]
    first, second = rankwise.probe(tmp_path / "w.h5").layers
    assert first.is_probed
    assert second.status is rankwise.Status.TIED


def test_threads_may_load_side_by_side(tmp_path: Path) -> None:
    _, layers = make_networks()
    weights = open_weights(save_model(tmp_path / "m.h5", layers)).tensors
    expected = [weight.load().clone() for weight in weights]
    wrong: list[str] = []

    def load_all() -> None:
        for weight, tensor in zip(weights, expected, strict=True):
            if not torch.equal(weight.load(), tensor):
                wrong.append(weight.name)

    threads = [threading.Thread(target=load_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_folder_with_one_keras_file_stands_for_it(tmp_path: Path) -> None:
    save_keras(tmp_path / "model.keras", make_networks()[1])
    assert len(open_weights(tmp_path).tensors) == len(_open(tmp_path / "model.keras"))
    torch.save({"w": torch.ones(2, 2)}, tmp_path / "w.pt")  # beside it, HDF5 may be data
    assert [weight.name for weight in open_weights(tmp_path).tensors] == ["w"]


def test_without_h5py_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    path = save_keras(tmp_path / "m.keras", make_networks()[1])
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match="pip install h5py"):
        open_weights(path)
