"""Small tensors as bytes, and changes that leave a file valid but its layout odd."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from tests.fuzz.values import draw_integer, draw_text

ITEM_SIZES = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F64": 8,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "U32": 4,
    "U64": 8,
    "C64": 8,
}
_MAX_NUMBERS = 4096  # more would only make the run slower
_VALUES = np.random.default_rng(0)
_NORMAL = _VALUES.normal(size=2 * _MAX_NUMBERS)
_CODES = _VALUES.integers(0, 256, 16 * _MAX_NUMBERS, dtype=np.uint8)
# Random numbers of every type, from which tensors take a piece.
_POOLS = {name: _CODES.tobytes() for name in ITEM_SIZES}
_POOLS |= {
    "F32": _NORMAL.astype("<f4").tobytes(),
    "F16": _NORMAL.astype("<f2").tobytes(),
    "F64": _NORMAL.astype("<f8").tobytes(),
    "BF16": (_NORMAL.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes(),
    "C64": _NORMAL.astype("<f4").tobytes() * 2,
    "I64": (_CODES % 100).astype("<i8").tobytes(),
    "BOOL": (_CODES & 1).tobytes(),
    "F8_E4M3": (_CODES & 0xF7).tobytes(),  # without NaN
    "F8_E5M2": (_CODES & 0xBB).tobytes(),
}
# Bit patterns: zero, NaN, infinity, the largest and the smallest number of float32, all bits.
_POISON = (
    b"\0\0\0\0",
    b"\0\0\xc0\x7f",
    b"\0\0\x80\x7f",
    b"\xff\xff\x7f\x7f",
    b"\1\0\0\0",
    b"\xff\xff\xff\xff",
    b"\0\0\x80\x3f",
)


@dataclass(frozen=True)
class Stored:
    """A tensor as a file holds it; its type is spelled as in safetensors."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def count(self) -> int:
        """How many numbers its shape has."""
        return math.prod(self.shape)


def make_tensor(rng: Random, name: str, dtype: str, *shape: int) -> Stored:
    """Make a tensor of random numbers; of a shape that is too large, an empty one."""
    count = math.prod(shape)
    if not all(0 <= side < 2**31 for side in shape) or count > _MAX_NUMBERS:
        shape, count = (0, *shape[1:3]), 0
    size = ITEM_SIZES[dtype]
    pool = _POOLS[dtype]
    start = rng.randrange(len(pool) // size - count) * size
    return Stored(name, dtype, tuple(shape), pool[start : start + count * size])


def _reshape(tensor: Stored, rng: Random) -> Stored:
    count, shape = tensor.count, list(tensor.shape)
    choices = [
        tuple(reversed(shape)),
        (count,),
        (1, *shape),
        (*shape, 1),
        (count, 1),
        tuple(rng.sample(shape, len(shape))),
    ]
    for part in (2, 3, 4, 8):
        if count and count % part == 0:
            choices += [(part, count // part), (count // part, part)]
    return replace(tensor, shape=rng.choice(choices))


def _resize(tensor: Stored, rng: Random) -> Stored:
    shape = list(tensor.shape)
    if not shape or rng.random() < 0.2:
        shape = [rng.randrange(5) for _ in range(rng.randrange(6))]
    else:
        place = rng.randrange(len(shape))
        side = shape[place]
        shape[place] = rng.choice((0, 1, max(side - 1, 0), side + 1, 2 * side, side // 2, 3))
    return make_tensor(rng, tensor.name, tensor.dtype, *shape)


def _retype(tensor: Stored, rng: Random) -> Stored:
    return make_tensor(rng, tensor.name, rng.choice(list(ITEM_SIZES)), *tensor.shape)


def _poison(tensor: Stored, rng: Random) -> Stored:
    size = len(tensor.data)
    pattern = rng.choice(_POISON)
    if rng.random() < 0.5 or size < 8:
        return replace(tensor, data=(pattern * (size // 4 + 1))[:size])
    start = rng.randrange(size // 4) * 4
    return replace(tensor, data=(tensor.data[:start] + pattern + tensor.data[start + 4 :])[:size])


def _rename(tensor: Stored, rng: Random) -> Stored:
    name = draw_text(rng)
    if rng.random() < 0.5:
        name = rng.choice((f"{name}.{tensor.name}", tensor.name.replace(".", "..", 1), name))
    return replace(tensor, name=name)


_CHANGES = (_reshape, _resize, _resize, _retype, _poison, _poison, _rename)


def mutate_tensors(tensors: Sequence[Stored], rng: Random) -> list[Stored]:
    """Change one tensor, or which tensors there are; the file can still be written."""
    result = list(tensors)
    if not result:
        return [make_tensor(rng, draw_text(rng), "F32", 3, 4)]
    place, other = rng.randrange(len(result)), rng.randrange(len(result))
    match rng.randrange(12):
        case 0 if len(result) > 1:
            del result[place]
        case 1:
            result[place], result[other] = (
                replace(result[place], name=result[other].name),
                replace(result[other], name=result[place].name),
            )
        case 2:
            result.append(replace(result[place], name=draw_text(rng)))
        case 3:
            side = abs(draw_integer(rng)) % 50
            result.insert(place, make_tensor(rng, draw_text(rng), "F16", side, 3))
        case _:
            result[place] = rng.choice(_CHANGES)(result[place], rng)
    return remove_repeated_names(result)


def remove_repeated_names(tensors: Sequence[Stored]) -> list[Stored]:
    """Return the last tensor of every name."""
    return list({tensor.name: tensor for tensor in tensors}.values())
