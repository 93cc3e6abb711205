"""Shards, as Hugging Face models come, with an index or without → the tensors of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rankwise._text import quote
from rankwise.checkpoints.folders import find_weights
from rankwise.checkpoints.nested import number_duplicates
from rankwise.checkpoints.ordering import sort_names, sort_weights
from rankwise.checkpoints.safety import (
    build_unreadable,
    format_path,
    is_folder,
    is_present,
    list_some,
    parse_json_object,
    safe_join,
)
from rankwise.checkpoints.source import open_source
from rankwise.errors import CheckpointError
from rankwise.weights.tensor import Status, Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

_MAX_INDEX = 64 * 2**20


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


def list_weight_files(path: Path) -> tuple[Path, ...]:
    """Return the files that a checkpoint's weights lie in: a file itself, or those of a folder.

    Raises:
        CheckpointError: If there are none, or an index can't be read.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "model.safetensors")
        ...     _ = file.write_bytes(b"")
        ...     [found.name for found in list_weight_files(pathlib.Path(folder))]
        ['model.safetensors']
    """
    if is_folder(path):
        found = find_weights(path)
        if found.shards:
            return found.shards
        path = found.path
    if path.suffix != ".json":
        return (path,)
    names = sort_names(set(_read_weight_map(path).values()))
    return tuple(safe_join(path.parent, name) for name in names)


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
    return _sort_unless_ordered(merged, shards.values())


def read_shards(paths: Sequence[Path], open_file: Callable[[Path], Weights]) -> Weights:
    """Open shards without an index, which are in the order of their numbers."""
    shards = [open_file(path) for path in paths]
    tensors = [tensor for weights in shards for tensor in weights.tensors]
    names = number_duplicates(tensor.name for tensor in tensors)
    notes = [note for weights in shards for note in weights.notes]
    if repeated := len(tensors) - len({tensor.name for tensor in tensors}):
        notes.append(f"tensors of a name that another shard has too: {repeated}")
    merged = Weights(
        format_path(paths[0].parent),
        tuple(replace(tensor, name=name) for name, tensor in zip(names, tensors, strict=True)),
        tuple(dict.fromkeys(notes)),
    )
    return _sort_unless_ordered(merged, shards)


def _sort_unless_ordered(merged: Weights, shards: Iterable[Weights]) -> Weights:
    is_ordered = all(weights.order == "network" for weights in shards)
    return merged if is_ordered else sort_weights(merged)
