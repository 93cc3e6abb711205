"""npy and npz files: headers that lie, and object arrays with a pickle that would run code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

from tests.fuzz.pickles import draw_hostile_call, encode_pickle
from tests.fuzz.tensors import Stored
from tests.fuzz.values import CANARY, damage_bytes, draw_integer, draw_text
from tests.fuzz.zips import Entry, break_zip, encode_zip

_CODES = {
    "F32": "<f4",
    "F16": "<f2",
    "F64": "<f8",
    "BF16": "|V2",
    "F8_E4M3": "|V1",
    "F8_E5M2": "|V1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "BOOL": "|b1",
    "C64": "<c8",
}
_ODD_CODES = (
    "'|O'",
    "'>f4'",
    "'<f16'",
    "'<U4'",
    "'<M8[s]'",
    "'|V0'",
    "'|S0'",
    "'<f999999999999'",
    "[('a', '<f4'), ('b', '|O')]",
    "[('a', '<f4', (1000000, 1000000))]",
    "('<f4', (2**40,))",
    "{'names': ['a'], 'formats': ['<f4'], 'itemsize': 2147483647}",
    "None",
    "'f4,f4'",
    "[]",
)
_TEXTS = (
    "{}",
    "()",
    "",
    "(" * 300,
    f"__import__('pathlib').Path('{CANARY}').touch()",
    f"open('{CANARY}', 'w')",
    "{'descr': '<f4'}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }",
    "-" * 20_000 + "1",
)


def encode_npy(tensor: Stored, version: int = 1) -> bytes:
    """Return a valid file."""
    return _join(
        _write_header(f"'{_CODES[tensor.dtype]}'", str(tensor.shape)), tensor.data, version
    )


def _write_header(code: str, shape: str, fortran: str = "False") -> str:
    return f"{{'descr': {code}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


def _join(header: str, data: bytes, version: int = 1, length: int | None = None) -> bytes:
    text = header.encode("utf-8" if version > 2 else "latin-1", "replace")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    size = (len(text) if length is None else length) % (2**16 if version == 1 else 2**32)
    return (
        b"\x93NUMPY"
        + struct.pack("<BB", version, 0)
        + struct.pack("<H" if version == 1 else "<L", size)
        + text
        + data
    )


def encode_odd_npy(tensor: Stored, rng: Random) -> bytes:
    """Return a file that numpy could read, but rarely writes."""
    match rng.randrange(4):
        case 0:
            return encode_npy(tensor, rng.choice((1, 2, 3)))
        case 1:
            header = _write_header(f"'{_CODES[tensor.dtype]}'", str(tensor.shape), "True")
            return _join(header, tensor.data)
        case 2:
            code = "'" + _CODES[tensor.dtype].replace("<", ">") + "'"
            return _join(_write_header(code, str(tensor.shape)), tensor.data)
        case _:
            pickle = encode_pickle(draw_hostile_call(rng))
            return _join(_write_header("'|O'", str(tensor.shape)), pickle)


def encode_broken_npy(tensor: Stored, rng: Random) -> bytes:
    """Return a file whose header lies, or which is damaged."""
    code, shape = f"'{_CODES[tensor.dtype]}'", str(tensor.shape)
    match rng.randrange(9):
        case 0 | 1:
            sides = [draw_integer(rng) for _ in range(rng.randrange(1, 4))]
            return _join(_write_header(code, str(tuple(sides))), tensor.data)
        case 2:
            return _join(_write_header(rng.choice(_ODD_CODES), shape), tensor.data)
        case 3:
            return _join(rng.choice(_TEXTS), tensor.data)
        case 4:
            length = draw_integer(rng)
            return _join(_write_header(code, shape), tensor.data, rng.choice((1, 2, 3)), length)
        case 5:
            version = rng.choice((0, 2, 3, 4, 255))
            return _join(_write_header(code, shape), tensor.data, version)
        case 6:
            word = rng.choice(("(True, 3)", "(1.5,)", "[2, 3]", "'a'", "(1e9,)", "None", "(2,)*40"))
            return _join(_write_header(code, word, rng.choice(("0", "None", "False"))), tensor.data)
        case 7:
            return encode_npy(tensor)[: -rng.randrange(1, 20)]
        case _:
            return damage_bytes(encode_npy(tensor), rng)


def encode_npz(tensors: Sequence[Stored], rng: Random, *, broken: bool) -> bytes:
    """Return an archive of arrays; a broken one has wrong headers within or around them."""
    deflate = rng.random() < 0.5
    entries = [_make_entry(tensor, rng, deflate=deflate) for tensor in tensors]
    if not broken or not entries:
        return encode_zip(entries)
    if rng.random() < 0.4:
        place = rng.randrange(len(entries))
        entries[place].data = encode_broken_npy(tensors[place], rng)
        if rng.random() < 0.5:
            return encode_zip(entries)
    if rng.random() < 0.1:  # a small archive that unpacks into a large array
        count = rng.choice((10**5, 10**6))
        bomb = _join(_write_header("'<f4'", f"({count},)"), bytes(4 * count))
        entries.append(Entry(b"bomb.npy", bomb, deflate=True))
        return encode_zip(entries)
    return break_zip(entries, rng)


def _make_entry(tensor: Stored, rng: Random, *, deflate: bool) -> Entry:
    name = f"{tensor.name}.npy".encode("utf-8", "surrogatepass")[:60_000]
    odd = rng.random() < 0.1
    data = encode_odd_npy(tensor, rng) if odd else encode_npy(tensor)
    flags = {"flags": 0x800} if not tensor.name.isascii() else {}
    if rng.random() < 0.02:
        name = draw_text(rng).encode("utf-8", "surrogatepass") + b".txt"
    return Entry(name, data, deflate, dict(flags), dict(flags))
