"""Folders of DeepSpeed's ZeRO: which file has the weights, or why none has them whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankwise._text import format_count, quote
from rankwise.checkpoints.listing import find_matches, read_name
from rankwise.checkpoints.safety import format_path, is_folder, is_present, list_some, safe_join
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_TAG = "latest"
_WHOLE = "mp_rank_*_model_states.pt"
_PARTITIONED = "zero_pp_rank_*_model_states.pt"
_PIPELINE = "layer_*-model_states.pt"
_EXPERTS = "*expert_*_model_states.pt"


@dataclass(frozen=True, slots=True)
class ModelStates:
    """The file with the weights of a ZeRO checkpoint."""

    path: Path
    notes: tuple[str, ...]


def find_latest(folder: Path, names: list[str]) -> tuple[Path, str] | None:
    """Return the checkpoint that the file `latest` names, and a note that says so.

    Raises:
        CheckpointError: If there is no such folder.
        UnsafeFileError: If it names something outside of its folder.
    """
    if _TAG not in names or is_folder(safe_join(folder, _TAG)):
        return None
    tag = read_name(safe_join(folder, _TAG))
    checkpoint = safe_join(folder, tag)
    if not is_present(checkpoint) or not is_folder(checkpoint):
        raise CheckpointError(
            f"{format_path(folder)}: its file {quote(_TAG)} names {quote(tag)}, which is missing; "
            "give the path of the folder of one checkpoint."
        )
    return checkpoint, f"checkpoint {quote(tag)}, which the file {quote(_TAG)} names"


def find_model_states(folder: Path, names: list[str]) -> ModelStates | None:
    """Return the file with a ZeRO checkpoint's weights; None for a folder of another kind.

    Raises:
        CheckpointError: If the weights are split over several files.
    """

    def find(pattern: str) -> list[str]:
        return find_matches(folder, names, pattern)

    if find(_PARTITIONED):
        raise CheckpointError(
            f"{format_path(folder)}: a DeepSpeed checkpoint of ZeRO stage 3, whose weights are "
            "split over all processes; join them with the script zero_to_fp32.py that DeepSpeed "
            "puts next to it, and give the path of its output."
        )
    if layers := find(_PIPELINE):
        raise CheckpointError(
            f"{format_path(folder)}: a DeepSpeed checkpoint of a pipeline, with a file for each "
            f"layer ({list_some(map(quote, layers))}); give the path of one of them."
        )
    files = find(_WHOLE)
    if len(files) > 1:
        raise CheckpointError(
            f"{format_path(folder)}: a DeepSpeed checkpoint whose weights are split over "
            f"{len(files)} model-parallel processes ({list_some(map(quote, files))}); "
            "join them with DeepSpeed's ds_to_universal.py, or give the path of one."
        )
    if not files:
        return None
    notes = [
        f"weights of a DeepSpeed checkpoint, from {quote(files[0])}; copies of higher precision in "
        "the optimizer's files are not read"
    ]
    if experts := find(_EXPERTS):
        notes.append(f"{format_count(len(experts), 'file')} of experts left out")
    return ModelStates(safe_join(folder, files[0]), tuple(notes))
