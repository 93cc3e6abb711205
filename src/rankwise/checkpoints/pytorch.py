"""PyTorch checkpoints → named tensors, mapped from the file; nothing in it is ever run."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise._text import quote, sanitize
from rankwise.checkpoints.memory import BoundedHandle
from rankwise.checkpoints.nested import Selection, select_weights
from rankwise.checkpoints.safety import (
    build_unreadable,
    convert_errors,
    format_path,
    read_zip_directory,
)
from rankwise.errors import CheckpointError, UnsafeFileError
from rankwise.weights.tensor import Status, Weight, Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

_KIND = "a PyTorch file"
# Opening the file again means unpickling it again, a quarter of a second for a thousand tensors.
_BUDGET = 256 * 2**20
# A tensor may repeat one number a billion times over; up to this size it is just a buffer.
_MAX_REPEATED = 256 * 2**20
# Types of fewer than 8 bits, which older versions of PyTorch don't have.
_PACKED = re.compile(r"torch\.(bits\w+|float4\w+|u?int[1-7])")
_GLOBAL = re.compile(r"GLOBAL (\S+)")


def read_torch_zip(path: Path, key: str | None) -> Weights:
    """Open a checkpoint in the present format of ``torch.save``, an uncompressed zip archive."""
    for entry in read_zip_directory(path):
        stored = entry.compress_type == zipfile.ZIP_STORED
        if not stored or entry.file_size != entry.compress_size:
            raise CheckpointError(
                f"{format_path(path)}: its entry {quote(entry.filename)} is compressed, which "
                "PyTorch never does; save the checkpoint again with torch.save."
            )
    # torch.load decides by the extension ".safetensors" unless it is given an open file.
    if path.suffix.lower() == ".safetensors":
        return read_torch_legacy(path, key)
    load = partial(torch.load, path, map_location="cpu", weights_only=True, mmap=True)
    return _read(path, partial(_open, path, key, load), _BUDGET)


def read_torch_legacy(path: Path, key: str | None) -> Weights:
    """Open a checkpoint in the format before PyTorch 1.6, which can only be read as a whole."""

    def load() -> object:
        with path.open("rb") as file:
            return torch.load(file, map_location="cpu", weights_only=True)

    return _read(path, partial(_open, path, key, load), None)


def _open(path: Path, key: str | None, load: Callable[[], object]) -> Selection:
    # Damaged and old files make torch warn; a failure is reported once, as an error.
    with convert_errors(path, _KIND), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = load()
        except pickle.UnpicklingError as error:
            raise UnsafeFileError(_explain_refusal(path, str(error))) from error
        try:
            return select_weights(tree, key)
        except CheckpointError as error:  # knows no path
            raise CheckpointError(f"{format_path(path)}: {error}") from error


def _explain_refusal(path: Path, text: str) -> str:
    remedy = (
        "If you trust it, save its weights alone with torch.save(model.state_dict(), 'weights.pt') "
        "or convert it to .safetensors."
    )
    wanted = _GLOBAL.search(text)
    if wanted:
        reason = f"refers to {quote(wanted[1])}, which could run code"
    else:
        # The cause stands between lines of advice.
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        advice = ("Please", "Check")
        line = next((line for line in lines[1:] if not line.startswith(advice)), lines[0])
        reason = f"contains more than tensors, or is damaged ({sanitize(line[:200])})"
    return f"{format_path(path)}: {reason}; nothing was run. {remedy}"


def _read(path: Path, opener: Callable[[], Selection], budget: int | None) -> Weights:
    handle = BoundedHandle(opener, budget=budget)
    selection = handle.get(0)
    with convert_errors(path, _KIND):
        tensors = tuple(
            _describe(path, name, tensor, place, handle)
            for place, (name, tensor) in enumerate(selection.tensors)
        )
    return Weights(format_path(path), tensors, selection.notes)


def _describe(
    path: Path, name: str, tensor: Tensor, place: int, handle: BoundedHandle[Selection]
) -> Weight:
    shape, dtype = tuple(tensor.shape), tensor.dtype
    obstacle = _find_obstacle(tensor)
    if obstacle is not None:
        return build_unreadable(path, name, shape, dtype, obstacle)
    nbytes = tensor.numel() * tensor.element_size()

    def load() -> Tensor:
        # By place: a reference to the tensor itself would keep the file mapped.
        tensors = handle.get(nbytes).tensors
        loaded = tensors[place][1].detach() if place < len(tensors) else None
        if loaded is None or (tuple(loaded.shape), loaded.dtype) != (shape, dtype):
            raise CheckpointError(
                f"{format_path(path)}: changed while it was being read; try again."
            )
        return loaded

    return Weight(name, shape, dtype, load, identity=_get_identity(path, tensor))


def _get_identity(path: Path, tensor: Tensor) -> Hashable:
    if tensor.numel() == 0:  # no memory that could be shared
        return None
    # With the path: another file may later be mapped to the same address.
    return (str(path), tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _find_obstacle(tensor: Tensor) -> tuple[Status, str] | None:
    if tensor.device.type == "meta":
        return Status.NO_DATA, "saved without its data (device 'meta')"
    if tensor.is_quantized or _PACKED.fullmatch(str(tensor.dtype)):
        return Status.QUANTISED, f"stored in the quantised type {tensor.dtype}"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return Status.UNREADABLE, f"not a dense tensor (layout {tensor.layout})"
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return Status.UNREADABLE, f"a tensor of the special type {type(tensor).__name__}"
    nbytes = tensor.numel() * tensor.element_size()
    stored = tensor.untyped_storage().nbytes()
    if nbytes > max(stored, _MAX_REPEATED):
        return Status.UNREADABLE, f"its shape takes {nbytes} bytes, but only {stored} are stored"
    return None
