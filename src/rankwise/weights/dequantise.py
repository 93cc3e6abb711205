"""Codes → numbers: unpacking, look-up tables, scales of blocks. Pure functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = 32
_CHUNK = 1 << 20  # codes that are looked up at a time: bounds the memory of their indices
# E2M1: a sign, two bits of exponent, one of mantissa.
_FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_VALUES = (*_FP4_MAGNITUDES, *(-value for value in _FP4_MAGNITUDES))
# E2M3: a sign, two bits of exponent, three of mantissa.
_FP6_MAGNITUDES = (
    *(m / 8 for m in range(8)),
    *((1 + m / 8) * 2**e for e in range(3) for m in range(8)),
)
FP6_VALUES = (*_FP6_MAGNITUDES, *(-value for value in _FP6_MAGNITUDES))
# Which place within a word of eight codes each of AWQ's columns has.
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def read_scale(scale: Tensor) -> Tensor:
    """Return a scale as float32; bytes are exponents with a bias of 127 (E8M0)."""
    if scale.dtype == torch.uint8:
        exponents = torch.exp2(torch.arange(-127, 129, dtype=torch.float64))
        exponents[255] = math.nan  # that is what 255 stands for
        return look_up(exponents, scale)
    return scale.to(torch.float32)


def look_up(table: Tensor, codes: Tensor) -> Tensor:
    """Return `table[codes]` in float32, for codes of one byte; rows of a table are appended."""
    table = table.to(codes.device, torch.float32)
    flat = codes.reshape(-1)
    values = torch.empty((flat.numel(), *table.shape[1:]), device=codes.device)
    for start in range(0, flat.numel(), _CHUNK):
        piece = flat[start : start + _CHUNK].to(torch.int32)
        values[start : start + _CHUNK] = table.index_select(0, piece)
    return values.reshape(*codes.shape, *table.shape[1:])


def look_up_pairs(table: Tensor, codes: Tensor, *, high_first: bool = False) -> Tensor:
    """Look up both 4-bit halves of every byte; the last axis becomes twice as long."""
    halves = torch.arange(256, device=table.device)
    low, high = table[halves & 15], table[halves >> 4]
    pairs = torch.stack((high, low) if high_first else (low, high), dim=-1)
    return look_up(pairs, codes.view(torch.uint8)).flatten(-2)


def look_up_fp6(codes: Tensor) -> Tensor:
    """Look up 6-bit floats, of which four fill three bytes from the lowest bit on."""
    triples = torch.unflatten(codes, -1, (-1, 3))
    values = torch.empty((*triples.shape[:-1], 4), device=codes.device)
    table = torch.tensor(FP6_VALUES)
    for place in range(4):
        byte, shift = divmod(6 * place, 8)
        code = triples[..., byte].to(torch.int32) >> shift
        if shift > 2:
            code |= triples[..., byte + 1].to(torch.int32) << (8 - shift)
        values[..., place] = look_up(table, (code & 63).to(torch.uint8))
    return values.flatten(-2)


def unpack_words(
    words: Tensor, bits: int, *, dense: bool = True, places: Sequence[int] | None = None
) -> Tensor:
    """Unpack unsigned codes from 32-bit words along the last axis as float32, lowest bits first.

    Args:
        words: int32 words.
        bits: How many bits a code has, 1 to 8.
        dense: Whether codes run on from one word to the next. If not, each word holds as many whole
            codes as fit, and its highest bits stay empty.
        places: Which place within its word each code has, where they are not in order.

    Returns:
        All codes that the words have room for; the caller cuts off what is beyond the end.
    """
    count, period = (_WORD, bits) if dense else (_WORD // bits, 1)
    if _WORD % bits == 0:
        count, period = _WORD // bits, 1
    if missing := -words.shape[-1] % period:
        words = torch.nn.functional.pad(words, (0, missing))
    words = torch.unflatten(words, -1, (-1, period))
    values = torch.empty((*words.shape[:-1], count), device=words.device)
    for target, place in enumerate(places or range(count)):
        word, shift = divmod(place * bits, _WORD)
        here = min(bits, _WORD - shift)
        code = (words[..., word] >> shift) & ((1 << here) - 1)
        if here < bits:
            code |= (words[..., word + 1] & ((1 << (bits - here)) - 1)) << here
        values[..., target] = code
    return values.flatten(-2)


def count_words(codes: int, bits: int, *, dense: bool = True) -> int:
    """Return how many words hold so many codes."""
    return -(-codes * bits // _WORD) if dense else -(-codes // (_WORD // bits))


def scale_blocks(
    values: Tensor, scale: Tensor, blocks: Sequence[int], zero: Tensor | None = None
) -> Tensor:
    """Compute (values − zero) · scale in place, for a scale and a zero point of every block.

    The last block along an axis may be smaller.
    """
    for axis, block in enumerate(blocks):
        whole = values.shape[axis] // block
        if 0 < whole < scale.shape[axis]:
            cut = whole * block
            for start, end, first, last in (
                (0, cut, 0, whole),
                (cut, values.shape[axis], whole, scale.shape[axis]),
            ):
                scale_blocks(
                    values.narrow(axis, start, end - start),
                    scale.narrow(axis, first, last - first),
                    blocks,
                    None if zero is None else zero.narrow(axis, first, last - first),
                )
            return values
    grid = values
    for axis in reversed(range(values.ndim)):
        grid = torch.unflatten(grid, axis, (scale.shape[axis], -1))
    spread = tuple(i for side in scale.shape for i in (side, 1))
    if zero is not None:
        grid.sub_(zero.reshape(spread))
    grid.mul_(scale.reshape(spread))
    return values


def scale_groups(values: Tensor, scale: Tensor, zero: Tensor | None, groups: Tensor) -> Tensor:
    """Compute (values − zero) · scale in place, where `groups` has each column's group.

    Args:
        values: [rows, columns].
        scale: [rows, groups].
        zero: [rows, groups], or None.
        groups: [columns], integers.
    """
    lowest, highest = int(groups.min()), int(groups.max())
    if lowest < 0 or highest >= scale.shape[-1]:
        raise ValueError(
            f"Expected groups from 0 to {scale.shape[-1] - 1} in g_idx, "
            f"got {lowest} to {highest}: the file is damaged."
        )
    groups = groups.to(torch.int64)
    step = max(1, _CHUNK // max(1, values.shape[-1]))
    for start in range(0, values.shape[0], step):
        rows = slice(start, start + step)
        if zero is not None:
            values[rows].sub_(zero[rows][:, groups])
        values[rows].mul_(scale[rows][:, groups])
    return values


def find_blocks(
    shape: Sequence[int], scale: Sequence[int], hint: Sequence[int] | None = None
) -> tuple[int, ...] | None:
    """Return the size of the blocks that have one scale each; None if the shapes don't fit.

    `scale` has as many axes as `shape`. `hint` has the sizes that the configuration states, for the
    last axes.
    """
    hints = [0] * (len(shape) - len(hint or ())) + list(hint or ())
    if len(scale) != len(shape) or len(hints) != len(shape):
        return None
    blocks = [_find_block(*sides) for sides in zip(shape, scale, hints, strict=True)]
    return None if 0 in blocks else tuple(blocks)


def _find_block(side: int, count: int, hint: int) -> int:
    """Return the size of `count` blocks along an axis; 0 if there is none."""
    if count in (1, side):
        return side // max(count, 1)
    if hint > 0 and -(-side // hint) == count:
        return hint
    exact = side // count if count and side % count == 0 else 0
    # 128 is what formats with a smaller last block use; other sizes are powers of two.
    if exact & (exact - 1) == 0 and exact:
        return exact
    return 128 if -(-side // 128) == count else exact
