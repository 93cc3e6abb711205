from __future__ import annotations

import json
import math
import struct
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from rankwise.checkpoints import open_weights
from rankwise.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def _write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def _entry(start: int, end: int, shape: tuple = (1,), dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


NESTED = b"[" * 200 + b"]" * 200
GOOD = {"w": _entry(0, 8, (2,)), "__metadata__": {"format": "pt"}}


def test_the_format_as_written_by_hand(tmp_path: Path) -> None:
    path = _write(tmp_path / "w", GOOD, struct.pack("<2f", 1, 2))
    (weight,) = open_weights(path).tensors
    assert weight.load().tolist() == [1, 2]
    assert weight.identity is None


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        (GOOD, b"", None),  # cut off
        (GOOD, bytes(8), 2**63),
        (GOOD, bytes(8), 2**64 - 1),
        (GOOD, bytes(8), 100_000_001),
        (GOOD, bytes(8), 10),
        (GOOD, bytes(9), None),  # bytes that belong to nothing
        ({"w": _entry(0, 4), "v": _entry(0, 4)}, bytes(4), None),  # overlap
        ({"w": _entry(0, 4), "v": _entry(2, 6)}, bytes(6), None),
        ({"w": _entry(4, 8)}, bytes(8), None),  # a hole
        ({"w": _entry(4, 0)}, bytes(8), None),
        ({"w": _entry(-4, 0)}, bytes(8), None),
        ({"w": _entry(0, 2**70)}, bytes(8), None),
        ({"w": _entry(0, 8, (2**40, 2**40))}, bytes(8), None),  # huge
        ({"w": _entry(0, 8, (2**63, 2**63))}, bytes(8), None),
        ({"w": _entry(0, 8, (-2, -1))}, bytes(8), None),
        ({"w": _entry(0, 8, (2.0,))}, bytes(8), None),
        ({"w": _entry(0, 8, (True, 2))}, bytes(8), None),
        ({"w": _entry(0, 8, ("2",))}, bytes(8), None),
        ({"w": _entry(0, 8, (2,), "NO_SUCH_TYPE")}, bytes(8), None),
        ({"w": {"dtype": "F32", "shape": [2]}}, bytes(8), None),
        ({"w": []}, bytes(8), None),
        ({"w": None}, bytes(8), None),
        (b"{", b"", None),
        (b'{"w": NaN}', b"", None),
        (b"{\xff}", b"", None),
        (b'{"w":' + b"[" * 200_000, b"", None),
        (b'{"w":' + b'{"a":' * 200_000, b"", None),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, header, data, length) -> None:
    path = _write(tmp_path / "w.safetensors", header, data, length)
    with pytest.raises(CheckpointError) as caught:
        open_weights(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("header", "length", "said"),
    [
        (GOOD, 2**63, "its header claims 9223372036854775808 bytes"),
        (GOOD, 200, "its header claims 200 bytes"),
        ({"w": _entry(0, 4), "v": _entry(0, 4)}, None, "overlaps another"),
        ({"w": _entry(0, 400, (100,))}, None, "beyond the end of the file"),
        ({"w": _entry(0, 8, (2**40, 2**40))}, None, "don't agree"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, header, length: int | None, said: str) -> None:
    path = _write(tmp_path / "w.safetensors", header, bytes(8), length)
    with pytest.raises(CheckpointError, match=said):
        open_weights(path)


@pytest.mark.parametrize("inner", [b'"w":%s,"w":%s', b'"w":{"dtype":"F32","dtype":"F32"}'])
def test_a_name_that_occurs_twice_is_refused(tmp_path: Path, inner: bytes) -> None:
    entry = json.dumps(_entry(0, 4)).encode()
    path = _write(tmp_path / "w", b"{" + inner.replace(b"%s", entry) + b"}", bytes(4))
    with pytest.raises(CheckpointError, match="twice"):
        open_weights(path)


def test_a_hostile_name_is_shown_safely(tmp_path: Path) -> None:
    path = _write(tmp_path / "w", {"\x1b[31m\n" + "x" * 10**5: _entry(0, 8)}, bytes(8))
    with pytest.raises(CheckpointError) as caught:
        open_weights(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("dtype", "shape", "loaded"),
    [("F4", (4, 4), (4, 2)), ("F4", (2, 8, 1), (8,)), ("F6_E2M3", (8,), (6,))],
)
def test_packed_types_get_a_row_and_load_as_bytes(tmp_path: Path, dtype, shape, loaded) -> None:
    size = math.prod(loaded)
    data = bytes(range(size)) + bytes(4)
    header = {"packed": _entry(0, size, shape, dtype), "w": _entry(size, size + 4)}
    packed, plain = open_weights(_write(tmp_path / "w", header, data)).tensors
    assert packed.shape == loaded
    assert packed.parameters == math.prod(shape)
    assert packed.stored == dtype
    assert packed.obstacle is not None
    assert packed.obstacle[0] == "quantised"
    assert packed.dtype == packed.load().dtype == torch.uint8
    assert packed.load().shape == loaded
    assert packed.load().flatten().tolist() == list(range(size))
    assert plain.load().tolist() == [0]


def test_scales_that_are_powers_of_two(tmp_path: Path) -> None:
    header = {"scale": _entry(0, 3, (3,), "F8_E8M0")}
    (scale,) = open_weights(_write(tmp_path / "w", header, bytes([126, 127, 128]))).tensors
    assert scale.dtype == scale.load().dtype == torch.float8_e8m0fnu
    assert scale.load().to(torch.float32).tolist() == [0.5, 1, 2]
    assert scale.obstacle is not None  # never a weight itself
    assert scale.obstacle[0] == "quantised"


def test_empty_tensors_and_scalars(tmp_path: Path, writers) -> None:
    writers["safetensors"](tmp_path / "w", {"e": torch.empty(0, 3), "s": torch.tensor(2.0)})
    shapes = {w.name: tuple(w.load().shape) for w in open_weights(tmp_path / "w").tensors}
    assert shapes == {"e": (0, 3), "s": ()}


def test_a_file_that_changes_is_noticed(tmp_path: Path, writers) -> None:
    writers["safetensors"](tmp_path / "w", {"a": torch.ones(9), "b": torch.ones(2)})
    first, second = open_weights(tmp_path / "w").tensors
    first.load()
    writers["safetensors"](tmp_path / "new", {"b": torch.ones(3)})
    (tmp_path / "new").rename(tmp_path / "w")
    with pytest.raises(CheckpointError, match="changed while"):
        second.load()


def test_the_format_needs_no_package(
    tmp_path: Path, writers, tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers["safetensors"](tmp_path / "w", tensors)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for weight in open_weights(tmp_path / "w").tensors:
        assert torch.equal(weight.load(), tensors[weight.name])


def test_layers_come_in_the_order_that_the_file_tells(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    names = ["stem", "block.2", "block.10", "head"]
    tensors = {name: torch.zeros(2) for name in names}
    path = tmp_path / "ordered.safetensors"
    save_file(tensors, path, metadata={"order": json.dumps(names)})
    assert [weight.name for weight in open_weights(path).tensors] == names


@pytest.mark.parametrize("order", ["no json", "[1]", '["stem"]', "[[" * 9_000])
def test_an_order_that_does_not_fit_is_left_aside_and_numbers_count(
    tmp_path: Path, order: str
) -> None:
    from safetensors.torch import save_file

    names = ["block.2", "block.10", "block.010", "counter", f"x{'9' * 5_000}"]
    tensors = {name: torch.zeros(2) for name in names}
    tensors["counter"] = torch.zeros(2, dtype=torch.int64)
    path = tmp_path / "sorted.safetensors"
    save_file(tensors, path, metadata={"order": order})
    ordered = [weight.name for weight in open_weights(path).tensors]
    assert ordered.index("block.2") == 0
    assert sorted(ordered) == sorted(names)


def _entries(**changes: object) -> dict[str, object]:
    return {"w": _entry(0, 4) | changes}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (_entries(), bytes(4)),
        (_entries(extra=1), bytes(4)),
        (_entries(dtype="C128"), bytes(16)),
        (_entries(dtype="I4"), bytes(4)),
        (_entries(dtype="f32"), bytes(4)),
        (_entries(dtype="F4", shape=[3], data_offsets=[0, 2]), bytes(2)),
        (_entries(dtype="F4", shape=[4], data_offsets=[0, 2]), bytes(2)),
        (_entries(data_offsets=[0, 4.0]), bytes(4)),
        (_entries(data_offsets=[0, 4, 4]), bytes(4)),
        (_entries(data_offsets=[False, 4]), bytes(4)),
        (_entries(shape=[0], data_offsets=[0, 0]), b""),
        (_entries(shape=[0, 2**62], data_offsets=[0, 0]), b""),
        (_entries(shape=[2**62, 2**62, 0], data_offsets=[0, 0]), b""),
        (_entries(shape=[2**64, 0], data_offsets=[0, 0]), b""),
        (_entries() | {"__metadata__": None}, bytes(4)),
        (_entries() | {"__metadata__": {"a": 1}}, bytes(4)),
        (_entries() | {"__metadata__": {"a": {}}}, bytes(4)),
        (_entries() | {"__metadata__": ["a"]}, bytes(4)),
        (_entries() | {"z": _entry(4, 4, (0,)), "y": _entry(0, 0, (0,))}, bytes(4)),
        (_entries() | {"z": _entry(2, 2, (0,))}, bytes(4)),
        (_entries() | {"z": _entry(8, 8, (0,))}, bytes(4)),
        (_entries() | {"z": _entry(4, 8)}, bytes(8)),
        (_entries() | {"z": _entry(4, 8)}, bytes(12)),
        (_entries() | {"z": _entry(8, 12)}, bytes(12)),
        (b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
        (b'{"\\ud83d\\ude00":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
        (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} ', bytes(4)),
        (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}x', bytes(4)),
        (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":%s}}' % NESTED, bytes(4)),
        (b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4)),
    ],
)  # fmt: skip
def test_what_the_format_s_own_package_refuses_is_refused(tmp_path: Path, header, data) -> None:
    from safetensors import SafetensorError, safe_open

    path = _write(tmp_path / "w.safetensors", header, data)
    try:
        with safe_open(path, framework="pt") as file:
            expected = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError:
        with pytest.raises(CheckpointError):
            open_weights(path)
        return
    weights = open_weights(path).tensors
    assert {weight.name for weight in weights} == set(expected)
    for weight in weights:
        theirs = expected[weight.name]
        same = theirs.dtype == weight.load().dtype
        assert weight.load().shape == theirs.shape
        assert torch.equal(weight.load(), theirs if same else theirs.view(torch.uint8))


def test_rows_are_read_alone(tmp_path: Path, writers) -> None:
    stack = torch.randn(6, 3, 5)
    writers["safetensors"](tmp_path / "w", {"w": stack, "s": torch.tensor(1.0)})
    weights = {weight.name: weight for weight in open_weights(tmp_path / "w").tensors}
    assert torch.equal(weights["w"].load_slice(2, 3), stack[2:5])
    assert weights["w"].load_rows is not None
    assert weights["w"].load_rows(6, 0).shape == (0, 3, 5)
    for start, count in ((-1, 2), (5, 2), (0, 7), (2, -1)):
        with pytest.raises(ArgumentError, match="Expected rows of 'w'"):
            weights["w"].load_rows(start, count)
    assert weights["s"].load_rows is None
