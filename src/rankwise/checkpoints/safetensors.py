""".safetensors → named tensors, read one by one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankwise._text import quote, sanitize
from rankwise.checkpoints.memory import BoundedHandle
from rankwise.checkpoints.ordering import sort_names
from rankwise.checkpoints.safety import (
    build_unreadable,
    convert_errors,
    format_path,
    get_file_size,
    parse_json_object,
)
from rankwise.errors import CheckpointError, MissingExtraError
from rankwise.weights.tensor import Order, Status, Weight, Weights

if TYPE_CHECKING:
    from pathlib import Path

_KIND = "a safetensors file"
_MAX_HEADER = 100_000_000  # the format's own limit
_DTYPES = {
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
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
# Codes and scales that mean nothing by themselves, with the types that newer versions of torch have
# for them: F4 comes in pairs.
_CODES = {"F4": "float4_e2m1fn_x2", "F8_E8M0": "float8_e8m0fnu"}


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    dtype: str  # as the header spells it
    shape: tuple[int, ...]
    start: int
    end: int


def read_safetensors(path: Path) -> Weights:
    """Open a safetensors file."""
    try:
        from safetensors import safe_open  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise MissingExtraError(
            "safetensors", "safetensors", "Reading .safetensors files"
        ) from error
    entries, order = _read_entries(path)

    def open_file() -> Any:  # noqa: ANN401 - safetensors has no type for it
        with convert_errors(path, _KIND):
            return safe_open(path, framework="pt", device="cpu")

    handle = BoundedHandle(open_file)
    # Opened once now: safetensors' own checks of the header belong here, not to the first load.
    handle.get(0)
    tensors = tuple(_describe(path, entry, handle) for entry in entries)
    return Weights(format_path(path), tensors, order=order)


def _read_entries(path: Path) -> tuple[list[_Entry], Order]:
    header, data_size = _read_header(path)
    names, order = _order_names(header, header.pop("__metadata__", None))
    entries = [_parse_entry(path, name, header[name]) for name in names]
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.end > data_size:
            raise CheckpointError(
                f"{format_path(path)}: the data of {quote(entry.name)} lies beyond the end of the "
                "file, which is truncated or damaged."
            )
        if entry.start < end:
            raise CheckpointError(
                f"{format_path(path)}: the data of {quote(entry.name)} overlaps another tensor's; "
                "the file is damaged."
            )
        end = entry.end
    return entries, order


def _read_header(path: Path) -> tuple[dict[str, object], int]:
    """Return the header and how many bytes follow it."""
    size = get_file_size(path)
    with convert_errors(path, _KIND), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(_MAX_HEADER, size - 8):
            raise CheckpointError(
                f"{format_path(path)}: its header claims {length} bytes, more than the file or the "
                "format allows; it is truncated or damaged."
            )
        text = file.read(length)
    return parse_json_object(path, text, "its header"), size - 8 - length


def _parse_entry(path: Path, name: str, value: object) -> _Entry:
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]}:
            valid = all(type(size) is int and 0 <= size < 2**63 for size in shape)
            if valid and 0 <= start <= end and _fits(dtype, shape, end - start):
                return _Entry(name, dtype, tuple(shape), start, end)
    raise CheckpointError(
        f"{format_path(path)}: its header describes {quote(name)} wrongly: type, shape and "
        "offsets don't agree; the file is damaged."
    )


def _fits(dtype: str, shape: list[int], nbytes: int) -> bool:
    known = _DTYPES.get(dtype)
    return known is None or math.prod(shape) * known.itemsize == nbytes


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


def _describe(path: Path, entry: _Entry, handle: BoundedHandle[Any]) -> Weight:
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        reason = f"stored as {sanitize(entry.dtype[:32])}, a packed or scale type"
        obstacle = (Status.QUANTISED, reason)
        if entry.dtype in _CODES and hasattr(torch, _CODES[entry.dtype]):
            return _describe_codes(path, entry, handle, obstacle)
        return build_unreadable(path, entry.name, entry.shape, torch.uint8, obstacle)

    def load() -> Tensor:
        with convert_errors(path, _KIND):
            tensor: Tensor = handle.get(entry.end - entry.start).get_tensor(entry.name)
        if (tuple(tensor.shape), tensor.dtype) != (entry.shape, dtype):
            raise CheckpointError(
                f"{format_path(path)}: changed while it was being read; try again."
            )
        return tensor

    return Weight(entry.name, entry.shape, dtype, load)


def _describe_codes(
    path: Path, entry: _Entry, handle: BoundedHandle[Any], obstacle: tuple[Status, str]
) -> Weight:
    """Describe codes as bytes, for the weight that they are a part of."""

    def load() -> Tensor:
        with convert_errors(path, _KIND):
            codes: Tensor = handle.get(entry.end - entry.start).get_tensor(entry.name)
        return codes.view(torch.uint8)

    pairs = 2 if entry.dtype == "F4" else 1
    shape = (*entry.shape[:-1], *(side // pairs for side in entry.shape[-1:]))
    return Weight(entry.name, shape, torch.uint8, load, obstacle=obstacle)
