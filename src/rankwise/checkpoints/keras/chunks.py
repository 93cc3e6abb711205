"""Datasets of HDF5 that are stored in chunks, which may be compressed.

Chunks are read and unpacked here, not by the HDF5 library: it would load shared libraries for
filters that it does not know, and unpack a chunk into whatever its bytes give.
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rankwise._text import quote
from rankwise.checkpoints.safety import convert_errors, format_path
from rankwise.checkpoints.source import ByteOrder, FileSource, allocate, decode
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEFLATE, _SHUFFLE, _FLETCHER, _LZF = 1, 2, 3, 32000
FILTERS = (_DEFLATE, _SHUFFLE, _FLETCHER, _LZF)
_CHECKSUM = 4  # bytes after a chunk
_MAX_GROWTH = 16 + 2**-4  # deflate and LZF may also lengthen what they can't shorten
_LITERALS = 32  # control bytes of LZF below this count literal bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a chunk begins in its dataset, and its bytes in the file."""

    offset: tuple[int, ...]
    mask: int  # bit i: filter i was left out
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ChunkedTensor:
    """All chunks of a dataset, and how to read them."""

    source: FileSource
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    byteorder: ByteOrder
    chunk_shape: tuple[int, ...]
    filters: tuple[int, ...]  # in the order in which they were applied
    chunks: tuple[Chunk, ...]

    def load(self) -> Tensor:
        """Read and unpack all chunks, one after the other."""
        width = self.dtype.itemsize
        with convert_errors(self.source.path, "an HDF5 file"):
            data = allocate(math.prod(self.shape) * width)
            whole = data.numpy().reshape(*self.shape, width)
            with self.source.open() as file:
                for chunk in self.chunks:
                    content = self._unpack(chunk, file.read(chunk.start, chunk.size))
                    block = np.frombuffer(content, np.uint8).reshape(*self.chunk_shape, width)
                    sides = [
                        min(step, side - first)  # the last chunks reach beyond the dataset
                        for first, step, side in zip(
                            chunk.offset, self.chunk_shape, self.shape, strict=True
                        )
                    ]
                    place = zip(chunk.offset, sides, strict=True)
                    target = tuple(slice(first, first + side) for first, side in place)
                    whole[target] = block[tuple(slice(side) for side in sides)]
            return decode(data, self.dtype, self.byteorder).reshape(self.shape)

    def _unpack(self, chunk: Chunk, content: bytes) -> bytes:
        size = math.prod(self.chunk_shape) * self.dtype.itemsize
        limit = int(size * _MAX_GROWTH) + 1024
        for place in reversed(range(len(self.filters))):
            if not chunk.mask >> place & 1:
                content = _undo(self.filters[place], content, limit, self.dtype.itemsize)
        if len(content) != size:
            raise CheckpointError(
                f"{format_path(self.source.path)}: a chunk of {quote(self.name)} has "
                f"{len(content)} bytes instead of {size}; it is damaged."
            )
        return content


def list_offsets(shape: Sequence[int], chunk_shape: Sequence[int]) -> set[tuple[int, ...]]:
    """Return where the chunks of a dataset begin; their number must have been checked before."""
    sides = (range(0, side, step) for side, step in zip(shape, chunk_shape, strict=True))
    return set(itertools.product(*sides))


def _undo(code: int, content: bytes, limit: int, width: int) -> bytes:
    """Return what was there before a filter was applied, of at most `limit` bytes."""
    match code:
        case 1:  # deflate
            unpacker = zlib.decompressobj()
            result = unpacker.decompress(content, limit)
            if not unpacker.eof:
                raise ValueError("a compressed chunk is cut short, or larger than its dataset says")
            return result
        case 2:  # shuffle: first the first bytes of all numbers, then the second, …
            whole = len(content) // width * width
            planes = np.frombuffer(content[:whole], np.uint8).reshape(width, -1)
            return planes.T.tobytes() + content[whole:]
        case 3:
            return _check_fletcher(content)
    return _unpack_lzf(content, limit)


def _check_fletcher(content: bytes) -> bytes:
    """Return a chunk without its checksum (Fletcher-32), which must agree."""
    data, stored = content[:-_CHECKSUM], content[-_CHECKSUM:]
    words = np.frombuffer(data + bytes(len(data) % 2), ">u2").astype(np.uint64)
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % np.uint64(65535)
    sums = [int(words.sum()) % 65535, int((words * weights).sum()) % 65535]
    value = int.from_bytes(stored, "little")
    if len(stored) < _CHECKSUM or sums != [(value & 0xFFFF) % 65535, (value >> 16) % 65535]:
        raise ValueError("the checksum of a chunk (Fletcher-32) does not agree")
    return data


def _unpack_lzf(content: bytes, limit: int) -> bytes:
    result = bytearray()
    place = 0
    while place < len(content):
        control = content[place]
        place += 1
        if control < _LITERALS:
            result += content[place : place + control + 1]
            place += control + 1
        else:
            length = control >> 5
            if length == 7:
                length += content[place]
                place += 1
            start = len(result) - ((control & 31) << 8 | content[place]) - 1
            place += 1
            if start < 0:
                raise ValueError("a chunk compressed by LZF refers to bytes before its beginning")
            count = length + 2
            piece = result[start : start + count]
            result += (piece * (count // len(piece) + 1))[:count]  # it may repeat itself
        if len(result) > limit:
            raise ValueError("a chunk compressed by LZF is larger than its dataset says")
    return bytes(result)
