"""A path → named tensors: checkpoints of every supported format, read without running them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.checkpoints.detect import Format, recognise
from rankwise.checkpoints.failures import shown
from rankwise.checkpoints.numpy import read_npy, read_npz
from rankwise.checkpoints.onnx import read_onnx
from rankwise.checkpoints.pytorch import read_torch_legacy, read_torch_zip
from rankwise.checkpoints.safetensors import read_safetensors
from rankwise.checkpoints.safety import is_folder
from rankwise.checkpoints.shards import find_in_folder, read_index
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    import os

    from rankwise.probes.tensor import Weights

__all__ = ["open_weights"]

_NESTED = {Format.TORCH_ZIP: read_torch_zip, Format.TORCH_LEGACY: read_torch_legacy}
_FLAT = {
    Format.SAFETENSORS: read_safetensors,
    Format.NPZ: read_npz,
    Format.NPY: read_npy,
    Format.ONNX: read_onnx,
}


def open_weights(path: str | os.PathLike[str], *, key: str | None = None) -> Weights:
    """Opens a checkpoint: a file, a folder as Hugging Face models come, or an index of shards.

    The format is told by the content. Nothing in the file is run, nothing outside its folder is
    opened, and data is read only when a tensor's ``load`` is called.

    Args:
        path: The file or folder.
        key: The dotted path of the part to take from a nested PyTorch checkpoint; "." takes all
            parts; None chooses the weights and says so in the notes.

    Returns:
        The tensors, with shape and type known.

    Raises:
        CheckpointError: It can't be read as weights; the text says why and what to do.
        UnsafeFileError: Reading it would run code or leave its folder.
        MissingExtraError: An optional package is needed for this format.

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
    place = Path(path)
    if is_folder(place):
        place = find_in_folder(place)
    weights = _open_file(place, key, shards=True)
    if not weights.tensors:
        raise CheckpointError(f"{shown(place)}: holds no tensors.")
    return weights


def _open_file(path: Path, key: str | None, *, shards: bool) -> Weights:
    kind = recognise(path)
    if kind in _NESTED:
        return _NESTED[kind](path, key)
    if key is not None:
        raise CheckpointError(
            f"{shown(path)}: has no parts to choose from with a key ({kind.value}); leave it out."
        )
    if kind in _FLAT:
        return _FLAT[kind](path)
    if not shards:  # an index that names an index could go on without end
        raise CheckpointError(f"{shown(path)}: an index of shards named as a shard of another.")
    return read_index(path, lambda shard: _open_file(shard, None, shards=False))
