"""Zip archives written field by field, so that each of them can lie."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.values import CANARY, OUTSIDE, damage_bytes, draw_integer

_LOCAL = ("<4s5H3L2H", "signature version flags method time date crc packed size name extra")
_CENTRAL = (
    "<4s6H3L5H2L",
    "signature made version flags method time date crc packed size name extra comment disk "
    "internal external offset",
)
_END = ("<4s4H2LH", "signature disk start here total length offset comment")
_NAMES = (b"", b"/", b"../" + CANARY.encode(), f"../{OUTSIDE}/secret.bin".encode(), b"\xff\xfe")


@dataclass
class Entry:
    """A file of an archive; the two headers may say something else than what is there."""

    name: bytes
    data: bytes
    deflate: bool = False
    local: dict[str, int] = field(default_factory=dict)
    central: dict[str, int] = field(default_factory=dict)


def encode_zip(entries: Sequence[Entry], end: dict[str, int] | None = None) -> bytes:
    """Return an archive with these entries."""
    body, directory = bytearray(), bytearray()
    for entry in entries:
        packed = _deflate(entry.data) if entry.deflate else entry.data
        fields = {
            "version": 20,
            "made": 20,
            "method": 8 if entry.deflate else 0,
            "crc": zlib.crc32(entry.data),
            "packed": len(packed),
            "size": len(entry.data),
            "name": len(entry.name),
            "offset": len(body),
        }
        body += _pack(_LOCAL, b"PK\3\4", {**fields, **entry.local}) + entry.name + packed
        directory += _pack(_CENTRAL, b"PK\1\2", {**fields, **entry.central}) + entry.name
    count = len(entries) % 2**16
    fields = {"here": count, "total": count, "length": len(directory), "offset": len(body)}
    return bytes(body + directory) + _pack(_END, b"PK\5\6", {**fields, **(end or {})})


def _deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def _pack(layout: tuple[str, str], signature: bytes, fields: dict[str, int]) -> bytes:
    form, names = layout
    widths = [4 if letter == "L" else 2 for letter in _spell_out(form)[1:]]
    values = [
        fields.get(name, 0) % 256**width
        for name, width in zip(names.split()[1:], widths, strict=True)
    ]
    return struct.pack(form, signature, *values)


def _spell_out(form: str) -> str:
    """Return a letter for every field: "<4s2HL" becomes "sHHL"."""
    letters, count = "", ""
    for char in form[1:]:
        if char.isdigit():
            count += char
            continue
        letters += char if char == "s" else char * int(count or 1)
        count = ""
    return letters


def break_zip(entries: list[Entry], rng: Random) -> bytes:
    """Return an archive with a few fields, entries or bytes that are wrong."""
    end: dict[str, int] = {}
    for _ in range(rng.choice((1, 1, 2))):
        entry = rng.choice(entries)
        match rng.randrange(10):
            case 0 | 1:
                name = rng.choice(("size", "packed", "offset", "method", "flags", "crc", "extra"))
                entry.central[name] = draw_integer(rng)
            case 2:
                name = rng.choice(("size", "packed", "method", "flags", "crc", "name", "extra"))
                entry.local[name] = draw_integer(rng)
            case 3:
                end[rng.choice(_END[1].split()[1:])] = draw_integer(rng)
            case 4:
                entry.data = damage_bytes(entry.data, rng)
            case 5:
                entries.append(Entry(rng.choice((entry.name, *_NAMES)), entry.data))
            case 6 if len(entries) > 1:
                entries.remove(entry)
            case 7:
                entry.deflate = not entry.deflate
            case 8:
                entry.name = rng.choice(_NAMES)
            case _:
                return damage_bytes(encode_zip(entries, end), rng)
    return encode_zip(entries, end)
