"""Folders of other kinds, each with one sentence: what it is, and what to do.

They are recognised by the names in them. In a sentence, {all} stands for the names that the first
pattern matches, {last} for the path of the last of them, {parts} for the folders inside that
contain weights, and {example} for the path of one of those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankwise._text import quote
from rankwise.checkpoints.listing import find_matches, list_inside
from rankwise.checkpoints.safety import format_path, list_some
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MAX_FOLDERS = 100
_NOT_SUPPORTED = "which isn't supported; save its weights with numpy.savez first."


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of folder: patterns, each of which some name in it matches, and the sentence."""

    patterns: tuple[str, ...]
    sentence: str


# The first that fits is taken.
_KINDS = (
    _Kind(
        ("model_index.json",),
        "a diffusers pipeline of {parts}; give the path of one of them, as in {example}.",
    ),
    _Kind(
        ("__*.metadata", "__*_*.distcp"),
        "a PyTorch distributed checkpoint with metadata of each process ({all}), which isn't "
        "supported; save it with use_collectives=True.",
    ),
    _Kind(
        ("__*_*.distcp",),
        "files of a PyTorch distributed checkpoint without its .metadata, which tells what they "
        "contain; copy the whole folder.",
    ),
    _Kind(
        ("shard-?????-*.safetensors",),
        "a distributed checkpoint in safetensors files, one for each process; join them with "
        "PyTorch's consolidate_safetensors_files.",
    ),
    _Kind(
        ("consolidated.01.pth",),
        "a model split over several devices ({all} and others); use its Hugging Face version, or "
        "give the path of one of the files.",
    ),
    _Kind(
        ("iter_*", "latest_checkpointed_iteration.txt"),
        "checkpoints of Megatron-LM ({all}); give the path of one, as in {last}.",
    ),
    _Kind(
        ("mp_rank_*/model_optim_rng.pt",),
        "a checkpoint of Megatron-LM, split over {all}; convert it to Hugging Face's format.",
    ),
    _Kind(
        ("weights/.metadata", "context"),
        "a NeMo checkpoint; give the path of its folder, {last}.",
    ),
    _Kind(("*.nemo",), "a NeMo archive ({all}); unpack it with tar -xf {last}."),
    _Kind(
        ("pytorch_model_fsdp_*/.metadata",),
        "a checkpoint of Accelerate; give the path of its weights, {last}.",
    ),
    _Kind(
        ("checkpoint-*/*",),
        "a folder of checkpoints of a training run ({all}); give the path of one, as in {last}.",
    ),
    _Kind(("saved_model.pb",), f"a TensorFlow SavedModel, {_NOT_SUPPORTED}"),
    _Kind(("*.index", "*.data-?????-of-?????"), f"a TensorFlow checkpoint, {_NOT_SUPPORTED}"),
    _Kind(("_METADATA",), f"an Orbax checkpoint of JAX, {_NOT_SUPPORTED}"),
    _Kind(("manifest.ocdbt",), f"an Orbax checkpoint of JAX, {_NOT_SUPPORTED}"),
    _Kind(("_CHECKPOINT_METADATA",), f"an Orbax checkpoint of JAX, {_NOT_SUPPORTED}"),
    _Kind(("*.msgpack",), f"a Flax checkpoint of JAX ({{all}}), {_NOT_SUPPORTED}"),
    _Kind(("*.pdparams",), f"a PaddlePaddle checkpoint ({{all}}), {_NOT_SUPPORTED}"),
    _Kind(("*.mlpackage",), f"a Core ML model ({{all}}), {_NOT_SUPPORTED}"),
    _Kind(("*.tflite",), f"a TensorFlow Lite model ({{all}}), {_NOT_SUPPORTED}"),
    _Kind(
        ("models--*/*",),
        "a Hugging Face cache of several repositories ({all}); give the path of one, as in {last}.",
    ),
    _Kind(
        ("hub/models--*",),
        "the home of a Hugging Face cache; give the path of a folder in its folder {last}.",
    ),
    _Kind(
        ("version_*/checkpoints",),
        "the logs of Lightning ({all}); give the path of a file in one's folder checkpoints.",
    ),
)
_BEST_PARTS = ("transformer", "unet")


def refuse_foreign(folder: Path, names: list[str], endings: Sequence[str]) -> None:
    """Raise ``CheckpointError`` for a folder of a known kind, or with weights in its folders."""
    for kind in _KINDS:
        matches = [find_matches(folder, names, pattern) for pattern in kind.patterns]
        if all(matches):
            parts = _list_parts(folder, names, endings)
            text = _fill(folder, kind.sentence, matches[0], parts)
            raise CheckpointError(f"{format_path(folder)}: {text}")
    if parts := _list_parts(folder, names, endings):
        text = "contains no weights itself; give the path of a folder in it: {parts}."
        raise CheckpointError(f"{format_path(folder)}: {_fill(folder, text, parts, parts)}")


def _fill(folder: Path, sentence: str, matches: list[str], parts: list[str]) -> str:
    best = next((name for name in _BEST_PARTS if name in parts), (parts or matches)[0])
    return sentence.format(
        all=list_some(map(quote, matches)),
        last=format_path(folder / matches[-1]),
        parts=list_some(map(quote, parts)) or "no folders with weights",
        example=format_path(folder / best),
    )


def _list_parts(folder: Path, names: list[str], endings: Sequence[str]) -> list[str]:
    """Return the folders in a folder that contain files of weights, of the first hundred."""
    folders = ((name, list_inside(folder, name)) for name in names[:_MAX_FOLDERS])
    return [name for name, inner in folders if any(_is_weights(file, endings) for file in inner)]


def _is_weights(name: str, endings: Sequence[str]) -> bool:
    return name.lower().endswith((*endings, ".distcp"))
