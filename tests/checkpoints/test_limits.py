"""Small files that ask for long work: stated limits of memory and work, in every format."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import rankwise
from rankwise.checkpoints import open_weights
from rankwise.errors import CheckpointError

FORMATS = ["torch", "legacy", "safetensors", "npz", "npz-compressed"]
PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.mark.parametrize("kind", FORMATS)
def test_names_may_be_long(tmp_path: Path, writers, kind: str) -> None:
    length = 60_000 if kind.startswith("npz") else 100_000  # the limit of a name in a zip archive
    names = ["0" * length, "layer." * (length // 6), "x" * length]
    writers[kind](tmp_path / "w", {name: torch.eye(4) for name in names})
    probe = rankwise.probe(tmp_path / "w")
    assert {layer.name for layer in probe.layers} == set(names)


@pytest.mark.parametrize("kind", FORMATS)
def test_tensors_without_numbers_take_nothing(tmp_path: Path, writers, kind: str) -> None:
    side = {"torch": 2**25, "legacy": 2**12}.get(kind, 2**40)  # a pickle may not name larger ones
    writers[kind](tmp_path / "w", {"e": torch.empty(0, side), "w": torch.ones(2, 2)})
    weights = {weight.name: weight for weight in open_weights(tmp_path / "w").tensors}
    assert weights["e"].load().shape == weights["e"].shape == (0, side)
    assert {layer.status.value for layer in rankwise.probe(tmp_path / "w").layers} <= {
        "probed",
        "too small",
    }


@pytest.mark.parametrize("shape", ["(4611686018427387904,)", "(4294967296, 4294967296)"])
def test_absurd_shapes_take_nothing(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    (tmp_path / "w.npy").write_bytes(content)
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        open_weights(tmp_path / "w.npy")
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("w.npy", content)
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        open_weights(tmp_path / "w.npz")


@pytest.mark.parametrize("kind", ["torch", "npz", "npz-compressed"])
def test_a_directory_is_not_parsed_again_for_each_tensor(
    tmp_path: Path, writers, kind: str, monkeypatch
) -> None:
    writers[kind](tmp_path / "w", {f"w{i}": torch.ones(2, 2) for i in range(50)})
    opened = []
    real = zipfile.ZipFile

    def count(*args, **options):
        opened.append(args)
        return real(*args, **options)

    monkeypatch.setattr(zipfile, "ZipFile", count)
    for weight in open_weights(tmp_path / "w").tensors:
        weight.load()
    assert 0 < len(opened) <= 3  # to detect the format, to open the file, to build an archive


@pytest.mark.parametrize("depth", [500, 100_000])
def test_an_index_nested_too_deeply_is_refused(tmp_path: Path, depth: int) -> None:
    text = '{"weight_map": {"w": ' + "[" * depth + "]" * depth + "}}"
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"nested too deeply|expected a file name"):
        open_weights(tmp_path)


def test_an_index_beyond_its_limit_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rankwise.checkpoints.shards._MAX_INDEX", 100)
    names = {f"w{i}": "w.safetensors" for i in range(50)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match="too large for an index"):
        open_weights(tmp_path)


def test_a_hankel_matrix_of_few_numbers_is_not_measured(tmp_path: Path) -> None:
    windows = torch.randn(4000).as_strided((2000, 2000), (1, 1))
    torch.save({"w": windows}, tmp_path / "w.pt")
    (layer,) = rankwise.probe(tmp_path / "w.pt").layers
    assert layer.status == rankwise.Status.UNREADABLE
    assert layer.reason == "repeats 3999 stored numbers to make 4000000"


def test_the_page_states_the_limits() -> None:
    from rankwise.checkpoints import nested, numpy, records, safetensors, shards
    from rankwise.checkpoints.distributed import metadata, pieces, program
    from rankwise.checkpoints.pytorch import limits, reader
    from rankwise.weights import stacks

    page = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
    mebibyte = 2**20
    for sentence in (
        f"overlapping windows) | {reader._MAX_REPEATED // mebibyte} MiB",
        f"{reader._MAX_VIEWS} × the data stored, at least {reader._MIN_BUDGET // mebibyte} MiB",
        f"{numpy._MAX_EXPANSION} × the file, at least {numpy._MIN_EXPANDED // mebibyte} MiB",
        f"{records._MAX_DEFLATION} × its stored bytes",
        f"header of a safetensors file | {safetensors._MAX_HEADER // 10**6} MB",
        f"header of an array of numpy | {numpy._MAX_HEADER // 1024} KiB",
        f"distributed checkpoint | {metadata._MAX_SIZE // mebibyte} MiB, "
        f"{program._MAX_OBJECTS:,} objects",
        f"split along several axes | {pieces._MAX_GRID} ",
        f"nested in a pickle | {limits._MAX_NESTED} (metadata: {program._MAX_NESTED})",
        f"index of shards | {shards._MAX_INDEX // mebibyte} MiB",
        f"pickle | {nested._MAX_ITEMS:,}, {nested._MAX_DEPTH} levels deep",
        f"stack of experts | {stacks._MAX_MATRICES} ",
        f"above {limits._FACTOR} × the size of the file",
    ):
        assert sentence in page, sentence


def test_zeros_that_unpack_to_gigabytes_are_listed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a", "b", "c"):
            with archive.open(f"{name}.npy", "w") as entry:
                np.save(entry, np.zeros((2500, 2500), np.float32))
    layers = rankwise.probe(tmp_path / "w.npz").layers
    assert [layer.status.value for layer in layers] == ["probed", "probed", "unreadable"]
