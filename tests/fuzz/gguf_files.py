"""GGUF files: written whole, or with a header that lies."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

from tests.fuzz.tensors import Stored
from tests.fuzz.values import damage_bytes, draw_integer, draw_text

_CODES = {"F32": 0, "F16": 1, "BF16": 30, "F64": 28, "I8": 24, "I16": 25, "I32": 26, "I64": 27}
_BLOCKS = {2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144), 14: (256, 210), 16: (256, 66)}
_NAMES = ("blk.0.attn_q.weight", "blk.0.attn_qkv.weight", "blk.1.ffn_up_exps.weight", "token_embd")
_KEYS = (
    "general.alignment",
    "llama.attention.head_count",
    "llama.embedding_length",
    "split.count",
    "split.no",
)
_ALIGNMENT = 32


def encode_gguf(tensors: Sequence[Stored], rng: Random, *, broken: bool) -> bytes:
    """Return a file of plain and quantised tensors."""
    order = rng.choice("<<<>")
    rows = [(t.name, t.shape, _CODES[t.dtype], t.data) for t in tensors if t.dtype in _CODES]
    for name in rng.sample(_NAMES, rng.randrange(len(_NAMES))):
        code, (numbers, nbytes) = rng.choice(list(_BLOCKS.items()))
        shape = rng.choice(((4, numbers), (2, 3, numbers), (numbers,)))
        count = 1 if len(shape) == 1 else 4 if len(shape) == 2 else 6
        rows.append((name, shape, code, rng.randbytes(count * nbytes)))
    entries = [
        _encode_text("general.architecture", order) + struct.pack(f"{order}I", 8),
        _encode_text("llama", order),
    ]
    count = 1
    if broken or rng.random() < 0.3:
        for key in rng.sample(_KEYS, rng.randrange(1, 3)):
            entries.append(_encode_text(key, order) + _draw_value(rng, order))
            count += 1
    infos, data = [], b""
    for stored_name, shape, code, content in rows:
        name, sides, place, kind = stored_name, list(reversed(shape)), len(data), code
        if broken and rng.random() < 0.15:
            match rng.randrange(4):
                case 0:
                    kind = rng.randrange(45)
                case 1:
                    sides = [draw_integer(rng) % 2**64 for _ in range(rng.randrange(6))]
                case 2:
                    place = draw_integer(rng) % 2**64
                case _:
                    name = draw_text(rng)
        head = struct.pack(f"{order}I{len(sides)}Q", len(sides), *sides)
        infos.append(_encode_text(name, order) + head + struct.pack(f"{order}IQ", kind, place))
        data += content + bytes(-len(content) % _ALIGNMENT)
    counts = [len(rows), count]
    if broken and rng.random() < 0.1:
        counts[rng.randrange(2)] = draw_integer(rng) % 2**64
    version = rng.randrange(5) if broken and rng.random() < 0.05 else 3
    header = b"GGUF" + struct.pack(f"{order}IQQ", version, *counts) + b"".join(entries + infos)
    content = header + bytes(-len(header) % _ALIGNMENT) + data
    return damage_bytes(content, rng) if broken and rng.random() < 0.5 else content


def _encode_text(text: str, order: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return struct.pack(f"{order}Q", len(raw)) + raw


def _draw_value(rng: Random, order: str) -> bytes:
    number = draw_integer(rng) % 2**32
    match rng.randrange(4):
        case 0:
            return struct.pack(f"{order}I", 8) + _encode_text(draw_text(rng), order)
        case 1:
            return struct.pack(f"{order}IIQII", 9, 4, 2, number, number)
        case 2:
            return struct.pack(f"{order}IIQ", 9, rng.randrange(14), draw_integer(rng) % 2**64)
        case _:
            return struct.pack(f"{order}II", 4, number)
