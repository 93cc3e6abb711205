"""GGUF files → named tensors, also of a model that is split into several files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rankwise._text import quote
from rankwise.checkpoints.gguf.blocks import PLAIN, QuantisedTensor, find_type
from rankwise.checkpoints.gguf.header import Header, TensorInfo, Value, read_header
from rankwise.checkpoints.ordering import sort_weights
from rankwise.checkpoints.safety import (
    build_unreadable,
    format_path,
    is_present,
    list_some,
    safe_join,
)
from rankwise.checkpoints.source import FileSource, StoredTensor, open_source
from rankwise.errors import CheckpointError
from rankwise.weights.tensor import Status, Weight, Weights

if TYPE_CHECKING:
    from pathlib import Path

_PART = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
_MAX_PARTS = 1000
_BLOCK = re.compile(r"blk\.([0-9]{1,6})\.")
# What attention reads from a configuration, and the metadata that says it.
_COUNTS = {
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "hidden_size": "embedding_length",
    "kv_lora_rank": "attention.kv_lora_rank",
}


def read_gguf(path: Path) -> Weights:
    """Open a GGUF file; of a split model, all its files."""
    source = open_source(path)
    header = read_header(source)
    tensors = _describe_all(source, header)
    count = header.metadata.get("split.count", 1)
    if type(count) is int and count > 1:
        tensors = _read_parts(path, header, count)
    weights = Weights(
        format_path(path),
        tuple(tensors),
        _build_notes(header.metadata, len(tensors)),
        config=_read_config(header.metadata),
    )
    return sort_weights(weights) if _is_sorted([tensor.name for tensor in tensors]) else weights


def find_first_part(names: Sequence[str]) -> str | None:
    """Return the first file of a split model if all names are files of one, else None."""
    matches = [_PART.fullmatch(name) for name in names]
    models = {(match["stem"], match["count"]) if match else None for match in matches}
    return min(names) if len(models) == 1 and None not in models else None


def _read_parts(path: Path, header: Header, count: int) -> list[Weight]:
    match = _PART.fullmatch(path.name)
    if match is None or int(match["count"]) != count or count > _MAX_PARTS:
        raise CheckpointError(
            f"{format_path(path)}: one of {count} files of a split model, but not named so; "
            f"give it back its name, as in model-00001-of-{count:05}.gguf."
        )
    names = [f"{match['stem']}-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    files = [safe_join(path.parent, name) for name in names]
    missing = [name for name, file in zip(names, files, strict=True) if not is_present(file)]
    if missing:
        raise CheckpointError(
            f"{format_path(path)}: one of {count} files of a split model, of which some are "
            f"missing ({list_some(map(quote, missing))}); put them into the same folder."
        )
    tensors: list[Weight] = []
    for number, file in enumerate(files):
        source = open_source(file)
        with source.open() as opened:
            is_gguf = opened.read(0, min(4, source.size)) == b"GGUF"
        part = read_header(source) if is_gguf else None
        said = (
            None
            if part is None
            else (part.metadata.get("split.no"), part.metadata.get("split.count"))
        )
        if part is None or said != (number, count):
            raise CheckpointError(
                f"{format_path(file)}: is not file {number + 1} of {count} of the split model that "
                f"{quote(path.name)} belongs to; download or copy it again."
            )
        tensors += _describe_all(source, part)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise CheckpointError(
            f"{format_path(path)}: the files of its split model contain a tensor twice."
        )
    expected = header.metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise CheckpointError(
            f"{format_path(path)}: the files of its split model contain {len(tensors)} tensors "
            f"instead of {expected}; download or copy them again."
        )
    return tensors


def _describe_all(source: FileSource, header: Header) -> list[Weight]:
    _check_places(source, header.tensors)
    return [_describe(source, header, info) for info in header.tensors]


def _check_places(source: FileSource, tensors: Sequence[TensorInfo]) -> None:
    """Raise ``CheckpointError`` if data lies beyond the file's end or belongs to two tensors."""
    end, last = 0, ""
    for info in sorted(tensors, key=lambda info: info.start):
        kind = find_type(info.type)
        nbytes = 0 if kind is None else kind.count_bytes(info.shape) or 0
        if info.start + nbytes > source.size:
            raise CheckpointError(
                f"{format_path(source.path)}: the data of {quote(info.name)} lies beyond the end "
                "of the file, which is truncated or damaged."
            )
        if nbytes and info.start < end:  # how a small file could be measured as a huge one
            raise CheckpointError(
                f"{format_path(source.path)}: the data of {quote(info.name)} overlaps that of "
                f"{quote(last)}; the file is damaged."
            )
        if nbytes:
            end, last = info.start + nbytes, info.name


def _describe(source: FileSource, header: Header, info: TensorInfo) -> Weight:
    kind = find_type(info.type)
    if kind is None:
        reason = f"stored in the type {info.type}, which the installed package gguf does not know"
        obstacle = (Status.QUANTISED, reason)
        return build_unreadable(source.path, info.name, info.shape, torch.float32, obstacle)
    if kind.count_bytes(info.shape) is None:
        obstacle = (Status.UNREADABLE, f"its rows are no whole blocks of {kind.name}")
    elif kind.name in PLAIN:
        plain = StoredTensor(
            source, info.name, info.start, info.shape, PLAIN[kind.name], header.byteorder
        )
        rows = plain.load_rows if info.shape else None
        return Weight(info.name, info.shape, plain.dtype, plain.load, load_rows=rows)
    elif reason := kind.find_obstacle(header.byteorder):
        obstacle = (Status.QUANTISED, reason)
    else:
        tensor = QuantisedTensor(source, info.name, info.start, info.shape, kind, header.byteorder)
        return Weight(
            info.name,
            info.shape,
            torch.float32,
            tensor.load,
            stored=kind.name,
            load_rows=tensor.load_rows,
        )
    row = build_unreadable(source.path, info.name, info.shape, torch.float32, obstacle)
    return replace(row, stored=kind.name)


def _read_config(metadata: Mapping[str, Value]) -> dict[str, object]:
    """Return what the metadata says about attention, by the keys of Hugging Face's configurations.

    The model's type is left out: the converters of llama.cpp store q, k and v one after the other,
    in whichever order the original had them. They also permute rows of q and k for rotary
    embeddings, within each head, which leaves all spectra as they are.
    """
    architecture = metadata.get("general.architecture")
    prefixes = (f"{architecture}.", "clip.vision.")
    config: dict[str, object] = {}
    for key, name in _COUNTS.items():
        values = (_find_count(metadata.get(f"{prefix}{name}")) for prefix in prefixes)
        count = next((value for value in values if value), None)
        if count is not None:
            config[key] = count
    lengths = [metadata.get(f"{architecture}.attention.{name}_length") for name in ("key", "value")]
    if None not in lengths and lengths[0] != lengths[1]:  # no one size of a head
        config.pop("head_dim", None)
        config.pop("hidden_size", None)
    return config


def _find_count(value: Value | None) -> int | None:
    """Return a number, also where it is written once for each layer."""
    numbers = value if isinstance(value, list) else [value]
    is_one = len(set(numbers)) == 1 and type(numbers[0]) is int
    return numbers[0] if is_one else None  # type: ignore[return-value]


def _build_notes(metadata: Mapping[str, Value], count: int) -> tuple[str, ...]:
    name, architecture = metadata.get("general.name"), metadata.get("general.architecture")
    if not count or not isinstance(architecture, str) or not architecture:
        return ()
    called = f" {quote(name)}" if isinstance(name, str) and name else ""
    return (f"GGUF model{called} of the architecture {quote(architecture)}",)


def _is_sorted(names: Sequence[str]) -> bool:
    """Return whether someone has sorted the names, so that the network's order is lost.

    llama.cpp puts names outside of blocks first, then block after block, each by name: the output
    comes before the embedding. A converter that read sorted names puts block 10 before block 2.
    """
    matches = [_BLOCK.match(name) for name in names]
    blocks = [int(match[1]) if match else -1 for match in matches]
    inside = [block for block in blocks if block >= 0]
    is_by_name = list(names) == [name for _, name in sorted(zip(blocks, names, strict=True))]
    return len(names) > 1 and (is_by_name or inside != sorted(inside))
