"""Tensors that PyTorch can't rebuild without data: quantised and nested ones.

A pickle names the function that rebuilds each tensor. Where that function does not work on the
device "meta", the name is replaced by one of the same length, which stands for a function here.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, TypedStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_INTEGERS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


class QuantisedTensor(Tensor):
    """The codes of a quantised tensor, as integers without data.

    Attributes:
        scheme: The type of code, as in "qint8"; None where it is not known how to read it.
        scale: Of all codes, or of each channel.
        zero_point: The code that stands for 0.
        axis: Of the channels; None where all have one scale.
    """

    scheme: str | None = None
    scale: float | Tensor = 1.0
    zero_point: float | Tensor = 0
    axis: int | None = None


class NestedTensor(Tensor):
    """The buffer of a nested tensor."""


def _rebuild_quantised(
    storage: TypedStorage,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    parameters: tuple[object, ...],
    *_: object,
) -> Tensor:
    dtype = _INTEGERS.get(storage.dtype)
    codes = torch.empty(0, dtype=dtype or torch.uint8, device="meta")
    if dtype is None:  # several codes in a byte
        return codes.new_empty(size).as_subclass(QuantisedTensor)
    codes.set_(storage._untyped_storage, offset, size, stride)
    tensor = codes.as_subclass(QuantisedTensor)
    match parameters:
        case (torch.per_tensor_affine, int() | float() as scale, int() as zero_point):
            tensor.scale, tensor.zero_point = float(scale), zero_point
        case (torch.per_channel_affine, scales, zero_points, int() as axis):
            if not 0 <= axis < len(size):
                raise ValueError(f"expected an axis of {size}, got {axis}")
            count = size[axis]
            tensor.scale = _read_numbers(scales, count)
            tensor.zero_point = _read_numbers(zero_points, count)
            tensor.axis = axis
        case _:
            return tensor
    tensor.scheme = str(storage.dtype).removeprefix("torch.")
    return tensor


def _read_numbers(numbers: object, count: int) -> Tensor:
    tensor = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=torch.float64)
    if tensor.shape != (count,):
        raise ValueError(f"expected {count} scales and zero points, got {tuple(tensor.shape)}")
    return tensor


def _rebuild_nested(buffer: Tensor, *_: object) -> Tensor:
    return buffer.as_subclass(NestedTensor)


# The module and name in a pickle, the name to put in its place, what that name stands for.
_STAND_INS: tuple[tuple[bytes, bytes, Callable[..., Tensor]], ...] = (
    (
        b"ctorch._utils\n_rebuild_qtensor\n",
        b"ctorch._utils\n_rankwise_tensor\n",
        _rebuild_quantised,
    ),
    (
        b"ctorch._utils\n_rebuild_nested_tensor\n",
        b"ctorch._utils\n_rankwise_nested_tenso\n",
        _rebuild_nested,
    ),
)


def replace_globals(program: bytes) -> bytes:
    """Return a pickle that names the functions here."""
    for name, stand_in, _ in _STAND_INS:
        program = program.replace(name, stand_in)
    return program


@contextmanager
def stand_ins() -> Iterator[None]:
    """Let ``torch.load`` call the functions here."""
    allowed: list[Callable[..., object] | tuple[Callable[..., object], str]] = [
        (function, stand_in[1:-1].decode().replace("\n", "."))
        for _, stand_in, function in _STAND_INS
    ]
    with torch.serialization.safe_globals(allowed):
        yield
