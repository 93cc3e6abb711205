"""Folders that people are handed: which file is opened, and what the others are told to be."""

import json

import pytest
import torch

import rankwise
from rankwise.checkpoints import open_weights
from rankwise.errors import CheckpointError, UnsafeFileError

ONES, TWOS = torch.ones(2, 2), torch.full((2, 2), 2.0)


def touch(folder, *names):
    """Make empty files, and the folders that they are in."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(b"")
    return folder


def refuse(folder):
    with pytest.raises(CheckpointError) as caught:
        open_weights(folder)
    text = str(caught.value)
    assert text.isprintable()
    assert text.startswith(str(folder))
    return text.replace(str(folder), "HERE")


@pytest.mark.parametrize("kind", ["safetensors", "bin", "pt"])
@pytest.mark.parametrize("start", [0, 1])
def test_shards_without_an_index_are_read_in_their_order(tmp_path, writers, kind, start):
    write = writers["safetensors" if kind == "safetensors" else "torch"]
    for number, name in enumerate(("c", "b", "a")):
        write(
            tmp_path / f"model-{number + start:05}-of-00003.{kind}",
            {f"{name}.weight": torch.full((2, 2), float(number))},
        )
    weights = open_weights(tmp_path)
    assert {w.name: w.load()[0, 0].item() for w in weights.tensors} == {
        "c.weight": 0,
        "b.weight": 1,
        "a.weight": 2,
    }
    if kind != "safetensors":  # whose tensors are always sorted by name
        assert [w.name for w in weights.tensors] == ["c.weight", "b.weight", "a.weight"]
    assert weights.source == str(tmp_path)
    assert "3 shards without an index read together" in weights.notes
    assert len(rankwise.probe(tmp_path).layers) == 3
    with pytest.raises(CheckpointError, match="leave the key out"):
        open_weights(tmp_path, key="model")


def test_a_missing_shard_is_named(tmp_path):
    torch.save({"a": ONES}, tmp_path / "model-00001-of-00003.bin")
    assert "1 of 3 shards, without 'model-00002-of-00003.bin', 'model-00003-of" in refuse(tmp_path)


def test_a_single_shard_is_a_file(tmp_path):
    torch.save({"a": ONES}, tmp_path / "model-00001-of-00001.bin")
    assert open_weights(tmp_path).source == str(tmp_path / "model-00001-of-00001.bin")


def test_a_name_in_two_shards_drops_none(tmp_path):
    torch.save({"a": ONES, "b": ONES}, tmp_path / "model-00001-of-00002.bin")
    torch.save({"a": TWOS}, tmp_path / "model-00002-of-00002.bin")
    weights = open_weights(tmp_path)
    values = {w.name: w.load()[0, 0].item() for w in weights.tensors}
    assert values == {"a": 1, "b": 1, "a#2": 2}
    assert any("another shard has too: 1" in note for note in weights.notes)


def test_shards_may_not_be_links_out_of_the_folder(tmp_path):
    folder = touch(tmp_path, "model/") / "model"
    torch.save({"a": ONES}, folder / "model-00001-of-00002.bin")
    torch.save({"b": ONES}, tmp_path / "w.bin")
    (folder / "model-00002-of-00002.bin").symlink_to("../w.bin")
    with pytest.raises(UnsafeFileError, match="nothing was read"):
        open_weights(folder)


def test_shards_of_two_models_are_several_files(tmp_path):
    touch(tmp_path, "a-00001-of-00002.bin", "a-00002-of-00002.bin", "b-00001-of-00001.bin")
    assert "several weight files" in refuse(tmp_path)


def test_files_of_keras_are_opened_where_nothing_else_is(tmp_path):
    (tmp_path / "model.weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(CheckpointError, match=r"model\.weights\.h5: "):
        open_weights(tmp_path)
    torch.save({"w": ONES}, tmp_path / "w.pt")
    assert open_weights(tmp_path).source == str(tmp_path / "w.pt")


def test_quantised_variants_are_listed(tmp_path):
    touch(tmp_path, "model-Q4_K_M.gguf", "model-Q8_0.gguf")
    text = refuse(tmp_path)
    assert "several quantisations ('model-Q4_K_M.gguf', 'model-Q8_0.gguf')" in text


def test_hidden_files_and_locks_are_ignored(tmp_path):
    touch(
        tmp_path, "._w.pt", ".cache/x.pt", "w.pt.lock", ".locks/w.lock", "checkpoint-1.lock/a.bin"
    )
    assert "without a weight file" in refuse(tmp_path)
    torch.save({"w": ONES}, tmp_path / "w.pt")
    assert open_weights(tmp_path).source == str(tmp_path / "w.pt")


def make_cache(folder, *commits, main=None):
    for commit in commits:
        touch(folder, f"snapshots/{commit}/", "blobs/")
        torch.save({"w": ONES}, folder / "blobs" / f"1{commit}")
        (folder / "snapshots" / commit / "model.bin").symlink_to(f"../../blobs/1{commit}")
    if main is not None:
        touch(folder, "refs/main")
        (folder / "refs" / "main").write_text(main)
    return folder


def test_the_snapshot_of_a_cache_is_opened(tmp_path):
    folder = make_cache(tmp_path / "models--a--b", "c1", "c2", main="c2\n")
    weights = open_weights(folder)
    assert weights.source == str(folder / "snapshots" / "c2" / "model.bin")
    assert weights.notes[0] == "snapshot 'c2' of a Hugging Face cache"
    assert open_weights(make_cache(tmp_path / "models--a--c", "c1")).tensors
    text = refuse(make_cache(tmp_path / "models--a--d", "c1", "c2"))
    assert "snapshots: 'c1', 'c2'" in text
    assert "snapshots: 'c1'" in refuse(make_cache(tmp_path / "models--a--e", "c1", main="c3"))
    text = refuse(tmp_path)
    assert "several repositories ('models--a--b', " in text
    assert "as in HERE/models--a--e" in text


@pytest.mark.parametrize("main", ["../../other", "/etc", "..", "x/../../other"])
def test_the_snapshot_of_a_cache_lies_in_it(tmp_path, main):
    torch.save({"w": ONES}, touch(tmp_path, "other/") / "other" / "w.pt")
    folder = make_cache(tmp_path / "m", "c1", "c2", main=main)
    with pytest.raises(CheckpointError):
        open_weights(folder)
    folder = make_cache(tmp_path / "n", "c1", main="c2")
    (folder / "snapshots" / "c2").symlink_to("../../other")
    with pytest.raises(UnsafeFileError, match="nothing was read"):
        open_weights(folder)


def test_a_cache_that_contains_itself_ends(tmp_path):
    folder = make_cache(tmp_path / "m", "c1", main="loop")
    (folder / "snapshots" / "loop").symlink_to("..")
    assert "HERE/snapshots/loop" in refuse(folder)


def test_a_pipeline_of_diffusers_names_its_parts(tmp_path):
    touch(
        tmp_path,
        "model_index.json",
        "scheduler/scheduler_config.json",
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.bin",
        "text_encoder/model-00001-of-00002.safetensors",
    )
    text = refuse(tmp_path)
    assert "a diffusers pipeline of 'text_encoder', 'unet', 'vae'; give" in text
    assert "as in HERE/unet." in text
    touch(tmp_path, "v1.safetensors", "v1-pruned.safetensors")
    assert "a diffusers pipeline" in refuse(tmp_path)


@pytest.mark.parametrize(
    ("names", "what", "advice"),
    [
        (["checkpoint-500/a.bin", "checkpoint-1500/a.bin"], "a training run", "checkpoint-1500."),
        (["saved_model.pb"], "TensorFlow SavedModel", "numpy.savez"),
        (["ckpt-1.index", "ckpt-1.data-00000-of-00001"], "TensorFlow checkpoint", "numpy.savez"),
        (["_METADATA", "manifest.ocdbt"], "Orbax", "numpy.savez"),
        (["flax_model.msgpack"], "Flax checkpoint", "numpy.savez"),
        (["iter_0000010/x", "latest_checkpointed_iteration.txt"], "Megatron", "HERE/iter_0000010"),
        (["mp_rank_00/model_optim_rng.pt"], "Megatron", "convert it"),
        (["m.nemo"], "NeMo archive", "tar -xf HERE/m.nemo"),
        (["context/io.json", "weights/.metadata"], "a NeMo checkpoint", "HERE/weights"),
        (["pytorch_model_fsdp_0/.metadata"], "Accelerate", "HERE/pytorch_model_fsdp_0"),
        (["consolidated.00.pth", "consolidated.01.pth"], "several devices", "Hugging Face version"),
        (["__0_0.distcp", "__0.metadata"], "metadata of each process", "use_collectives=True"),
        (["__0_0.distcp", "__1_0.distcp"], "without its .metadata", "copy the whole folder"),
        (
            ["shard-00001-model-00001-of-00001.safetensors", "shard-00002-model-x.safetensors"],
            "one for each process",
            "consolidate_safetensors_files",
        ),
        (["model.pdparams"], "PaddlePaddle", "numpy.savez"),
        (["hub/models--a--b/refs/main"], "home of a Hugging Face cache", "HERE/hub"),
        (["lightning_logs/version_0/checkpoints/a.ckpt"], "without a weight file", ""),
        (["version_0/checkpoints/a.ckpt"], "logs of Lightning", "checkpoints"),
        (["epoch_3/a.pt", "epoch_12/b.npz"], "contains no weights itself", "'epoch_12', 'epoch_3'"),
    ],
)
def test_other_folders_are_told_what_they_are(tmp_path, names, what, advice):
    text = refuse(touch(tmp_path, *names))
    assert what in text
    assert advice in text


def test_names_in_sentences_are_safe_to_print(tmp_path):
    refuse(touch(tmp_path, "checkpoint-\x1b[31m{last}/a.bin"))


def test_folders_in_a_folder_are_not_followed_outside(tmp_path):
    folder = touch(tmp_path, "other/w.pt", "model/") / "model"
    (folder / "checkpoint-1").symlink_to("../other")
    assert "without a weight file" in refuse(folder)


def test_an_index_comes_before_shards_and_a_model_before_the_rest(tmp_path):
    torch.save({"a": ONES}, tmp_path / "model-00001-of-00002.bin")
    torch.save({"b": TWOS}, tmp_path / "model-00002-of-00002.bin")
    places = {"a": "model-00001-of-00002.bin", "b": "model-00002-of-00002.bin"}
    (tmp_path / "x.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert open_weights(tmp_path).notes == ()
    touch(tmp_path, "latest", "saved_model.pb", "tf_model.h5", "flax_model.msgpack", "m.gguf")
    torch.save({"c": ONES}, tmp_path / "pytorch_model.bin")
    assert [w.name for w in open_weights(tmp_path).tensors] == ["c"]
