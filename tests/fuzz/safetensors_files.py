"""safetensors files: written whole, or with a header that lies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from tests.fuzz.tensors import Stored
from tests.fuzz.values import (
    damage_bytes,
    draw_integer,
    draw_json,
    draw_text,
    encode_json,
    mutate_json,
)

_DTYPES = ("F4", "F8_E8M0", "F6_E2M3", "f32", "F128", "", "\x1b", "F32", "BOOL", "U64", "C64")


def encode_safetensors(tensors: Sequence[Stored], metadata: object = None) -> bytes:
    """Return a valid file."""
    header, data = _describe(tensors)
    if metadata is not None:
        header = {"__metadata__": metadata, **header}
    return _join(encode_json(header), data)


def encode_broken_safetensors(tensors: Sequence[Stored], rng: Random) -> bytes:
    """Return a file whose header, length or data is wrong, mostly."""
    header, data = _describe(tensors)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _mutate_header(header, tensors, rng)
    content = _join(encode_json(header, rng), data)
    match rng.randrange(10):
        case 0:
            length = draw_integer(rng) % 2**64
            return length.to_bytes(8, "little") + content[8:]
        case 1:
            return damage_bytes(content, rng)
        case 2:
            return content + rng.randbytes(rng.randrange(20))
        case 3:
            return content[: -rng.randrange(1, 20)]
    return content


def draw_metadata(tensors: Sequence[Stored], rng: Random) -> object:
    """Draw what a header says beside the tensors: the usual, the lab's order, or anything."""
    names = [tensor.name for tensor in tensors]
    rng.shuffle(names)
    return rng.choice(
        (
            None,
            None,
            {"format": "pt"},
            {"order": json.dumps(names)},
            {"order": json.dumps(names[1:])},
            {"order": rng.choice(("[" * 5000, "null", '["a", 1]', ""))},
            {draw_text(rng): draw_text(rng)},
        )
    )


def _describe(tensors: Sequence[Stored]) -> tuple[dict[str, object], bytes]:
    header: dict[str, object] = {}
    end = 0
    for tensor in tensors:
        start, end = end, end + len(tensor.data)
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    return header, b"".join(tensor.data for tensor in tensors)


def _join(header: bytes, data: bytes) -> bytes:
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data


def _mutate_header(header: dict[str, object], tensors: Sequence[Stored], rng: Random) -> None:
    entry = header.get(rng.choice(tensors).name) if tensors else None
    match rng.randrange(8):
        case 0 if isinstance(entry, dict):
            entry["dtype"] = rng.choice(_DTYPES)
        case 1 if isinstance(entry, dict):
            entry["shape"] = [draw_integer(rng) for _ in range(rng.randrange(5))]
        case 2 if isinstance(entry, dict):
            entry["data_offsets"] = [draw_integer(rng), draw_integer(rng)]
        case 3 if isinstance(entry, dict):
            entry[draw_text(rng)] = draw_json(rng)  # a key that nobody knows
        case 4:
            header["__metadata__"] = draw_json(rng)
        case 5:
            header[draw_text(rng)] = {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}
        case _:
            mutate_json(header, rng)
