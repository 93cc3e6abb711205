"""A path → named tensors: checkpoints of every supported format, read without running them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rankwise._io import find_address
from rankwise.checkpoints.config import read_config
from rankwise.checkpoints.detect import Format, detect_format
from rankwise.checkpoints.distributed.reader import read_distributed
from rankwise.checkpoints.folders import Found, find_weights, refuse_member
from rankwise.checkpoints.gguf.reader import read_gguf
from rankwise.checkpoints.hub import RepoPath, is_hub_target, open_hub
from rankwise.checkpoints.keras.reader import read_hdf5, read_keras
from rankwise.checkpoints.numpy import read_npy, read_npz
from rankwise.checkpoints.onnx.reader import read_onnx
from rankwise.checkpoints.ordering import sort_if_alphabetical
from rankwise.checkpoints.pytorch.reader import read_torch_legacy, read_torch_zip
from rankwise.checkpoints.safetensors import read_safetensors
from rankwise.checkpoints.safety import format_path, is_folder
from rankwise.checkpoints.shards import read_index, read_shards
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from rankwise.weights.tensor import Weights

__all__ = ["open_weights"]

_NESTED = {Format.TORCH_ZIP: read_torch_zip, Format.TORCH_LEGACY: read_torch_legacy}
_FLAT = {
    Format.SAFETENSORS: read_safetensors,
    Format.NPZ: read_npz,
    Format.NPY: read_npy,
    Format.ONNX: read_onnx,
    Format.GGUF: read_gguf,
    Format.HDF5: read_hdf5,
    Format.KERAS: read_keras,
}
_WHOLE = (Format.TORCH_LEGACY, Format.ONNX)  # not over the network


def open_weights(path: str | os.PathLike[str], *, key: str | None = None) -> Weights:
    """Open a checkpoint: a file, an index of shards, or a folder of one model.

    The format is detected by the content. Nothing in the file is run, nothing outside its folder
    is opened, and data is read only when a tensor's ``load`` is called. Two formats can only be
    read as a whole, when they are opened: PyTorch's before 1.6, and ONNX without external data.

    Args:
        path: The file or folder, or ``hf://org/name[@revision][/path]`` for one on the Hugging
            Face Hub, of which only headers and the tensors that are loaded are fetched.
        key: The dotted path of the part to take from a nested PyTorch checkpoint; "." takes all
            parts; None chooses the weights and says so in the notes.

    Returns:
        The tensors, with shape and type known; in the network's order, if the file tells it, else
        by name.

    Raises:
        CheckpointError: If it can't be read as weights; the text says why and what to do.
        UnsafeFileError: If reading it would run code or leave its folder.
        MissingExtraError: If an optional package is needed for this format.

    Example:
        >>> import pathlib, tempfile, torch
        >>> from rankwise.checkpoints import open_weights
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "model.pt")
        ...     torch.save({"epoch": 3, "model": {"fc.weight": torch.ones(2, 3)}}, path)
        ...     weight = open_weights(path).tensors[0]
        ...     weight.name, weight.shape, weight.load().sum().item()
        ('fc.weight', (2, 3), 6.0)
    """
    if is_hub_target(os.fspath(path)):
        return _open_hub_weights(os.fspath(path), key)
    file = Path(path)
    _refuse_address(file)
    return _open_path(file, key)


def _open_path(file: Path, key: str | None) -> Weights:
    if is_folder(file):
        found = find_weights(file)
        weights, file = _open_found(found, key), found.path
    else:
        refuse_member(file)
        weights = _open_file(file, key)
    if not weights.tensors:
        raise CheckpointError(f"{format_path(file)}: contains no tensors.")
    # What a file says of itself counts more than a configuration next to it.
    config = {**read_config(file.parent), **weights.config}
    return replace(sort_if_alphabetical(weights), config=config)


def _open_found(found: Found, key: str | None) -> Weights:
    if found.is_distributed:
        weights = read_distributed(found.path.parent, key)
    elif found.shards:
        _refuse_key(found.path.parent, key, "shards")
        weights = read_shards(found.shards, lambda shard: _open_file(shard, None, is_shard=True))
    else:
        weights = _open_file(found.path, key)
    return replace(weights, notes=(*found.notes, *weights.notes))


def _refuse_key(path: Path, key: str | None, kind: str) -> None:
    if key is not None:
        raise CheckpointError(
            f"{format_path(path)}: has no parts to choose with a key, as it is in the format "
            f"{kind}; leave the key out."
        )


def _open_hub_weights(target: str, key: str | None) -> Weights:
    place = open_hub(target)
    weights = _open_path(cast("Path", place), key)
    if isinstance(place, Path):  # of the local cache
        return weights
    note = f"read from the Hugging Face Hub at commit {place.commit}"
    return replace(weights, source=format_path(cast("Path", place)), notes=(*weights.notes, note))


def _refuse_address(path: Path) -> None:
    if address := find_address(path):
        raise CheckpointError(
            f"{address}: a web address can't be opened; download the file first, or give "
            "hf://org/name for a model on the Hugging Face Hub."
        )


def _open_file(path: Path, key: str | None, *, is_shard: bool = False) -> Weights:
    kind = detect_format(path)
    if isinstance(path, RepoPath) and kind is not Format.INDEX:
        path = _replace_by_cached(path, kind)
    if kind in _NESTED:
        return _NESTED[kind](path, key)
    _refuse_key(path, key, kind.value)
    if kind in _FLAT:
        return _FLAT[kind](path)
    if is_shard:  # an index that names an index could go on without end
        raise CheckpointError(
            f"{format_path(path)}: expected a file of weights as a shard, got an index of shards."
        )
    return read_index(path, lambda shard: _open_file(shard, None, is_shard=True))


def _replace_by_cached(path: RepoPath, kind: Format) -> Path:
    """Return the cache's copy of a file, or the file on the hub where parts of it can be read."""
    cached = path.find_cached()
    if cached is None and kind in _WHOLE:
        raise CheckpointError(
            f"{path}: in the format {kind.value}, which can only be read as a whole "
            f"({path.stat().st_size} bytes); download it first: {path.build_download_hint()}"
        )
    return cached or cast("Path", path)
