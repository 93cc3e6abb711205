from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from rankwise.checkpoints import open_weights
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def _npy(descr: str, shape: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + length + header + data


def _npz(path: Path, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name + ".npy", content)
    return path


ARRAYS = {
    "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big endian": np.arange(6, dtype=">f4").reshape(2, 3),
    "big integers": np.arange(6, dtype=">i8"),
    "halves": np.ones((2, 2), np.float16),
    "complex": np.ones((2, 2), np.complex64),
    "bools": np.array([True, False]),
    "unsigned": np.array([1, 2], np.uint16),
    "scalar": np.float64(3),
    "empty": np.empty((0, 3), np.float32),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("kind", ["npy", "npz", "compressed"])
def test_arrays_come_as_they_are(tmp_path: Path, kind: str, name: str) -> None:
    path, array = tmp_path / "w", np.asarray(ARRAYS[name])
    with path.open("wb") as file:
        if kind == "npy":
            np.save(file, array)
        else:
            (np.savez if kind == "npz" else np.savez_compressed)(file, **{"the name": array})
    (weight,) = open_weights(path).tensors
    assert weight.name == ("tensor" if kind == "npy" else "the name")
    assert weight.shape == array.shape
    loaded = weight.load()
    assert loaded.dtype == weight.dtype
    assert np.array_equal(loaded.numpy(), array)


def test_a_loaded_array_never_changes_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.ones(9))
    before = (tmp_path / "w.npy").read_bytes()
    open_weights(tmp_path / "w.npy").tensors[0].load().zero_()
    assert (tmp_path / "w.npy").read_bytes() == before


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.array([{"a": 1}, None], dtype=object), "never unpickled"),
        (np.ones(3, "V2"), "bfloat16"),
        (np.array(["a", "b"]), "not a number"),
        (np.array(["2020-01-01"], "M8[D]"), "not a number"),
        (np.zeros(3, [("a", "f4"), ("b", "i4")]), "not a number"),
        (np.zeros(3, np.longdouble), "not a number"),
    ],
)
def test_other_types_get_a_row(tmp_path: Path, array: np.ndarray, reason: str) -> None:
    if array.dtype.itemsize == 8 and array.dtype.kind == "f":
        pytest.skip("long doubles are doubles here")
    np.savez(tmp_path / "w.npz", odd=array, good=np.ones(2))
    odd, good = open_weights(tmp_path / "w.npz").tensors
    assert odd.shape == array.shape
    assert odd.obstacle is not None
    assert odd.obstacle[0] == "unreadable"
    assert reason in odd.obstacle[1]
    with pytest.raises(CheckpointError):
        odd.load()
    assert good.load().sum() == 2


def test_a_type_with_a_shape_of_its_own_gets_a_row(tmp_path: Path) -> None:
    (tmp_path / "w.npy").write_bytes(_npy("('<f4', (2,))", "(3,)", bytes(24)))
    (weight,) = open_weights(tmp_path / "w.npy").tensors
    assert weight.obstacle is not None
    assert weight.obstacle[0] == "unreadable"


def test_pickled_objects_are_never_opened(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'pwned'}",)

    np.save(tmp_path / "w.npy", np.array([Payload()], dtype=object), allow_pickle=True)
    (weight,) = open_weights(tmp_path / "w.npy").tensors
    with pytest.raises(CheckpointError):
        weight.load()
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff{",
        b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{",
        b"\x93NUMPY\x09\x00\x10\x00" + b" " * 99,
        _npy("'<f4'", "(2, 3)", bytes(23)),
        _npy("'<f4'", f"({2**40}, {2**40})", bytes(24)),
        _npy("'<f4'", "(-1, 3)", bytes(24)),
        _npy("'<f4'", "(2.5,)", bytes(24)),
        _npy("'<f4'", "'abc'", bytes(24)),
        _npy("'no such type'", "(2,)", bytes(24)),
        _npy("__import__('os').system('true')", "(2,)", bytes(24)),
        _npy("'<f4'", "(" * 5000 + "2" + ")" * 5000, bytes(24)),
        _npy("'<f4'", "(" + "2," * 20000 + ")", bytes(24)),
    ],
)
@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_headers_that_lie_are_refused(tmp_path: Path, kind: str, content: bytes) -> None:
    path = tmp_path / "w"
    if kind == "npy":
        path.write_bytes(content)
    else:
        _npz(path, w=content)
    with pytest.raises(CheckpointError) as caught:
        open_weights(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("version", [b"\x01\x00", b"\x02\x00", b"\x03\x00"])
def test_versions_of_the_header(tmp_path: Path, version: bytes) -> None:
    (tmp_path / "w").write_bytes(_npy("'<f4'", "(2, 3)", bytes(24), version))
    assert open_weights(tmp_path / "w").tensors[0].load().shape == (2, 3)


def test_files_of_python_2_give_no_warning(tmp_path: Path) -> None:
    _npz(tmp_path / "w", w=_npy("'<f4'", "(2L, 3L)", bytes(24)))
    assert open_weights(tmp_path / "w").tensors[0].load().shape == (2, 3)


def _write_zeros(path: Path, sizes: dict[str, int]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, size in sizes.items():
            with archive.open(f"{name}.npy", "w") as entry:
                entry.write(_npy("'<f4'", f"({size // 4},)"))
                entry.write(bytes(size))


def test_an_archive_unpacks_into_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwise.checkpoints.numpy._MIN_EXPANDED", 10**7)
    _write_zeros(tmp_path / "w.npz", {"a": 6 * 10**6, "b": 6 * 10**6, "c": 3 * 10**6})
    assert (tmp_path / "w.npz").stat().st_size < 10**5
    first, second, third = open_weights(tmp_path / "w.npz").tensors
    assert second.obstacle is not None
    assert second.obstacle[0] == "unreadable"
    assert "would unpack from" in second.obstacle[1]
    assert second.shape == (1_500_000,)
    with pytest.raises(CheckpointError, match="would unpack from"):
        second.load()
    assert first.load().shape == (1_500_000,)
    assert third.load().sum() == 0


def test_a_pruned_network_that_was_compressed_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rankwise.checkpoints.numpy._MIN_EXPANDED", 0)
    generator = np.random.default_rng(0)
    pruned = generator.normal(size=(500, 500)).astype(np.float32)
    pruned[generator.random(pruned.shape) < 0.9] = 0
    np.savez_compressed(tmp_path / "w.npz", w=pruned)
    (weight,) = open_weights(tmp_path / "w.npz").tensors
    assert np.array_equal(weight.load().numpy(), pruned)


def test_a_size_that_no_compression_reaches_is_refused(tmp_path: Path) -> None:
    _write_zeros(tmp_path / "w.npz", {"a": 10**6})
    content = bytearray((tmp_path / "w.npz").read_bytes())
    place = content.rfind(b"PK\x01\x02") + 24
    content[place : place + 4] = (2**31).to_bytes(4, "little")
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match="can't unpack from"):
        open_weights(tmp_path / "w.npz")


@pytest.mark.parametrize("claimed", [-4, 4])
def test_a_size_that_is_not_true_is_noticed(tmp_path: Path, claimed: int) -> None:
    np.savez_compressed(tmp_path / "w.npz", w=np.ones(1000, np.float32))
    content = bytearray((tmp_path / "w.npz").read_bytes())
    place = content.rfind(b"PK\x01\x02") + 24
    size = int.from_bytes(content[place : place + 4], "little") + claimed
    content[place : place + 4] = size.to_bytes(4, "little")
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"unpacks into|needs 4000 bytes"):
        open_weights(tmp_path / "w.npz").tensors[0].load()


@pytest.mark.parametrize("kind", ["npy", "npz", "compressed", "fortran"])
def test_rows_are_read_alone(tmp_path: Path, kind: str) -> None:
    array = np.arange(24, dtype=">f4").reshape(4, 3, 2)
    with (tmp_path / "w").open("wb") as file:
        if kind in ("npy", "fortran"):
            np.save(file, np.asfortranarray(array) if kind == "fortran" else array)
        else:
            (np.savez if kind == "npz" else np.savez_compressed)(file, w=array)
    (weight,) = open_weights(tmp_path / "w").tensors
    assert (weight.load_rows is None) == (kind in ("compressed", "fortran"))
    assert np.array_equal(weight.load_slice(1, 2).numpy(), array[1:3])


def test_entries_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    _npz(tmp_path / "w.npz", **{f"w{i}": _npy("'<f4'", "(99,)", bytes(396)) for i in range(4)})
    content = bytearray((tmp_path / "w.npz").read_bytes())
    place = content.find(b"PK\x01\x02")
    while place >= 0:  # let every entry of the directory begin at the file's start
        content[place + 20 : place + 24] = (1000).to_bytes(4, "little")
        content[place + 42 : place + 46] = bytes(4)
        place = content.find(b"PK\x01\x02", place + 1)
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match="overlap"):
        open_weights(tmp_path / "w.npz")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        for _ in range(2):
            archive.writestr("w.npy", _npy("'<f4'", "(1,)", bytes(4)))
    with pytest.raises(CheckpointError, match="twice"):
        open_weights(tmp_path / "w.npz")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(tmp_path: Path, compression: int) -> None:
    _npz(tmp_path / "w.npz", compression, w=_npy("'<f4'", "(1,)", bytes(4)))
    with pytest.raises(CheckpointError, match="compressed by a method"):
        open_weights(tmp_path / "w.npz")


def test_damaged_data_is_noticed(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=np.ones(1000, np.float32))
    content = bytearray((tmp_path / "w.npz").read_bytes())
    content[2000] ^= 1
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match="CRC"):
        open_weights(tmp_path / "w.npz").tensors[0].load()


def test_entries_that_are_no_arrays_are_mentioned(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=np.ones(2))
    with zipfile.ZipFile(tmp_path / "w.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    weights = open_weights(tmp_path / "w.npz")
    assert [w.name for w in weights.tensors] == ["w"]
    assert weights.notes == ("entries that aren't arrays, left out: 1",)


def test_shapes_are_known_without_reading_data(tmp_path: Path, monkeypatch) -> None:
    np.savez(tmp_path / "w.npz", w=np.ones((1000, 1000)))
    monkeypatch.setattr("rankwise.checkpoints.numpy.read_record", None)
    (weight,) = open_weights(tmp_path / "w.npz").tensors
    assert weight.shape == (1000, 1000)
    assert weight.dtype == torch.float64
