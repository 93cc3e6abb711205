"""PyTorch checkpoints → named tensors, read through the file; nothing in it is ever run."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise._text import format_count
from rankwise.checkpoints.detect import Format, detect_format
from rankwise.checkpoints.nested import Selection, select_weights
from rankwise.checkpoints.pytorch.archive import TorchArchive, load_pickle, read_archive
from rankwise.checkpoints.pytorch.layout import Layout, build_dequantiser, describe_layout, locate
from rankwise.checkpoints.pytorch.limits import BoundedReader, check_program
from rankwise.checkpoints.pytorch.stand_ins import NestedTensor, QuantisedTensor
from rankwise.checkpoints.safety import build_unreadable, convert_errors, format_path
from rankwise.checkpoints.source import FileSource, open_source
from rankwise.errors import CheckpointError
from rankwise.weights.tensor import Status, Weight, Weights

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

_KIND = "a PyTorch file"
_LEGACY_PICKLES = 5  # a number, the version, the system, the content, the names of storages
# A tensor may repeat one stored number a billion times over. Up to this size it is just a buffer.
_MAX_REPEATED = 2**20
# All tensors together may take so many times what is stored: views of one storage take more.
_MAX_VIEWS = 4
_MIN_BUDGET = 64 * 2**20
_PACKED = re.compile(r"torch\.(bits\w+|float4\w+|u?int[1-7])")  # fewer than 8 bits
_NO_DATA = (Status.NO_DATA, "saved without its data (device 'meta')")
SCALE_OBSTACLE = (Status.QUANTISED, "stored as float8_e8m0fnu, a type of scales")

Obstacle = tuple[Status, str]


def read_torch_zip(path: Path, key: str | None) -> Weights:
    """Open a checkpoint in the present format of ``torch.save``, an uncompressed zip archive."""
    source = open_source(path)
    archive = read_archive(source)
    selection = _select(source, archive.tree, key)
    budget = _Budget(archive.stored)
    with convert_errors(path, _KIND):
        tensors = tuple(
            _describe_stored(archive, name, tensor, budget) for name, tensor in selection.tensors
        )
    return Weights(format_path(path), tensors, selection.notes)


def read_torch_legacy(path: Path, key: str | None) -> Weights:
    """Open a checkpoint in the format before PyTorch 1.6, which can only be read as a whole."""
    source = open_source(path)
    selection = _select(source, _load_legacy(source), key)
    with convert_errors(path, _KIND):
        _check_storages(source, selection)
        budget = _Budget(source.size)
        tensors = tuple(
            _describe_loaded(source, name, tensor, budget) for name, tensor in selection.tensors
        )
    return Weights(format_path(path), tensors, selection.notes)


def read_torch_tree(path: Path) -> object:
    """Return all that a PyTorch checkpoint contains, numbers and texts as well as tensors.

    Tensors have no data, or, in the format before PyTorch 1.6, may have less than they claim.
    """
    source = open_source(path)
    kind = detect_format(path)
    if kind is Format.TORCH_ZIP:
        return read_archive(source).tree
    if kind is Format.TORCH_LEGACY:
        return _load_legacy(source)
    raise CheckpointError(f"{format_path(path)}: not a file of torch.save.")


def _load_legacy(source: FileSource) -> object:
    with source.open() as opened:
        file = io.BufferedReader(opened.as_file())  # type: ignore[type-var]
        try:
            for _ in range(_LEGACY_PICKLES):
                check_program(source, BoundedReader(file, source.size))
        finally:
            file.detach()  # or the file would be closed with it

    def load(encoding: str) -> object:
        with source.open() as file:
            return torch.load(
                file.as_file(), map_location="cpu", weights_only=True, mmap=False, encoding=encoding
            )

    return load_pickle(source, load)


def _select(source: FileSource, tree: object, key: str | None) -> Selection:
    with convert_errors(source.path, _KIND):
        try:
            return select_weights(tree, key)
        except CheckpointError as error:  # knows no path
            raise CheckpointError(f"{format_path(source.path)}: {error}") from error


class _Budget:
    """How many bytes all tensors of a file may still take."""

    def __init__(self, stored: int) -> None:
        self._limit = self._left = max(_MIN_BUDGET, _MAX_VIEWS * stored)
        self._seen: set[Hashable] = set()

    def check(self, layout: Layout, identity: Hashable) -> Obstacle | None:
        """Count a tensor, once for all that share its memory; return why it is too much, if so."""
        stored = layout.span * layout.dtype.itemsize
        if layout.nbytes > max(stored, _MAX_REPEATED):
            numbers = format_count(layout.span, "stored number")
            return Status.UNREADABLE, f"repeats {numbers} to make {layout.count}"
        if identity is None or identity in self._seen:
            return None
        if layout.nbytes > self._left:
            return Status.UNREADABLE, (
                f"takes more memory, with the tensors before it, than the {self._limit} bytes "
                "that a file of this size may"
            )
        self._left -= layout.nbytes
        self._seen.add(identity)
        return None


def _describe_stored(archive: TorchArchive, name: str, tensor: Tensor, budget: _Budget) -> Weight:
    """Describe a tensor without data, which is read from its record later."""
    path, shape, dtype = archive.source.path, tuple(tensor.shape), tensor.dtype
    obstacle = find_obstacle(tensor)
    if obstacle is None and archive.find_record(tensor) is None:
        obstacle = _NO_DATA
    if obstacle is not None:
        return build_unreadable(path, name, shape, dtype, obstacle)
    record, layout = archive.find_record(tensor), describe_layout(tensor)
    identity = (str(path), record, layout) if layout.count else None  # nothing can be shared
    try:
        weight = _locate(archive, name, tensor)
    except CheckpointError as error:
        obstacle = (Status.UNREADABLE, str(error))
    else:
        obstacle = budget.check(layout, identity)
    if obstacle is not None:
        return build_unreadable(path, name, shape, dtype, obstacle)
    return replace(weight, identity=identity)


def _locate(archive: TorchArchive, name: str, tensor: Tensor) -> Weight:
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if isinstance(tensor, QuantisedTensor):
        load = build_dequantiser(archive, name, tensor)
        return Weight(name, shape, torch.float32, load, stored=tensor.scheme)
    load, load_rows = locate(archive, name, tensor)
    obstacle = SCALE_OBSTACLE if dtype == torch.float8_e8m0fnu else None
    return Weight(name, shape, dtype, load, obstacle=obstacle, load_rows=load_rows)


def _describe_loaded(source: FileSource, name: str, tensor: Tensor, budget: _Budget) -> Weight:
    """Describe a tensor whose data is in memory."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    obstacle = _NO_DATA if tensor.device.type == "meta" else find_obstacle(tensor)
    identity = None
    if obstacle is None:
        layout = describe_layout(tensor)
        identity = (str(source.path), tensor.data_ptr(), layout) if layout.count else None
        obstacle = budget.check(layout, identity)
    if obstacle is not None:
        return build_unreadable(source.path, name, shape, dtype, obstacle)
    if tensor.is_quantized:

        def load_quantised() -> Tensor:
            with convert_errors(source.path, _KIND):
                return tensor.dequantize()

        stored = str(dtype).removeprefix("torch.")
        return Weight(name, shape, torch.float32, load_quantised, identity, stored=stored)
    obstacle = SCALE_OBSTACLE if dtype == torch.float8_e8m0fnu else None
    return Weight(name, shape, dtype, tensor.detach, identity, obstacle=obstacle)


def find_obstacle(tensor: Tensor) -> Obstacle | None:
    """Return why a tensor can't be measured by its layout, type or class; None if it can."""
    is_nested = tensor.is_nested or isinstance(tensor, NestedTensor)
    if tensor.layout is not torch.strided or is_nested:
        return Status.UNREADABLE, f"not a dense tensor (layout {tensor.layout})"
    if isinstance(tensor, QuantisedTensor):
        known = tensor.scheme is not None
        return None if known else (Status.QUANTISED, "stored in a packed or unknown quantised type")
    if _PACKED.fullmatch(str(tensor.dtype)):
        return Status.QUANTISED, f"stored in the quantised type {tensor.dtype}"
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return Status.UNREADABLE, f"a tensor of the special type {type(tensor).__name__}"
    return None


def _check_storages(source: FileSource, selection: Selection) -> None:
    """Raise ``CheckpointError`` if a file has less data than its storages need.

    PyTorch leaves a storage whose data is not in the file as it found the memory.
    """
    sizes = {}
    for _, tensor in selection.tensors:
        if tensor.layout is torch.strided and tensor.device.type == "cpu":
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    needed = sum(sizes.values())
    if needed > source.size:
        raise CheckpointError(
            f"{format_path(source.path)}: its tensors need {needed} bytes, but the file has only "
            f"{source.size}; it is truncated or damaged."
        )
