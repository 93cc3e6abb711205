"""The types of GGUF's tensors: how many bytes they take, and how quantised blocks become numbers.

Quantised types store blocks of 32 to 256 numbers along a row, each with its own scales.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rankwise.checkpoints.safety import convert_errors
from rankwise.checkpoints.source import check_rows
from rankwise.errors import MissingExtraError

if TYPE_CHECKING:
    from rankwise.checkpoints.source import ByteOrder, FileSource

# Types of one number each, by the names that the package `gguf` gives them.
PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
# Where a block has numbers of 16 bits, whose bytes a big-endian file has the other way round; what
# else is in these blocks are single bytes. The other types mix both.
_HALVES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "IQ4_NL": (0,),
    "MXFP4": (),
    "NVFP4": (),
}
_CHUNK = 2**20  # numbers that are computed at once


@dataclass(frozen=True, slots=True)
class BlockType:
    """A stored type: so many numbers in so many bytes."""

    name: str
    numbers: int
    nbytes: int
    code: int
    can_dequantise: bool

    def count_bytes(self, shape: tuple[int, ...]) -> int | None:
        """Return the size of a tensor; None if its rows don't consist of whole blocks."""
        if (shape[-1] if shape else 1) % self.numbers:
            return None
        return math.prod(shape) // self.numbers * self.nbytes

    def find_obstacle(self, byteorder: ByteOrder) -> str:
        """Return why its numbers can't be computed, "" if they can."""
        if not self.can_dequantise:
            return f"stored as {self.name}, which the package gguf can't turn into numbers"
        if byteorder == "big" and self.name not in _HALVES:
            return f"stored as {self.name} in a big-endian file; convert it to little-endian"
        return ""


@lru_cache(maxsize=64)
def find_type(code: int) -> BlockType | None:
    """Return the type of a code; None if the installed package `gguf` does not know it."""
    try:
        from gguf.constants import (  # noqa: PLC0415 - an optional package
            GGML_QUANT_SIZES,
            GGMLQuantizationType,
        )
        from gguf.quants import dequantize  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf", "Reading .gguf files") from error
    try:
        kind = GGMLQuantizationType(code)
        numbers, nbytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        return None
    can_dequantise = kind.name in PLAIN
    if not can_dequantise:
        try:  # some types are listed, but only for their sizes
            dequantize(np.zeros((1, nbytes), np.uint8), kind)
        except NotImplementedError:
            pass
        else:
            can_dequantise = True
    return BlockType(kind.name, numbers, nbytes, code, can_dequantise)


@dataclass(frozen=True, slots=True)
class QuantisedTensor:
    """Where the blocks of a tensor lie in a file, row after row, and how to read them."""

    source: FileSource
    name: str
    start: int
    shape: tuple[int, ...]
    type: BlockType
    byteorder: ByteOrder

    def load(self) -> Tensor:
        """Read the whole tensor as float32."""
        return self._read(self.start, self.shape)

    def load_rows(self, start: int, count: int) -> Tensor:
        """Read some rows of the first axis alone, as float32."""
        check_rows(self.name, self.shape, start, count)
        if len(self.shape) == 1:  # a row is less than a block
            return self.load()[start : start + count]
        row = math.prod(self.shape[1:]) // self.type.numbers * self.type.nbytes
        return self._read(self.start + start * row, (count, *self.shape[1:]))

    def _read(self, start: int, shape: tuple[int, ...]) -> Tensor:
        blocks = math.prod(shape) // self.type.numbers
        with convert_errors(self.source.path, "a GGUF file"):
            data = self.source.read_tensor(start, blocks * self.type.nbytes).numpy()
            stored = data.reshape(blocks, self.type.nbytes)
            if self.byteorder == "big":
                for place in _HALVES[self.type.name]:
                    stored[:, place : place + 2] = stored[:, [place + 1, place]]
            return _dequantise(stored, self.type).reshape(shape)


def _dequantise(stored: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], kind: BlockType) -> Tensor:
    """Return the numbers of blocks; some at a time, as what is computed on the way is larger."""
    from gguf.constants import GGMLQuantizationType  # noqa: PLC0415 - an optional package
    from gguf.quants import dequantize  # noqa: PLC0415

    result = np.empty((len(stored), kind.numbers), np.float32)
    step = max(_CHUNK // kind.numbers, 1)
    with np.errstate(all="ignore"):  # a damaged scale is infinite or no number, as the result shows
        for first in range(0, len(stored), step):
            some = stored[first : first + step]
            result[first : first + step] = dequantize(some, GGMLQuantizationType(kind.code))
    return torch.from_numpy(result)
