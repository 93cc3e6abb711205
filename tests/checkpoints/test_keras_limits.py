"""HDF5 files that lead out of themselves, lie, or ask for more than they hold."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import rankwise
from rankwise.checkpoints import open_weights
from rankwise.checkpoints.keras import datasets, hdf5, headers, reader
from rankwise.errors import CheckpointError
from tests.checkpoints.keras_files import make_networks, save_keras, save_model

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(20, 30)).astype(np.float32)


def _rows(path: Path) -> dict:
    return {row.name: row for row in rankwise.probe(path).layers}


def _assert_unreadable(path: Path, name: str, said: str) -> None:
    """One tensor has a row with a reason, and can't be loaded; the other is measured."""
    rows = _rows(path)
    assert rows["good"].is_probed
    assert said in rows[name].reason
    weight = next(weight for weight in open_weights(path).tensors if weight.name == name)
    with pytest.raises(CheckpointError, match=said[:20]):
        weight.load()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with one good tensor."""
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["good"] = WEIGHT
    return tmp_path / "w.h5"


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe without a writer: who opens it, waits for ever."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["pipe", "absolute"])
def test_other_files_are_never_opened(path: Path, pipe: Path, name: str) -> None:
    target = str(pipe) if name == "absolute" else "pipe"
    with h5py.File(path, "a") as file:
        file["link"] = h5py.ExternalLink(target, "/w")
        file.create_dataset("outside", (4, 4), "f4", external=[(target, 0, 64)])
        layout = h5py.VirtualLayout((4, 4), "f4")
        layout[:] = h5py.VirtualSource(target, "w", (4, 4))
        file.create_virtual_dataset("virtual", layout)
        endless = h5py.VirtualLayout((4, 4), "f4", maxshape=(None, 4))
        source = h5py.VirtualSource(target, "w", (4, 4), maxshape=(None, 4))
        endless[: h5py.h5s.UNLIMITED, :] = source[: h5py.h5s.UNLIMITED, :]
        file.create_virtual_dataset("endless", endless)
    _assert_unreadable(path, "link", "a link to another file, which is never opened")
    _assert_unreadable(path, "outside", "its numbers lie in another file, which is never")
    _assert_unreadable(path, "virtual", "its numbers are those of other datasets")
    _assert_unreadable(path, "endless", "its numbers are those of other datasets")


@pytest.mark.timeout(20)
def test_a_name_is_never_a_path(path: Path, pipe: Path) -> None:
    with h5py.File(path, "a") as file:
        file["a"] = h5py.ExternalLink(str(pipe), "/w")
        file["aXb"] = WEIGHT
    content = path.read_bytes()
    assert content.count(b"aXb") == 1
    path.write_bytes(content.replace(b"aXb", b"a/b"))
    _assert_unreadable(path, "a/b", "a name that no object of HDF5 can have")


@pytest.mark.timeout(20)
def test_links_that_lead_in_circles_end(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["soft"] = h5py.SoftLink("/soft")
        file["elsewhere"] = h5py.SoftLink("/good")
        file["a/b/c"] = file["/"]
        file["a/b/d"] = file["a"]
        group = file.create_group("ladder")
        for _ in range(60):  # 2⁶⁰ paths
            inner = group.create_group("x")
            group["y"] = inner
            group = inner
        group["w"] = WEIGHT
    rows = _rows(path)
    assert rows["soft"].reason == rows["elsewhere"].reason == "a soft link, which is not followed"
    assert sum(row.is_probed for row in rows.values()) == 2
    assert f"ladder.{'x.' * 60}w" in rows


@pytest.mark.timeout(30)
@pytest.mark.parametrize("what", ["names of a group", "gaps between names", "chunks"])
def test_an_index_that_leads_in_a_circle_is_refused(path: Path, what: str) -> None:
    """The library would end the process, or take all memory."""
    with h5py.File(path, "a") as file:
        file.create_dataset("w", data=WEIGHT, chunks=(2, 2))
    content = bytearray(path.read_bytes())
    if what == "gaps between names":
        data = int.from_bytes(content[content.index(b"HEAP") + 24 :][:8], "little")
        gap = int.from_bytes(content[content.index(b"HEAP") + 16 :][:8], "little")
        content[data + gap : data + gap + 8] = struct.pack("<Q", gap)
    else:
        trees = [i for i in range(len(content)) if content[i : i + 4] == b"TREE"]
        kind, key = (0, 8) if what == "names of a group" else (1, 8 + 8 * 3)
        place = next(i for i in trees if content[i + 4] == kind)
        content[place + 5] = 1  # a level above itself
        content[place + 24 + key : place + 32 + key] = struct.pack("<Q", place)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="leads in a circle"):
        open_weights(path)


@pytest.mark.timeout(60)
def test_groups_may_be_nested_deeply(path: Path) -> None:
    with h5py.File(path, "a") as file:
        group = file
        for _ in range(3000):
            group = group.create_group("g")
        group["w"] = WEIGHT
    weights = open_weights(path)
    assert [weight.name for weight in weights.tensors] == ["good"]
    assert any("nested too deeply" in note for note in weights.notes)


def test_a_file_of_too_many_links_is_refused(path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rankwise.checkpoints.keras.hdf5._MAX_LINKS", 50)
    with h5py.File(path, "a") as file:
        for i in range(60):
            file.create_group(f"g{i}")
    with pytest.raises(CheckpointError, match="more than 50 links"):
        open_weights(path)


@pytest.mark.parametrize(
    "options", [{}, {"chunks": (1000, 1000)}, {"chunks": (10, 10), "compression": 4}]
)
def test_a_shape_without_numbers_takes_nothing(path: Path, options: dict) -> None:
    with h5py.File(path, "a") as file:
        file.create_dataset("huge", (10**6, 10**6), "f4", **options)
    _assert_unreadable(path, "huge", "no numbers are stored for it")
    assert _rows(path)["huge"].status is rankwise.Status.NO_DATA


def test_a_few_chunks_of_many_are_not_the_whole(path: Path) -> None:
    with h5py.File(path, "a") as file:
        item = file.create_dataset("sparse", (10**6, 10**6), "f4", chunks=(10, 10))
        item[:20, :10] = 1
    _assert_unreadable(path, "sparse", "only 2 of its 10000000000 chunks are stored")


def test_a_chunk_far_larger_than_its_dataset(path: Path) -> None:
    with h5py.File(path, "a") as file:
        item = file.create_dataset(
            "w", (2, 2), "u1", chunks=(2**14, 2**16), maxshape=(None, None), compression="gzip"
        )
        item[...] = 1
    assert path.stat().st_size < 4 * 2**20
    _assert_unreadable(path, "w", "would unpack from")


def test_what_all_chunks_unpack_into_is_limited(path: Path) -> None:
    with h5py.File(path, "a") as file:
        for i in range(4):
            file.create_dataset(f"z{i}", (40, 2**20), "u1", chunks=(1, 2**20), compression=9)
            file[f"z{i}"][...] = 0
    rows = _rows(path)
    kept = [row for row in rows.values() if row.status is rankwise.Status.INTEGER]
    assert len(kept) == 1
    assert sum("would unpack from" in row.reason for row in rows.values()) == 3


def _write_chunk(
    path: Path, content: bytes, *, filters: tuple[int, ...] = (1,), mask: int = 0
) -> None:
    """Write a dataset of 4 × 4 numbers in one chunk, as these bytes."""
    with h5py.File(path, "a") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4, 4))
        for code in filters:
            properties.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (4,))
        space = h5py.h5s.create_simple((4, 4))
        item = h5py.h5d.create(file.id, b"w", h5py.h5t.IEEE_F32LE, space, properties)
        item.write_direct_chunk((0, 0), content, mask)


NUMBERS = np.arange(16, dtype=np.float32)


@pytest.mark.parametrize(
    ("content", "filters"),
    [
        (zlib.compress(bytes(10**8), 9), (1,)),
        (zlib.compress(zlib.compress(bytes(10**8), 9)), (1, 1)),
        (zlib.compress(NUMBERS.tobytes())[:-3], (1,)),
        (zlib.compress(NUMBERS.tobytes()[4:]), (1,)),
        (b"not deflated", (1,)),
        (NUMBERS.tobytes() + b"\1\2\3\4", (3,)),
        (b"\1\2", (3,)),
        (b"\xe0" + b"\xff\xff" * 30, (32000,)),  # back to before the beginning
        (b"\0a" + b"\xe0\xff\0" * 100_000, (32000,)),
        (b"\x1fabc", (32000,)),
        (b"\xe0", (32000,)),
        (b"abc", (2,)),
    ],
)
def test_broken_chunks_have_a_row(path: Path, content: bytes, filters: tuple[int, ...]) -> None:
    _write_chunk(path, content, filters=filters)
    rows = _rows(path)
    assert rows["good"].is_probed
    assert rows["w"].status is rankwise.Status.UNREADABLE
    assert rows["w"].reason.isprintable()


def test_a_chunk_of_another_size_says_so(path: Path) -> None:
    _write_chunk(path, zlib.compress(NUMBERS.tobytes()[4:]))
    assert "60 bytes instead of 64" in _rows(path)["w"].reason


def test_a_filter_that_was_left_out_is_not_undone(path: Path) -> None:
    _write_chunk(path, NUMBERS.tobytes(), mask=1)
    weights = {weight.name: weight for weight in open_weights(path).tensors}
    assert torch.equal(weights["w"].load().reshape(-1), torch.from_numpy(NUMBERS))


@pytest.mark.parametrize(
    ("code", "count"), [(6, 1), (5, 1), (32008, 1), (32015, 1), (65000, 1), (1, 9)]
)
def test_other_filters_have_a_row(path: Path, code: int, count: int) -> None:
    with h5py.File(path, "a") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4, 4))
        for _ in range(count):
            properties.set_filter(code, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((4, 4))
        item = h5py.h5d.create(file.id, b"w", h5py.h5t.IEEE_F32LE, space, properties)
        item.write_direct_chunk((0, 0), NUMBERS.tobytes())
    _assert_unreadable(path, "w", "filter")


@pytest.mark.timeout(60)
def test_no_plugin_is_loaded(path: Path, tmp_path: Path) -> None:
    _write_chunk(path, NUMBERS.tobytes(), filters=(32015,))
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    os.mkfifo(plugins / "libfilter.so")  # the library would open it, and wait
    code = "import sys, rankwise; print([r.reason for r in rankwise.probe(sys.argv[1]).layers])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "HDF5_PLUGIN_PATH": str(plugins)},
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )
    assert "filter 32015, which is not read" in done.stdout


def test_data_may_not_be_claimed_again_and_again(path: Path) -> None:
    with h5py.File(path, "a") as file:
        for i in range(50):
            file.create_dataset(f"w{i}", (100, 100), "f8")
        file["w0"][...] = RNG.normal(size=(100, 100))
        place = struct.pack("<Q", file["w0"].id.get_offset())
    nowhere = b"\x03\x01" + b"\xff" * 8 + struct.pack("<Q", 80_000)
    content = path.read_bytes()
    assert content.count(nowhere) == 49
    path.write_bytes(content.replace(nowhere, b"\x03\x01" + place + struct.pack("<Q", 80_000)))
    rows = _rows(path).values()
    assert sum(row.is_probed for row in rows) == 2
    assert sum("more than the other tensors leave of the file" in row.reason for row in rows) == 49


def test_data_beyond_the_end_of_the_file_is_refused(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["w"] = RNG.normal(size=(10, 10))
        offset = file["w"].id.get_offset()
    content = path.read_bytes()
    moved = struct.pack("<Q", len(content) - 8)
    path.write_bytes(content.replace(struct.pack("<Q", offset), moved))
    with pytest.raises(CheckpointError, match=r"damaged or truncated|beyond the end"):
        rankwise.probe(path)


OTHERS = {
    "text": np.array([b"abc", b"d"], "S3"),
    "compound": np.zeros((3, 3), [("a", "f4"), ("b", "i4")]),
    "raw": np.zeros((3, 3), "V2"),
    "quarter": np.zeros((3, 3), "V1"),
    "complex": np.zeros((3, 3), "c8"),
    "long": np.zeros((3, 3), "f16"),
    "nothing": h5py.Empty("f4"),
}


def test_other_types_have_a_row(path: Path) -> None:
    with h5py.File(path, "a") as file:
        for name, value in OTHERS.items():
            file[name] = value
        file.create_dataset("texts", data=["a", "b"], dtype=h5py.string_dtype())
        file.create_dataset("lists", (2,), h5py.vlen_dtype(np.int32))
        file.create_dataset("object", data=[file["good"].ref], dtype=h5py.ref_dtype)
        file.create_dataset("region", data=[file["good"].regionref[:2]], dtype=h5py.regionref_dtype)
        file.create_dataset("array", (3,), np.dtype(("f4", (4,))))
        file["type"] = np.dtype("f4")
    for name in (*OTHERS, "texts", "lists", "object", "region", "array"):
        assert not _rows(path)[name].is_probed
    assert "type" not in _rows(path)


def test_names_are_shown_safely(path: Path) -> None:
    names = ["\x1b[31mred", "a\nb", "\u202eevil", "層", "x" * 5000, "=cmd()"]
    with h5py.File(path, "a") as file:
        for name in names:
            file[name] = WEIGHT
        h5py.h5d.create(file.id, b"\xff\xfe", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((2, 2)))
    probe = rankwise.probe(path)
    assert len(probe.layers) == len(names) + 2
    assert probe.table().replace("\n", "").isprintable()


@pytest.mark.timeout(30)
def test_one_long_text_named_many_times(path: Path) -> None:
    """A list of texts takes no more memory than the file has."""
    with h5py.File(path, "a") as file:
        text = b"x" * 1_000_000
        file.attrs["layer_names"] = [text, *([b"y" * 7] * 3000)]
    content = path.read_bytes()
    start = content.index(struct.pack("<I", 1_000_000))
    descriptor = content[start : start + 16]
    many = content[: start + 16] + descriptor * 3000 + content[start + 16 * 3001 :]
    assert len(many) == len(content)
    path.write_bytes(many)
    before = time.process_time()
    assert _rows(path)["good"].is_probed
    assert time.process_time() - before < 10


@pytest.mark.parametrize("kind", ["m.h5", "m.keras"])
def test_files_that_are_cut_short_are_refused_or_read(tmp_path: Path, kind: str) -> None:
    layers = make_networks()[1]
    path = (save_keras if kind == "m.keras" else save_model)(tmp_path / kind, layers)
    content = path.read_bytes()
    for size in range(9, len(content), len(content) // 60):
        path.write_bytes(content[:size])
        os.utime(path, (10**9, 10**9))
        with pytest.raises(CheckpointError) as caught:
            open_weights(path)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("kind", ["m.h5", "m.keras"])
def test_a_file_that_changes_is_noticed(tmp_path: Path, kind: str) -> None:
    layers = make_networks()[1]
    path = (save_keras if kind == "m.keras" else save_model)(tmp_path / kind, layers)
    first, *_, last = open_weights(path).tensors
    first.load()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    with pytest.raises(CheckpointError, match="changed while it was being read"):
        last.load()


def test_a_compressed_archive_may_not_be_a_bomb(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.keras", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr("config.json", "{}")
        with file.open("model.weights.h5", "w") as weights:
            for _ in range(100):
                weights.write(bytes(10**6))
    with pytest.raises(CheckpointError, match="would unpack from"):
        open_weights(tmp_path / "m.keras")


def test_what_is_no_hdf5_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as file:
        file.writestr("model.weights.h5", b"nothing" * 99)
    (tmp_path / "m.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(999))
    for name in ("m.keras", "m.h5"):
        with pytest.raises(CheckpointError, match="can't be read as an HDF5 file"):
            open_weights(tmp_path / name)


def test_the_security_page_states_the_limits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    mebibyte = 2**20
    for sentence in (
        f"{datasets._MAX_EXPANSION} × the file, at least {datasets._MIN_EXPANDED // mebibyte} MiB",
        f"{reader._MAX_EXPANSION} × the file, at least {reader._MIN_EXPANDED // mebibyte} MiB",
        f"links of an HDF5 file | {hdf5._MAX_LINKS:,}, {hdf5._MAX_DEPTH} levels deep",
        f"chunks of an HDF5 file | {datasets._MAX_CHUNKS:,} ",
        f"configuration | {headers._MAX_TEXT // mebibyte} MiB",
    ):
        assert sentence in page, sentence
    assert headers._MAX_TEXT == reader._MAX_CONFIG


def test_memory_that_is_not_there(path: Path, monkeypatch) -> None:
    with h5py.File(path, "a") as file:
        file.create_dataset("w", data=WEIGHT, chunks=(5, 5))
    weights = open_weights(path).tensors

    def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr("torch.empty", refuse)
    for weight in weights:
        with pytest.raises(CheckpointError, match="not enough memory"):
            weight.load()
