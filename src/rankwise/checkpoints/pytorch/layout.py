"""How a PyTorch tensor lies in its storage, and how to read it from the record of that storage."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankwise.checkpoints.pytorch.archive import TorchArchive
from rankwise.checkpoints.pytorch.stand_ins import QuantisedTensor
from rankwise.checkpoints.source import StoredTensor
from rankwise.errors import CheckpointError

Load = Callable[[], Tensor]
LoadRows = Callable[[int, int], Tensor]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which numbers of a storage a tensor consists of."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_contiguous: bool
    is_conjugate: bool
    is_negative: bool

    @property
    def span(self) -> int:
        """How many stored numbers lie between the first and the last, with both."""
        if 0 in self.shape:
            return 0
        pairs = zip(self.shape, self.stride, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in pairs)

    @property
    def start(self) -> int:
        """The bytes in the storage before the first number."""
        return self.offset * self.dtype.itemsize if self.span else 0

    @property
    def end(self) -> int:
        """The bytes in the storage up to the last number, with it."""
        return self.start + self.span * self.dtype.itemsize

    @property
    def count(self) -> int:
        """How many numbers the tensor has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How much memory the tensor takes if each of its numbers has a place of its own."""
        return self.count * self.dtype.itemsize

    def view(self, numbers: Tensor) -> Tensor:
        """Return the tensor, given the numbers that it spans."""
        tensor = numbers.as_strided(self.shape, self.stride)
        tensor = tensor.conj() if self.is_conjugate else tensor
        return tensor.neg() if self.is_negative else tensor


def describe_layout(tensor: Tensor) -> Layout:
    """Return how a dense tensor lies in its storage."""
    return Layout(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.dtype,
        tensor.is_contiguous(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def locate(archive: TorchArchive, name: str, tensor: Tensor) -> tuple[Load, LoadRows | None]:
    """Return how to read a tensor of an archive, and some of its rows where they lie together.

    Raises:
        CheckpointError: If its record is missing or too short; the text knows no path.
    """
    record, layout = archive.find_record(tensor), describe_layout(tensor)
    if record is None:
        raise CheckpointError("saved without its data (device 'meta')")
    needed = max(tensor.untyped_storage().nbytes(), layout.end)
    if record.size < needed:
        raise CheckpointError(f"truncated: {record.size} of its {needed} bytes are in the file")
    start, order = record.start + layout.start, archive.byteorder
    if layout.is_contiguous and not layout.is_conjugate and not layout.is_negative:
        stored = StoredTensor(archive.source, name, start, layout.shape, layout.dtype, order)
        return stored.load, stored.load_rows if layout.shape else None
    span = StoredTensor(archive.source, name, start, (layout.span,), layout.dtype, order)
    return lambda: layout.view(span.load()), None


def build_dequantiser(archive: TorchArchive, name: str, codes: QuantisedTensor) -> Load:
    """Return how to read a quantised tensor: scale · (code − zero point)."""
    load, _ = locate(archive, name, codes)
    load_scale, load_zero_point = (
        _build_parameter(archive, name, value) for value in (codes.scale, codes.zero_point)
    )
    axis, dimensions = codes.axis, codes.dim()

    def dequantise() -> Tensor:
        scale, zero_point = load_scale(), load_zero_point()
        if axis is not None:
            shape = [-1 if place == axis else 1 for place in range(dimensions)]
            scale, zero_point = scale.view(shape), zero_point.view(shape)
        return (load().to(torch.float32) - zero_point) * scale

    return dequantise


def _build_parameter(archive: TorchArchive, name: str, value: float | Tensor) -> Load:
    """Return how to get a scale or zero point, which may lie in the file like any other tensor."""
    if isinstance(value, Tensor) and value.device.type == "meta":
        load, _ = locate(archive, name, value)
        return lambda: load().to(torch.float32)
    numbers = torch.as_tensor(value, dtype=torch.float32, device="cpu")
    return lambda: numbers
