""".safetensors → named tensors, each read when its turn comes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankwise._text import quote, sanitize
from rankwise.checkpoints.failures import reading, refusing, shown
from rankwise.checkpoints.json_text import json_object
from rankwise.checkpoints.reopening import Reopening
from rankwise.checkpoints.safety import regular_size
from rankwise.errors import CheckpointError, MissingExtraError
from rankwise.probes.tensor import Weight, Weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


__all__ = ["read_safetensors"]

_LARGEST_HEADER = 100_000_000  # the format's own limit
_KIND = "a safetensors file"
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


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    stored: str  # the header's dtype
    shape: tuple[int, ...]
    start: int
    end: int


def read_safetensors(path: Path) -> Weights:
    """Opens a safetensors file.

    Args:
        path: The file.

    Returns:
        Its tensors; data is read by their ``load`` only.

    Raises:
        CheckpointError: The header is damaged or lies about the file.
        MissingExtraError: The package safetensors is missing.
    """
    opener = _safe_open()
    entries = _entries(path)

    def open_file() -> Any:  # noqa: ANN401 - safetensors has no type for it
        with reading(path, _KIND):
            return opener(path, framework="pt", device="cpu")

    handle = Reopening(open_file)
    # Opened once now: safetensors' own checks of the header belong here, not to the first load.
    handle.get(0)
    return Weights(sanitize(str(path)), tuple(_weight(path, entry, handle) for entry in entries))


def _safe_open() -> Callable[..., Any]:
    try:
        from safetensors import safe_open  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise MissingExtraError(
            "safetensors", "safetensors", "Reading .safetensors files"
        ) from error
    return safe_open


def _entries(path: Path) -> list[_Entry]:
    header, room = _header(path)
    metadata = header.pop("__metadata__", None)
    entries = [_entry(path, name, header[name]) for name in _in_order(header, metadata)]
    free = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.end > room:
            raise CheckpointError(
                f"{shown(path)}: the data of {quote(entry.name)} lies beyond the end of the file; "
                "it is truncated or damaged."
            )
        if entry.start < free:
            raise CheckpointError(
                f"{shown(path)}: the data of {quote(entry.name)} overlaps another tensor's."
            )
        free = entry.end
    return entries


def _in_order(header: dict[str, object], metadata: object) -> list[str]:
    """The tensors' names in the network's order, as far as the file tells.

    The format's writer sorts by type, then by name. A file may say in which order its tensors were
    given, as those of the lab do; else at least numbers are put right, which by name go 1, 10, 2.
    """
    match metadata:
        case {"order": str(text)} if (order := _names(text)) and set(order) == set(header):
            return list(dict.fromkeys(order))
    types: dict[str, list[str]] = {}
    for name, value in header.items():
        types.setdefault(str(value.get("dtype") if isinstance(value, dict) else ""), []).append(
            name
        )
    by_name = all(names == sorted(names) for names in types.values())
    return sorted(header, key=_by_number) if by_name else list(header)


def _names(text: str) -> list[str] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(found, list) and all(isinstance(name, str) for name in found)
    return found if whole else None


def _by_number(name: str) -> list[tuple[int, str]]:
    """A key that sorts layer2 before layer10."""
    parts = re.split(r"0*([0-9]+)", name)
    # Of two numbers the one with more digits is larger; int() would refuse very long ones.
    return [(len(part) if number % 2 else 0, part) for number, part in enumerate(parts)]


def _header(path: Path) -> tuple[dict[str, object], int]:
    size = regular_size(path)
    with reading(path, _KIND), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(_LARGEST_HEADER, size - 8):
            raise CheckpointError(
                f"{shown(path)}: its header claims {length} bytes, more than the file or the "
                "format allows; it is truncated or damaged."
            )
        text = file.read(length)
    return json_object(path, text, "its header"), size - 8 - length


def _entry(path: Path, name: str, value: object) -> _Entry:
    match value:
        case {"dtype": str(stored), "shape": list(shape), "data_offsets": [int(start), int(end)]}:
            if _sizes(shape) and 0 <= start <= end and _fits(stored, shape, end - start):
                return _Entry(name, stored, tuple(shape), start, end)
    raise CheckpointError(
        f"{shown(path)}: its header describes {quote(name)} wrongly "
        "(type, shape and place don't agree)."
    )


def _sizes(shape: list[object]) -> bool:
    return all(type(size) is int and 0 <= size < 2**63 for size in shape)


def _fits(stored: str, shape: list[int], nbytes: int) -> bool:
    dtype = _DTYPES.get(stored)
    return dtype is None or math.prod(shape) * dtype.itemsize == nbytes


def _weight(path: Path, entry: _Entry, handle: Reopening[Any]) -> Weight:
    dtype = _DTYPES.get(entry.stored)
    if dtype is None:
        reason = (
            f"stored as {sanitize(entry.stored[:32])}, a packed or scale type that isn't unpacked"
        )
        return Weight(
            entry.name,
            entry.shape,
            torch.uint8,
            refusing(path, f"{quote(entry.name)} is {reason}."),
            obstacle=("quantised", reason),
        )
    return Weight(entry.name, entry.shape, dtype, partial(_load, path, entry, handle))


def _load(path: Path, entry: _Entry, handle: Reopening[Any]) -> Tensor:
    with reading(path, _KIND):
        tensor: Tensor = handle.get(entry.end - entry.start).get_tensor(entry.name)
    if tuple(tensor.shape) != entry.shape:
        raise CheckpointError(f"{shown(path)}: changed while it was being read.")
    return tensor
