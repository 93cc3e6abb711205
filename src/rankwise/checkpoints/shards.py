"""A folder of shards, as Hugging Face models come → the tensors of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rankwise._text import quote
from rankwise.checkpoints.gguf.reader import find_first_part
from rankwise.checkpoints.nested import number_duplicates
from rankwise.checkpoints.ordering import sort_names, sort_weights
from rankwise.checkpoints.safety import (
    build_unreadable,
    convert_errors,
    format_path,
    is_present,
    list_some,
    parse_json_object,
    safe_join,
)
from rankwise.checkpoints.source import open_source
from rankwise.errors import CheckpointError
from rankwise.weights.tensor import Status, Weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PREFERRED = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
_INDEX = (".safetensors.index.json", ".bin.index.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".npz", ".npy", ".gguf")
# Weights of Keras; an HDF5 file beside weights of PyTorch may as well hold data.
_KERAS = (".keras", ".h5", ".hdf5")
# What trainers put beside the weights.
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
_MAX_INDEX = 64 * 2**20


def find_weight_file(folder: Path) -> Path:
    """Return the one file of a folder that stands for its weights: an index or a weight file."""
    with convert_errors(folder, "a folder"):
        names = sorted(path.name for path in folder.iterdir())
    for name in _PREFERRED:
        if name in names:
            return safe_join(folder, name)
    for suffixes in (_INDEX, _WEIGHTS, _KERAS):
        files = [name for name in names if name.lower().endswith(suffixes)]
        files = [name for name in files if not name.startswith(_NO_WEIGHTS)]
        if len(files) == 1:
            return safe_join(folder, files[0])
        if first := find_first_part(files):
            return safe_join(folder, first)
        if files:
            raise CheckpointError(
                f"{format_path(folder)}: contains several weight files "
                f"({list_some(map(quote, files))}); give the path of one of them."
            )
    if "saved_model.pb" in names:
        raise CheckpointError(
            f"{format_path(folder)}: a TensorFlow SavedModel, which isn't supported; "
            "save its weights with numpy.savez first."
        )
    raise CheckpointError(
        f"{format_path(folder)}: a folder without a weight file; "
        "give the path of a .safetensors, PyTorch, .npz, .npy, .onnx, .gguf, .h5 or .keras file."
    )


def read_index(path: Path, open_file: Callable[[Path], Weights]) -> Weights:
    """Open the shards that an index such as ``model.safetensors.index.json`` names.

    The index is sorted by name and does not tell the network's order. The numbers of the shards do,
    where each of them has its tensors in the network's order, as PyTorch's have.

    Tensors that the index names but no shard contains get a row as unreadable.
    """
    places = _read_weight_map(path)
    files = {name: safe_join(path.parent, name) for name in sort_names(set(places.values()))}
    missing = [name for name, file in files.items() if not is_present(file)]
    if missing:
        raise CheckpointError(
            f"{format_path(path)}: refers to missing files ({list_some(map(quote, missing))}); "
            "download or copy the whole folder."
        )
    shards = {name: open_file(file) for name, file in files.items()}
    return _merge_shards(path, places, shards)


def _read_weight_map(path: Path) -> dict[str, str]:
    source = open_source(path)
    if source.size > _MAX_INDEX:
        raise CheckpointError(
            f"{format_path(path)}: too large for an index of shards (more than {_MAX_INDEX} bytes)."
        )
    places = parse_json_object(path, source.read(0, source.size), "the index").get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(
            f"{format_path(path)}: a JSON file without a 'weight_map'; "
            "give the path of a weight file or of its index."
        )
    if not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointError(
            f"{format_path(path)}: expected a file name for each tensor in its 'weight_map'."
        )
    return places


def _merge_shards(path: Path, places: dict[str, str], shards: dict[str, Weights]) -> Weights:
    rows = [(shard, tensor) for shard, weights in shards.items() for tensor in weights.tensors]
    indexed = [tensor for shard, tensor in rows if places.get(tensor.name) == shard]
    others = [tensor for shard, tensor in rows if places.get(tensor.name) != shard]
    present = {tensor.name for _, tensor in rows}
    absent = [
        build_unreadable(
            path,
            name,
            (),
            torch.float32,
            (Status.UNREADABLE, f"the index places it in {quote(shard)}, which doesn't contain it"),
        )
        for name, shard in places.items()
        if name not in present
    ]
    # Those that the index places come first: if a name occurs again, they keep it.
    tensors = [*indexed, *others, *absent]
    names = number_duplicates(tensor.name for tensor in tensors)
    notes = [note for weights in shards.values() for note in weights.notes]
    if others:
        notes.append(f"tensors in another shard than the index says: {len(others)}")
    merged = Weights(
        format_path(path),
        tuple(replace(tensor, name=name) for name, tensor in zip(names, tensors, strict=True)),
        tuple(dict.fromkeys(notes)),
    )
    is_ordered = all(weights.order == "network" for weights in shards.values())
    return merged if is_ordered else sort_weights(merged)
