"""A folder of shards, as Hugging Face models come → the tensors of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rankwise._text import quote, sanitize
from rankwise.checkpoints.failures import reading, refusing, shown
from rankwise.checkpoints.json_text import json_object
from rankwise.checkpoints.naming import unique_names
from rankwise.checkpoints.safety import regular_size, within
from rankwise.errors import CheckpointError
from rankwise.probes.tensor import Weight, Weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["find_in_folder", "read_index"]

_PREFERRED = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
_INDEX = (".safetensors.index.json", ".bin.index.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".npz", ".npy")
# What trainers put beside the weights.
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
_MOST_LISTED = 8
_LARGEST_INDEX = 64 * 2**20


def find_in_folder(folder: Path) -> Path:
    """Finds the one file of a folder that stands for its weights.

    Args:
        folder: A folder.

    Returns:
        The index of its shards or its weight file.

    Raises:
        CheckpointError: There is none, or several.
        UnsafeFileError: It is a link that leaves the folder.
    """
    with reading(folder, "a folder"):
        names = sorted(path.name for path in folder.iterdir())
    for name in _PREFERRED:
        if name in names:
            return within(folder, name)
    for suffixes in (_INDEX, _WEIGHTS):
        found = [name for name in names if name.lower().endswith(suffixes)]
        found = [name for name in found if not name.startswith(_NO_WEIGHTS)]
        if len(found) == 1:
            return within(folder, found[0])
        if found:
            raise CheckpointError(
                f"{shown(folder)}: holds several weight files ({_listed(found)}); name one of them."
            )
    if "saved_model.pb" in names:
        raise CheckpointError(
            f"{shown(folder)}: a TensorFlow SavedModel, which isn't supported; "
            "save its weights with numpy.savez first."
        )
    raise CheckpointError(
        f"{shown(folder)}: a folder without a weight file; "
        "name a .safetensors, PyTorch, .npz, .npy or .onnx file."
    )


def read_index(path: Path, open_file: Callable[[Path], Weights]) -> Weights:
    """Opens the shards which an index names.

    Args:
        path: The index, a file such as ``model.safetensors.index.json``.
        open_file: Opens one shard.

    Returns:
        The tensors of all shards; those the index names but no shard holds, as unreadable.

    Raises:
        CheckpointError: The index is damaged, or a shard is missing.
        UnsafeFileError: It names a file outside its folder.
    """
    places = _weight_map(path)
    shards = {name: within(path.parent, name) for name in dict.fromkeys(places.values())}
    missing = [name for name, shard in shards.items() if not shard.exists()]
    if missing:
        raise CheckpointError(
            f"{shown(path)}: names {_listed(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} missing; download or copy the whole folder."
        )
    return _merge(path, places, {name: open_file(shard) for name, shard in shards.items()})


def _merge(path: Path, places: dict[str, str], shards: dict[str, Weights]) -> Weights:
    rows = [(name, tensor) for name, weights in shards.items() for tensor in weights.tensors]
    indexed = [tensor for name, tensor in rows if places.get(tensor.name) == name]
    others = [tensor for name, tensor in rows if places.get(tensor.name) != name]
    held = {tensor.name for _, tensor in rows}
    absent = [_absent(path, name, shard) for name, shard in places.items() if name not in held]
    # Those which the index places come first: if a name occurs again, they keep it.
    tensors = [*indexed, *others, *absent]
    names = unique_names(tensor.name for tensor in tensors)
    notes = [note for weights in shards.values() for note in weights.notes]
    if others:
        notes.append(f"tensors that aren't where the index says: {len(others)}")
    return Weights(
        sanitize(str(path)),
        tuple(
            tensor if tensor.name == name else replace(tensor, name=name)
            for name, tensor in zip(names, tensors, strict=True)
        ),
        tuple(dict.fromkeys(notes)),
    )


def _absent(path: Path, name: str, shard: str) -> Weight:
    reason = f"the index places it in {quote(shard)}, which doesn't hold it"
    load = refusing(path, f"{quote(name)} can't be read: {reason}.")
    return Weight(name, (), torch.float32, load, obstacle=("unreadable", reason))


def _weight_map(path: Path) -> dict[str, str]:
    if regular_size(path) > _LARGEST_INDEX:
        raise CheckpointError(f"{shown(path)}: too large for an index of shards.")
    with reading(path, "an index of shards"):
        text = path.read_bytes()
    places = json_object(path, text, "the index").get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(
            f"{shown(path)}: a JSON file without a 'weight_map'; name a weight file or its index."
        )
    if not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointError(f"{shown(path)}: its 'weight_map' must give a file for each tensor.")
    return places


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(quote(name) for name in names[:_MOST_LISTED]) + more
