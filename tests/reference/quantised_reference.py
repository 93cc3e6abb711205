"""Slow dequantisers in plain Python, one number at a time, from the formats' definitions.

Integers are read bit by bit from the words as one long string of bits, so that nothing is shared
with the library's way of shifting and masking.
"""

from __future__ import annotations

E2M1 = {0: 0.0, 1: 0.5, 2: 1.0, 3: 1.5, 4: 2.0, 5: 3.0, 6: 4.0, 7: 6.0}


def bits_of(words: list[int], width: int) -> list[int]:
    """All bits of some words, the lowest of the first word first."""
    return [(word >> place) & 1 for word in words for place in range(width)]


def codes_of(bits: list[int], size: int) -> list[int]:
    """Numbers of `size` bits each, the lowest bit first."""
    starts = range(0, len(bits) - size + 1, size)
    return [sum(bit << k for k, bit in enumerate(bits[start : start + size])) for start in starts]


def pack_words(codes: list[int], size: int) -> list[int]:
    """Signed 32-bit words that hold codes of `size` bits without a gap."""
    bits = [(code >> k) & 1 for code in codes for k in range(size)]
    bits += [0] * (-len(bits) % 32)
    words = [
        sum(bit << k for k, bit in enumerate(bits[i : i + 32])) for i in range(0, len(bits), 32)
    ]
    return [word - 2**32 if word >= 2**31 else word for word in words]


def dequantise_gptq(qweight, qzeros, scales, g_idx, *, size, stored_minus_one):
    """Return [in][out]: scale · (code − zero point), with each input's own group."""
    inputs, outputs = len(g_idx), len(scales[0])
    columns = [
        codes_of(bits_of([row[o] for row in qweight], 32), size)[:inputs] for o in range(outputs)
    ]
    zeros = [codes_of(bits_of(row, 32), size)[:outputs] for row in qzeros]
    return [
        [
            scales[g_idx[i]][o]
            * (columns[o][i] - (zeros[g_idx[i]][o] + stored_minus_one) % 2**size)
            for o in range(outputs)
        ]
        for i in range(inputs)
    ]


def unpack_awq(words: list[int]) -> list[int]:
    """Eight codes of a word lie in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    result = []
    for word in words:
        nibbles = codes_of(bits_of([word], 32), 4)
        by_column = {column: nibbles[k] for k, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7))}
        result += [by_column[column] for column in range(8)]
    return result


def dequantise_awq(qweight, qzeros, scales, group):
    """Return [in][out]: scale · (code − zero point)."""
    rows = []
    for i, words in enumerate(qweight):
        codes, zeros = unpack_awq(words), unpack_awq(qzeros[i // group])
        scale = scales[i // group]
        rows.append([scale[o] * (codes[o] - zeros[o]) for o in range(len(codes))])
    return rows


def read_e2m1(code: int) -> float:
    """A 4-bit float: a sign, two bits of exponent with bias 1, one of mantissa."""
    return -E2M1[code - 8] if code >= 8 else E2M1[code]


def dequantise_mxfp4(row: list[int], exponents: list[int]) -> list[float]:
    """A row of bytes, low half first; 32 numbers share the power of two 2^(exponent − 127)."""
    codes = codes_of(bits_of(row, 8), 4)
    return [read_e2m1(code) * 2.0 ** (exponents[i // 32] - 127) for i, code in enumerate(codes)]


def dequantise_nvfp4(row: list[int], scales: list[float], factor: float) -> list[float]:
    """A row of bytes, low half first; 16 numbers share a scale, all numbers a factor."""
    codes = codes_of(bits_of(row, 8), 4)
    return [read_e2m1(code) * scales[i // 16] * factor for i, code in enumerate(codes)]
