"""Folders of ``torch.distributed.checkpoint`` → named tensors, put together from their pieces.

Opening reads the metadata, and looks at the sizes of the files. A tensor's pieces are read when it
is loaded, each as the small PyTorch archive that it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise._text import format_count, quote
from rankwise.checkpoints.distributed.metadata import Metadata, SplitTensor, read_metadata
from rankwise.checkpoints.distributed.pieces import Piece
from rankwise.checkpoints.nested import select_weights
from rankwise.checkpoints.pytorch.archive import read_archive
from rankwise.checkpoints.pytorch.layout import Load, LoadRows, locate
from rankwise.checkpoints.pytorch.reader import SCALE_OBSTACLE, find_obstacle
from rankwise.checkpoints.safety import (
    build_unreadable,
    convert_errors,
    format_path,
    is_present,
    list_some,
    safe_join,
)
from rankwise.checkpoints.source import (
    FileSource,
    allocate,
    check_rows,
    open_source,
    take_range,
)
from rankwise.errors import CheckpointError
from rankwise.weights.tensor import Status, Weight, Weights

if TYPE_CHECKING:
    from pathlib import Path

METADATA = ".metadata"
_KIND = "a distributed checkpoint"
_HEAD = 9  # bytes of a safetensors file: the length of its header, and a brace


def read_distributed(folder: Path, key: str | None) -> Weights:
    """Open a folder of ``torch.distributed.checkpoint``."""
    path = safe_join(folder, METADATA)
    source = open_source(path)
    if source.read(0, min(1, source.size)) == b"{":
        raise CheckpointError(
            f"{format_path(path)}: JSON, where the metadata of a PyTorch distributed checkpoint "
            "was expected; give the path of a file of weights."
        )
    metadata = read_metadata(source)
    tree, tensors = _build_tree(path, metadata)
    with convert_errors(path, _KIND):
        try:
            selection = select_weights(tree, key)
        except CheckpointError as error:  # knows no path
            raise CheckpointError(f"{format_path(folder)}: {error}") from error
    chosen = [(name, tensors[id(tensor)], tensor) for name, tensor in selection.tensors]
    files = _open_files(folder, [item for _, item, _ in chosen])
    _refuse_other_formats(folder, files, [item for _, item, _ in chosen])
    return Weights(
        format_path(folder),
        tuple(_describe(path, name, item, tensor, files) for name, item, tensor in chosen),
        (*selection.notes, *_build_notes(metadata, files)),
    )


def _build_tree(path: Path, metadata: Metadata) -> tuple[object, dict[int, SplitTensor]]:
    """Return the nested dictionaries that were saved, and what each tensor without data is."""
    tree: dict[object, object] = {}
    tensors = {}
    for item in metadata.tensors:
        *route, last = metadata.routes.get(item.name, (item.name,))
        node: object = tree
        for key in route:
            node = node.setdefault(key, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last in node:
            raise CheckpointError(
                f"{format_path(path)}: two of its items are in one place ({quote(item.name)}); "
                "damaged or malicious."
            )
        tensor = _make_empty(item)
        node[last] = tensor
        tensors[id(tensor)] = item
    return tree, tensors


def _make_empty(item: SplitTensor) -> Tensor:
    """Return a tensor without data; its type may be one that no plain tensor has."""
    try:
        return torch.empty(item.shape, dtype=item.dtype, device="meta")
    except RuntimeError:
        return torch.empty(item.shape, dtype=torch.uint8, device="meta")


def _open_files(folder: Path, items: Iterable[SplitTensor]) -> dict[str, FileSource]:
    """Return the files with the pieces, each long enough and none with two pieces in one place."""
    pieces: dict[str, list[Piece]] = {}
    for item in items:
        for piece in item.pieces:
            pieces.setdefault(piece.file, []).append(piece)
    paths = {name: safe_join(folder, name) for name in sorted(pieces)}
    missing = [name for name, path in paths.items() if not is_present(path)]
    if missing:
        raise CheckpointError(
            f"{format_path(folder)}: files of this distributed checkpoint are missing "
            f"({list_some(map(quote, missing))}); download or copy the whole folder."
        )
    files = {name: open_source(path) for name, path in paths.items()}
    for name, source in files.items():
        _check_places(source, pieces[name])
    return files


def _check_places(source: FileSource, pieces: list[Piece]) -> None:
    end = 0
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if piece.start + piece.length > source.size:
            raise CheckpointError(
                f"{format_path(source.path)}: has {source.size} bytes, but a piece of a tensor "
                f"ends at {piece.start + piece.length}; it is truncated or damaged."
            )
        if piece.start < end and not _is_safetensors(source):
            # How a small file could be measured as a huge one.
            raise CheckpointError(
                f"{format_path(source.path)}: its pieces of tensors overlap; damaged or malicious."
            )
        end = piece.start + piece.length


def _is_safetensors(source: FileSource) -> bool:
    head = source.read(0, min(_HEAD, source.size))
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") <= source.size - 8


def _refuse_other_formats(
    folder: Path, files: Mapping[str, FileSource], items: Iterable[SplitTensor]
) -> None:
    transforms = {text for item in items for piece in item.pieces for text in piece.transforms}
    if transforms:
        raise CheckpointError(
            f"{format_path(folder)}: its pieces are transformed by "
            f"{list_some(map(quote, sorted(transforms)))}, which isn't supported; save it without."
        )
    first = next(iter(files.values()), None)
    if first is not None and _is_safetensors(first):
        raise CheckpointError(
            f"{format_path(first.path)}: stored as safetensors inside a distributed checkpoint, "
            "which isn't supported; use PyTorch's HuggingFaceStorageWriter."
        )


def _build_notes(metadata: Metadata, files: Mapping[str, FileSource]) -> Iterator[str]:
    yield f"put together from {format_count(len(files), 'file')} of a distributed checkpoint"
    if metadata.others:
        yield f"{format_count(metadata.others, 'item')} without tensors left out, not unpickled"


def _describe(
    path: Path, name: str, item: SplitTensor, tensor: Tensor, files: Mapping[str, FileSource]
) -> Weight:
    obstacle = (Status.UNREADABLE, item.problem) if item.problem else find_obstacle(tensor)
    if obstacle is None and tensor.dtype != item.dtype:
        obstacle = (Status.QUANTISED, f"stored in the quantised type {item.dtype}")
    if obstacle is not None:
        return build_unreadable(path, name, item.shape, item.dtype, obstacle)
    whole = _Whole(path, name, item, files)
    obstacle = SCALE_OBSTACLE if item.dtype == torch.float8_e8m0fnu else None
    rows = whole.load_rows if item.shape else None
    return Weight(name, item.shape, item.dtype, whole.load, obstacle=obstacle, load_rows=rows)


@dataclass(frozen=True, slots=True)
class _Whole:
    """A tensor of a distributed checkpoint, put together from its pieces when it is loaded."""

    path: Path  # of the metadata
    name: str
    item: SplitTensor
    files: Mapping[str, FileSource]

    def load(self) -> Tensor:
        """Read the whole tensor."""
        if len(self.item.pieces) == 1:  # also a single number, which has no rows
            load, _ = self._locate(self.item.pieces[0])
            return load()
        return self.load_rows(0, self.item.shape[0])

    def load_rows(self, start: int, count: int) -> Tensor:
        """Read some rows of the first axis, from the pieces that have some of them."""
        check_rows(self.name, self.item.shape, start, count)
        shape = (count, *self.item.shape[1:])
        result = self._allocate(shape)
        for piece in self.item.pieces:
            first = max(start, piece.offsets[0])
            rows = min(start + count, piece.offsets[0] + piece.sizes[0]) - first
            if rows > 0:
                part = self._load_piece_rows(piece, first - piece.offsets[0], rows)
                places = [slice(first - start, first - start + rows)] + [
                    slice(offset, offset + size)
                    for offset, size in zip(piece.offsets[1:], piece.sizes[1:], strict=True)
                ]
                result[tuple(places)] = part
        return result

    def _allocate(self, shape: tuple[int, ...]) -> Tensor:
        dtype = self.item.dtype
        with convert_errors(self.path, _KIND):
            return allocate(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def _load_piece_rows(self, piece: Piece, start: int, count: int) -> Tensor:
        load, load_rows = self._locate(piece)
        if load_rows is not None:
            return load_rows(start, count)
        return load().narrow(0, start, count)

    def _locate(self, piece: Piece) -> tuple[Load, LoadRows | None]:
        """Return how to read a piece; its archive must contain it and nothing else."""
        file = self.files[piece.file]
        archive = read_archive(take_range(file, piece.start, piece.length))
        tensor, where = archive.tree, f"{format_path(file.path)}: a piece of {quote(self.name)}"
        if not isinstance(tensor, Tensor) or find_obstacle(tensor) is not None:
            raise CheckpointError(f"{where} is not a plain tensor.")
        if tuple(tensor.shape) != piece.sizes or tensor.dtype != self.item.dtype:
            raise CheckpointError(
                f"{where} has the shape {tuple(tensor.shape)} and the type {tensor.dtype}, the "
                f"metadata says {piece.sizes} and {self.item.dtype}; damaged."
            )
        try:
            return locate(archive, self.name, tensor)
        except CheckpointError as error:  # knows no path
            raise CheckpointError(f"{where}: {error}.") from error
