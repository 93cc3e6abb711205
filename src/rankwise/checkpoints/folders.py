"""What a folder is: which of its files stands for its weights, or what else it contains.

Folders that can't be read get one sentence that says what they are and what to do instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from rankwise._text import quote
from rankwise.checkpoints.deepspeed import find_latest, find_model_states
from rankwise.checkpoints.distributed.reader import METADATA
from rankwise.checkpoints.foreign import refuse_foreign
from rankwise.checkpoints.gguf.reader import find_first_part
from rankwise.checkpoints.listing import list_names, read_name
from rankwise.checkpoints.safety import (
    format_path,
    is_folder,
    is_present,
    list_some,
    safe_join,
)
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
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
_TENSORS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".npz", ".npy", ".gguf")
_KERAS = (".h5", ".hdf5", ".keras")
WEIGHTS = (*_TENSORS, *_KERAS)
# What trainers put into the folder of the weights.
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
_PART = re.compile(
    r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<ending>\.(safetensors|bin|pt|pth))",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Found:
    """What stands for the weights of a folder."""

    path: Path  # of the file, of the first shard, or of the metadata
    shards: tuple[Path, ...] = ()  # files without an index that are read together
    is_distributed: bool = False
    notes: tuple[str, ...] = ()


def find_weights(folder: Path, *, notes: tuple[str, ...] = (), follow: bool = True) -> Found:
    """Return what stands for the weights of a folder.

    A folder that names another, as a cache of Hugging Face does, is followed once.

    Raises:
        CheckpointError: If there is no such file, or several; the text says what the folder is.
    """
    names = list_names(folder)
    for name in _PREFERRED:
        if name in names:
            return Found(safe_join(folder, name), notes=notes)
    if METADATA in names and any(name.endswith(".distcp") for name in names):
        return Found(safe_join(folder, METADATA), is_distributed=True, notes=notes)
    if states := find_model_states(folder, names):
        return Found(states.path, notes=(*notes, *states.notes))
    for endings in (_INDEX, _TENSORS, _KERAS):
        files = [name for name in names if name.lower().endswith(endings)]
        files = [name for name in files if not name.startswith(_NO_WEIGHTS)]
        if files:
            return _choose_file(folder, names, files, notes)
    if follow and (inner := _find_snapshot(folder, names) or find_latest(folder, names)):
        return find_weights(inner[0], notes=(inner[1],), follow=False)
    refuse_foreign(folder, names, WEIGHTS)
    raise CheckpointError(
        f"{format_path(folder)}: a folder without a weight file; "
        "give the path of a .safetensors, PyTorch, .npz, .npy, .onnx, .gguf, .h5 or .keras file."
    )


def _choose_file(
    folder: Path, names: list[str], files: Sequence[str], notes: tuple[str, ...]
) -> Found:
    if shards := _find_shards(folder, files):
        note = f"{len(shards)} shards without an index read together"
        return Found(shards[0], shards, notes=(*notes, note))
    if len(files) == 1:
        return Found(safe_join(folder, files[0]), notes=notes)
    if first := find_first_part(files):
        return Found(safe_join(folder, first), notes=notes)
    refuse_foreign(folder, names, WEIGHTS)
    several = "several weight files"
    if all(name.lower().endswith(".gguf") for name in files):
        several = "several GGUF files, as of one model in several quantisations"
    raise CheckpointError(
        f"{format_path(folder)}: contains {several} "
        f"({list_some(map(quote, files))}); give the path of one of them."
    )


def _find_shards(folder: Path, files: Sequence[str]) -> tuple[Path, ...]:
    """Return the shards of one model in their order if all files are such; none may be missing."""
    matches = [_PART.fullmatch(name) for name in files]
    models = {(match["stem"], match["count"], match["ending"]) for match in matches if match}
    if len(models) != 1 or None in matches:
        return ()
    ((stem, count, ending),) = models
    start = 0 if f"{stem}-00000-of-{count}{ending}" in files else 1
    names = [f"{stem}-{i + start:05}-of-{count}{ending}" for i in range(int(count))]
    if missing := [name for name in names if name not in files]:
        raise CheckpointError(
            f"{format_path(folder)}: contains {len(files)} of {len(names)} shards, without "
            f"{list_some(map(quote, missing))}; download or copy the whole folder."
        )
    is_series = 1 < len(names) == len(files)
    return tuple(safe_join(folder, name) for name in names) if is_series else ()


def _find_snapshot(folder: Path, names: Sequence[str]) -> tuple[Path, str] | None:
    """Return the snapshot of a Hugging Face cache that refs/main names, and a note that says so."""
    if "snapshots" not in names or not {"refs", "blobs"} & set(names):
        return None
    snapshots = list_names(safe_join(folder, "snapshots"))
    main = safe_join(folder, "refs/main")
    name = read_name(main) if is_present(main) else ""
    if not name and len(snapshots) == 1:
        name = snapshots[0]
    if name not in snapshots or not is_folder(safe_join(folder, f"snapshots/{name}")):
        listed = f": {list_some(map(quote, snapshots))}" if snapshots else ""
        raise CheckpointError(
            f"{format_path(folder)}: a repository of a Hugging Face cache without the snapshot "
            f"that refs/main names; give the path of one in its folder snapshots{listed}."
        )
    note = f"snapshot {quote(name)} of a Hugging Face cache"
    return safe_join(folder, f"snapshots/{name}"), note


# Files that are a part of something, by their names, and what they are a part of.
_MEMBERS = (
    (METADATA, "the metadata of a PyTorch distributed checkpoint"),
    ("__*.metadata", "the metadata of one process of a PyTorch distributed checkpoint"),
    ("*.distcp", "one of the files of a PyTorch distributed checkpoint"),
    ("*zero_pp_rank_*_states.pt", "one of the files of a DeepSpeed checkpoint"),
)


def refuse_member(file: Path) -> None:
    """Raise ``CheckpointError`` for a file that can only be read with the others of its folder."""
    for pattern, what in _MEMBERS:
        if fnmatchcase(file.name, pattern):
            raise CheckpointError(
                f"{format_path(file)}: {what}; give the path of its folder, "
                f"{format_path(file.parent)}."
            )
