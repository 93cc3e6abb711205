from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from rankwise.checkpoints import open_weights
from rankwise.errors import CheckpointError, UnsafeFileError

if TYPE_CHECKING:
    from pathlib import Path

ONES, TWOS = torch.ones(2, 2), torch.full((2, 2), 2.0)


def _index(path: Path, places: object) -> Path:
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return path


@pytest.fixture(params=["safetensors", "bin"])
def sharded(request: pytest.FixtureRequest, tmp_path: Path, writers):
    """A folder of two shards, its index rewritten by each test that needs another."""
    kind = request.param
    write = writers["safetensors" if kind == "safetensors" else "torch"]
    stem = "model" if kind == "safetensors" else "pytorch_model"
    first, second = f"{stem}-00001-of-00002.{kind}", f"{stem}-00002-of-00002.{kind}"
    write(tmp_path / first, {"a": ONES})
    write(tmp_path / second, {"b": TWOS.clone(), "c": TWOS.clone()})
    index = tmp_path / f"{stem}.{kind}.index.json"
    _index(index, {"a": first, "b": second, "c": second})
    return index, first, second


def test_shards_are_read_as_one(sharded) -> None:
    index, _, _ = sharded
    for path in (index, index.parent):
        weights = open_weights(path)
        assert [(w.name, w.load()[0, 0].item()) for w in weights.tensors] == [
            ("a", 1),
            ("b", 2),
            ("c", 2),
        ]
        assert weights.notes == ()


def test_tied_tensors_are_never_tied_across_shards(sharded) -> None:
    index, _, _ = sharded
    identities = [w.identity for w in open_weights(index).tensors if w.identity is not None]
    assert len(set(identities)) == len(identities)


def test_a_missing_shard_is_named(sharded) -> None:
    index, _, second = sharded
    (index.parent / second).unlink()
    with pytest.raises(CheckpointError, match=f"missing.*'{second}'"):
        open_weights(index)


def test_a_tensor_that_its_shard_lacks_gets_a_row(sharded) -> None:
    index, first, second = sharded
    _index(index, {"a": first, "b": second, "c": second, "lost": first})
    lost = open_weights(index).tensors[-1]
    assert lost.name == "lost"
    assert lost.obstacle is not None
    assert lost.obstacle[0] == "unreadable"
    with pytest.raises(CheckpointError, match="'lost'"):
        lost.load()


def test_a_tensor_that_the_index_lacks_gets_a_row(sharded) -> None:
    index, first, second = sharded
    _index(index, {"a": first, "b": second})
    weights = open_weights(index)
    assert [w.name for w in weights.tensors] == ["a", "b", "c"]
    (note,) = weights.notes
    assert "index says: 1" in note


def test_a_tensor_in_two_shards_drops_none(sharded, tmp_path: Path) -> None:
    index, first, second = sharded
    torch.save({"a": ONES, "b": ONES}, tmp_path / first)
    _index(index, {"a": first, "b": second, "c": second})
    values = {w.name: w.load()[0, 0].item() for w in open_weights(index).tensors}
    assert values == {"a": 1, "b": 2, "c": 2, "b#2": 1}


@pytest.mark.parametrize(
    "shard", ["../w.bin", "/etc/passwd", "a/../../w", "..\\w", "C:\\w", "", "out", "up/w"]
)
def test_shards_outside_the_folder_are_refused(tmp_path: Path, shard: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    torch.save({"w": ONES}, tmp_path / "w")
    (folder / "out").symlink_to("../w")
    (folder / "up").symlink_to("..")
    index = _index(folder / "model.safetensors.index.json", {"w": shard})
    with pytest.raises(UnsafeFileError, match="nothing was read"):
        open_weights(index)


def test_the_cache_of_hugging_face(tmp_path: Path, writers) -> None:
    snapshot, blobs = tmp_path / "m" / "snapshots" / "rev", tmp_path / "m" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    writers["safetensors"](blobs / "1f", {"a": ONES})
    _index(blobs / "2f", {"a": "model-1.safetensors"})
    (snapshot / "model-1.safetensors").symlink_to("../../blobs/1f")
    (snapshot / "model.safetensors.index.json").symlink_to("../../blobs/2f")
    assert open_weights(snapshot).tensors[0].load().sum() == 4


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {}}',
        b'{"weight_map": {"a": 3}}',
        b'{"weight_map": {"a": "x", "a": "y"}}',
        b'{"weight_map": {}, "weight_map": {}}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"\xff\xfe",
        b'{"weight_map": {"\\u001b[31m": "no-such\\u001b[31m"}}',
    ],
)
def test_hostile_indices_end_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_weights(tmp_path)
    assert str(caught.value).isprintable()


def test_a_huge_index_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text("{")
    with path.open("r+b") as file:
        file.write(b"{" + b" " * 600)
        file.truncate(65 * 2**20)
    with pytest.raises(CheckpointError, match="too large"):
        open_weights(path)


def test_an_index_may_not_name_an_index(tmp_path: Path) -> None:
    name = "model.safetensors.index.json"
    _index(tmp_path / name, {"a": name})
    with pytest.raises(CheckpointError, match="got an index of shards"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (
            ["model.safetensors", "pytorch_model.bin", "adapter_model.bin", "x.pt"],
            "model.safetensors",
        ),
        (["pytorch_model.bin", "adapter_model.safetensors"], "pytorch_model.bin"),
        (["adapter_model.safetensors", "adapter_model.bin"], "adapter_model.safetensors"),
        (["adapter_model.bin", "training_args.bin"], "adapter_model.bin"),
        (["my.ckpt", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "config.json"], "my.ckpt"),
        (["diffusion_pytorch_model.SAFETENSORS"], "diffusion_pytorch_model.SAFETENSORS"),
    ],
)
def test_which_file_stands_for_a_folder(tmp_path: Path, names: list[str], chosen: str) -> None:
    for name in names:
        torch.save({"w": ONES}, tmp_path / name)
    weights = open_weights(tmp_path)
    assert weights.source == str(tmp_path / chosen)


def test_several_files_are_listed(tmp_path: Path) -> None:
    for name in ("a.pt", "b.ckpt"):
        torch.save({"w": ONES}, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"several .*\('a\.pt', 'b\.ckpt'\)"):
        open_weights(tmp_path)


def test_folders_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a folder without a weight file"):
        open_weights(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    with pytest.raises(CheckpointError, match="TensorFlow SavedModel"):
        open_weights(tmp_path)


def test_the_chosen_file_may_not_be_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    torch.save({"w": ONES}, tmp_path / "w.pt")
    (folder / "model.safetensors").symlink_to("../w.pt")
    with pytest.raises(UnsafeFileError):
        open_weights(folder)


def test_a_key_reaches_the_file_of_a_folder(tmp_path: Path, sharded) -> None:
    with pytest.raises(CheckpointError, match="key"):
        open_weights(tmp_path, key="a")
    folder = tmp_path / "one"
    folder.mkdir()
    torch.save({"model": {"a.b": ONES}, "ema": {"a.b": TWOS}}, folder / "pytorch_model.bin")
    assert open_weights(folder, key="ema").tensors[0].load()[0, 0] == 2
