""".safetensors → named tensors, read one by one.

The format is small enough to be read without its own package, which maps the file into memory. What
that package refuses is refused here too.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rankwise._text import quote
from rankwise.checkpoints.ordering import sort_names
from rankwise.checkpoints.safety import format_path, parse_json_object
from rankwise.checkpoints.source import FileSource, StoredTensor, open_source
from rankwise.errors import CheckpointError
from rankwise.weights.tensor import Order, Status, Weight, Weights

if TYPE_CHECKING:
    from pathlib import Path

_MAX_HEADER = 100_000_000  # the format's own limit
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
# Types of fewer than 8 bits, whose numbers lie in the bytes without a gap. Their shape counts
# numbers, not bytes.
_PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_SCALE = "F8_E8M0"  # powers of two without a sign: never a weight itself


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    dtype: str  # as the header spells it
    shape: tuple[int, ...]
    start: int
    end: int


def read_safetensors(path: Path) -> Weights:
    """Open a safetensors file."""
    source = open_source(path)
    header, start = _read_header(source)
    _check_metadata(path, header.get("__metadata__"))
    names, order = _order_names(header, header.pop("__metadata__", None))
    entries = [_parse_entry(path, name, header[name]) for name in names]
    _check_places(path, entries, source.size - start)
    tensors = tuple(_describe(source, entry, start) for entry in entries)
    return Weights(format_path(path), tensors, order=order)


def _read_header(source: FileSource) -> tuple[dict[str, object], int]:
    """Return the header, and where the data after it begins."""
    path = source.path
    if source.size < 8:
        raise CheckpointError(f"{format_path(path)}: too short for a safetensors file; truncated.")
    with source.open() as file:
        length = int.from_bytes(file.read(0, 8), "little")
        if length > min(_MAX_HEADER, source.size - 8):
            raise CheckpointError(
                f"{format_path(path)}: its header claims {length} bytes, more than the file or the "
                "format allows; it is truncated or damaged."
            )
        text = file.read(8, length)
    header = parse_json_object(path, text, "its header")
    if b"\\u" in text:  # an escape can stand for half a character
        try:
            json.dumps(header, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError) as error:
            raise CheckpointError(
                f"{format_path(path)}: its header holds text that is not Unicode."
            ) from error
    return header, 8 + length


def _check_metadata(path: Path, metadata: object) -> None:
    match metadata:
        case None:
            return
        case dict() if all(isinstance(value, str) for value in metadata.values()):
            return
    raise CheckpointError(
        f"{format_path(path)}: expected texts as '__metadata__' in its header; it is damaged."
    )


def _check_places(path: Path, entries: list[_Entry], data_size: int) -> None:
    """Raise ``CheckpointError`` unless the data of the tensors fills the file without a gap."""
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.end > data_size:
            raise CheckpointError(
                f"{format_path(path)}: the data of {quote(entry.name)} lies beyond the end of the "
                "file, which is truncated or damaged."
            )
        if entry.start != end:
            what = "overlaps another tensor's" if entry.start < end else "does not follow the other"
            raise CheckpointError(
                f"{format_path(path)}: the data of {quote(entry.name)} {what}; the file is damaged."
            )
        end = entry.end
    if end != data_size:
        raise CheckpointError(
            f"{format_path(path)}: {data_size - end} bytes at its end belong to no tensor; "
            "the file is damaged."
        )


def _parse_entry(path: Path, name: str, value: object) -> _Entry:
    fields = value if isinstance(value, dict) else {}
    match fields:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]}:
            if dtype not in DTYPES and dtype not in _PACKED_BITS:
                raise CheckpointError(
                    f"{format_path(path)}: {quote(name)} is of the type {quote(dtype[:32])}, which "
                    "the format does not have."
                )
            valid = all(type(size) is int and 0 <= size < 2**63 for size in shape)
            valid &= type(start) is int and type(end) is int  # True is an int too
            # What else an entry says is passed over, but nobody nests it.
            if len(fields) > 3:
                valid &= sum(isinstance(item, list | dict) for item in fields.values()) == 2
            if valid and 0 <= start <= end and _fits(dtype, shape, end - start):
                return _Entry(name, dtype, tuple(shape), start, end)
    raise CheckpointError(
        f"{format_path(path)}: its header describes {quote(name)} wrongly: type, shape and "
        "offsets don't agree; the file is damaged."
    )


def _fits(dtype: str, shape: list[int], nbytes: int) -> bool:
    count = 1
    for size in shape:
        count *= size
        if count >= 2**63:  # even where a later size is 0
            return False
    bits = _PACKED_BITS.get(dtype)
    return count * (bits or 8 * DTYPES[dtype].itemsize) == 8 * nbytes


def _order_names(header: dict[str, object], metadata: object) -> tuple[list[str], Order]:
    """Return the tensors' names in the network's order, if the file tells it, else by name.

    The format's writer sorts by type, then by name. Metadata may say in which order the tensors
    were given, as files of the lab do.
    """
    match metadata:
        case {"order": str(text)} if (order := _parse_names(text)) and set(order) == set(header):
            return list(dict.fromkeys(order)), "network"
    names_by_type: dict[str, list[str]] = {}
    for name, value in header.items():
        dtype = value.get("dtype") if isinstance(value, dict) else ""
        names_by_type.setdefault(str(dtype), []).append(name)
    is_sorted = all(names == sorted(names) for names in names_by_type.values())
    return (sort_names(header), "name") if is_sorted else (list(header), "network")


def _parse_names(text: str) -> list[str] | None:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return None
    valid = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if valid else None


def _describe(source: FileSource, entry: _Entry, start: int) -> Weight:
    place = start + entry.start
    bits = _PACKED_BITS.get(entry.dtype)
    if bits is not None:
        # As PyTorch has two numbers of 4 bits in a byte: along the last axis.
        fits = bits == 4 and entry.shape and entry.shape[-1] % 2 == 0
        shape = (*entry.shape[:-1], entry.shape[-1] // 2) if fits else (entry.end - entry.start,)
        stored = StoredTensor(source, entry.name, place, shape, torch.uint8)
        return Weight(
            entry.name,
            shape,
            torch.uint8,
            stored.load,
            stored=entry.dtype,
            parameters=math.prod(entry.shape),
            load_rows=stored.load_rows if fits else None,
            obstacle=(Status.QUANTISED, f"stored as {entry.dtype}, a packed type"),
        )
    dtype = DTYPES[entry.dtype]
    stored = StoredTensor(source, entry.name, place, entry.shape, dtype)
    is_scale = entry.dtype == _SCALE
    return Weight(
        entry.name,
        entry.shape,
        dtype,
        stored.load,
        obstacle=(Status.QUANTISED, f"stored as {_SCALE}, a type of scales") if is_scale else None,
        load_rows=stored.load_rows if entry.shape else None,
    )
