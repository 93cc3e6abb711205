"""PyTorch checkpoints → named tensors, mapped from the file; nothing in it is ever run."""

from __future__ import annotations

import pickle
import re
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise._text import quote, sanitize
from rankwise.checkpoints.failures import reading, shown
from rankwise.checkpoints.nested import Selection, select
from rankwise.checkpoints.reopening import Reopening
from rankwise.checkpoints.torch_tensors import describe
from rankwise.checkpoints.zip_directory import require_stored, zip_entries
from rankwise.errors import CheckpointError, UnsafeFileError
from rankwise.probes.tensor import Weight, Weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["read_torch_legacy", "read_torch_zip"]

_KIND = "a PyTorch file"
# Opening one again means unpickling it again, a quarter of a second for a thousand tensors.
_BUDGET = 256 * 2**20
_GLOBAL = re.compile(r"GLOBAL (\S+)")
_FORBIDDEN = re.compile(r"unrecognized function|Can only (create|build)")
_REMEDY = (
    "Where you trust it, save its weights alone with torch.save(model.state_dict(), 'weights.pt') "
    "or convert it to .safetensors."
)


def read_torch_zip(path: Path, key: str | None) -> Weights:
    """Opens a checkpoint saved by ``torch.save`` in its present format, a zip archive.

    Args:
        path: The file.
        key: The dotted path of the part to take; None chooses.

    Returns:
        Its tensors; their data stays in the file until ``load``.

    Raises:
        CheckpointError: It is damaged, holds no tensors, or no part ``key``.
        UnsafeFileError: It asks for classes or functions, which could run code.
    """
    require_stored(path, zip_entries(path))
    # torch.load takes the extension for the format, and only an open file keeps it from that.
    mapped = path.suffix.lower() != ".safetensors"
    load = _load_mapped if mapped else _load_in_memory
    return _weights(path, partial(_open, path, key, load), keep=not mapped)


def read_torch_legacy(path: Path, key: str | None) -> Weights:
    """Opens a checkpoint in the format before PyTorch 1.6, which can only be read as a whole.

    Args:
        path: The file.
        key: The dotted path of the part to take; None chooses.

    Returns:
        Its tensors.

    Raises:
        CheckpointError: It is damaged, holds no tensors, or no part ``key``.
        UnsafeFileError: It asks for classes or functions, which could run code.
    """
    return _weights(path, partial(_open, path, key, _load_in_memory), keep=True)


def _weights(path: Path, opener: Callable[[], Selection], *, keep: bool) -> Weights:
    handle = Reopening(opener, budget=None if keep else _BUDGET)
    selection = handle.get(0)
    with reading(path, _KIND):
        tensors = tuple(
            _weight(path, name, tensor, place, handle)
            for place, (name, tensor) in enumerate(selection.tensors)
        )
    return Weights(sanitize(str(path)), tensors, selection.notes)


def _weight(
    path: Path, name: str, tensor: Tensor, place: int, handle: Reopening[Selection]
) -> Weight:
    known = describe(path, name, tensor)
    if known.obstacle is not None:
        return known
    nbytes = tensor.numel() * tensor.element_size()
    # By place, not by the tensor itself: that would keep the file mapped for good.
    load = partial(_load, path, handle, place, nbytes=nbytes, known=(known.shape, known.dtype))
    return replace(known, load=load)


def _load(
    path: Path,
    handle: Reopening[Selection],
    place: int,
    *,
    nbytes: int,
    known: tuple[tuple[int, ...], torch.dtype],
) -> Tensor:
    tensors = handle.get(nbytes).tensors
    tensor = tensors[place][1].detach() if place < len(tensors) else None
    if tensor is None or (tuple(tensor.shape), tensor.dtype) != known:
        raise CheckpointError(f"{shown(path)}: changed while it was being read.")
    return tensor


def _open(path: Path, key: str | None, load: Callable[[Path], object]) -> Selection:
    # Damaged and old files make torch warn; a failure is reported once, as an error.
    with reading(path, _KIND), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return select(load(path), key)
        except pickle.UnpicklingError as error:
            raise _refusal(path, str(error)) from error
        except CheckpointError as error:  # from select, which knows no path
            raise CheckpointError(f"{shown(path)}: {error}") from error


def _load_mapped(path: Path) -> object:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _load_in_memory(path: Path) -> object:
    with path.open("rb") as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def _refusal(path: Path, text: str) -> CheckpointError:
    wanted = _GLOBAL.search(text)
    if wanted:
        return UnsafeFileError(
            f"{shown(path)}: asks for {quote(wanted[1])}, which could run code; nothing was run. "
            + _REMEDY
        )
    if _FORBIDDEN.search(text):
        return UnsafeFileError(
            f"{shown(path)}: builds objects that aren't tensors, which could run code; "
            f"nothing was run. {_REMEDY}"
        )
    # PyTorch's advice stands around what happened, which is the line that isn't about itself.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines[1:] if not line.startswith(("Please", "Check"))), lines[0])
    return CheckpointError(
        f"{shown(path)}: can't be read as {_KIND} of weights alone: {sanitize(said[:200])}. "
        + _REMEDY
    )
