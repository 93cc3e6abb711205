"""Keras and HDF5 files → named tensors, in the layout of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from rankwise._text import format_count, quote
from rankwise.checkpoints.keras.architecture import Layer, parse_model
from rankwise.checkpoints.keras.datasets import Dataset
from rankwise.checkpoints.keras.hdf5 import Listing, list_datasets
from rankwise.checkpoints.keras.layers import Layout, find_layout
from rankwise.checkpoints.keras.names import (
    METRICS,
    Entry,
    find_root,
    has_numbered_variables,
    list_listed,
    list_numbered,
    list_plain,
)
from rankwise.checkpoints.nested import number_duplicates
from rankwise.checkpoints.ordering import sort_weights
from rankwise.checkpoints.records import Record, check_expansion, read_record, read_records
from rankwise.checkpoints.safety import (
    convert_errors,
    format_path,
    list_some,
    parse_json_object,
)
from rankwise.checkpoints.source import (
    FileSource,
    OpenSource,
    PositionedFile,
    get_buffer,
    open_source,
    take_range,
)
from rankwise.errors import CheckpointError
from rankwise.weights.tensor import Order, Weight, Weights

if TYPE_CHECKING:
    from pathlib import Path

_WEIGHTS = "model.weights.h5"
_CONFIG = "config.json"
_PLAIN = "no Keras model: tensors taken as PyTorch stores them, those named kernel as Keras does"
_MAX_CONFIG = 16 * 2**20  # bytes
# What a compressed file of weights may unpack into, in memory: so many times its size, or so much.
_MAX_EXPANSION = 100
_MIN_EXPANDED = 64 * 2**20
_OPTIMIZER = re.compile(r"(\w*_)?optimi[sz]ers?(_(weights|states?|state_dict))?", re.IGNORECASE)


def read_hdf5(path: Path) -> Weights:
    """Open an HDF5 file: a Keras model, its weights alone, or any other file of arrays."""
    source = open_source(path)
    listing = list_datasets(source)
    text = listing.get_text((), "model_config")
    model, notes = _parse_config(path, None if text is None else text.encode("utf-8", "replace"))
    return _build_weights(path, listing, model, notes)


def read_keras(path: Path) -> Weights:
    """Open a .keras file: an archive of a configuration and a file of weights."""
    source = open_source(path)
    with convert_errors(path, "a Keras file"):
        records = {record.name: record for record in read_records(source)}
        weights = _open_record(source, records[_WEIGHTS])
        config = records.get(_CONFIG)
        text = None if config is None else _read_config(source, config)
    listing = list_datasets(weights)
    model, notes = _parse_config(path, text)
    return _build_weights(path, listing, model, notes)


def _open_record(source: FileSource, record: Record) -> FileSource:
    """Return a file in an archive as a file; a compressed one is unpacked in memory."""
    check_expansion(source, record)
    if not record.is_compressed:
        return take_range(source, record.start, record.size)
    if record.size > max(_MIN_EXPANDED, _MAX_EXPANSION * source.size):
        raise CheckpointError(
            f"{format_path(source.path)}: its weights would unpack from {record.stored} to "
            f"{record.size} bytes, more than {_MAX_EXPANSION} times the file."
        )
    content = read_record(source, record)
    return _MemorySource(source.path, record.size, source.identity, content)


@dataclass(frozen=True, slots=True)
class _MemorySource(FileSource):
    """A file that is in memory as a whole."""

    content: Tensor

    @contextmanager
    def open(self) -> Iterator[OpenSource]:
        """Open the file for some reads."""
        content = get_buffer(self.content)

        def fetch(start: int, view: memoryview) -> None:
            view[:] = content[start : start + len(view)]

        yield OpenSource(self, PositionedFile(self.size, fetch))  # type: ignore[arg-type]


def _read_config(source: FileSource, record: Record) -> bytes | None:
    if record.size > _MAX_CONFIG:
        return None
    check_expansion(source, record)
    return bytes(get_buffer(read_record(source, record)))


def _parse_config(path: Path, text: bytes | None) -> tuple[Layer | None, tuple[str, ...]]:
    """Return the layers of a model; a configuration that can't be read counts as absent."""
    if text is None:
        return None, ()
    if len(text) <= _MAX_CONFIG:
        try:
            return parse_model(parse_json_object(path, text, "its configuration")), ()
        except CheckpointError:
            pass
    return None, (
        "the model's configuration can't be read; layers are recognised by names and shapes",
    )


def _build_weights(
    path: Path, listing: Listing, model: Layer | None, notes: tuple[str, ...]
) -> Weights:
    datasets, optimizer_notes = _leave_out_optimizers(path, listing.datasets)
    order: Order = "network"
    root = find_root(listing)
    if root is not None:
        entries = list_listed(listing, datasets, root, model)
    elif has_numbered_variables(datasets):
        datasets, metrics_notes = _leave_out_metrics(datasets)
        notes = (*notes, *metrics_notes)
        entries, is_ordered = list_numbered(listing, datasets, model)
        order = "network" if is_ordered else "name"
    else:
        entries = list_plain(datasets)
        order = "network" if listing.is_ordered else "name"
        notes = (*notes, _PLAIN) if any(len(item.shape) > 1 for item in datasets) else notes
    rows = [_describe(entry) for entry in entries]
    names = number_duplicates(weight.name for weight, _ in rows)
    tensors = [replace(row, name=name) for (row, _), name in zip(rows, names, strict=True)]
    guesses = [tensor.name for tensor, (_, guess) in zip(tensors, rows, strict=True) if guess]
    if guesses:
        listed = list_some(map(quote, guesses))
        notes = (*notes, f"layout told by shape and name alone: {listed}")
    if listing.has_deeper:
        notes = (*notes, "groups that are nested too deeply, left out")
    weights = Weights(format_path(path), tuple(tensors), (*notes, *optimizer_notes), order=order)
    return sort_weights(weights) if order == "name" else weights


def _leave_out_optimizers(
    path: Path, datasets: Sequence[Dataset]
) -> tuple[list[Dataset], tuple[str, ...]]:
    kept: list[Dataset] = []
    counts: dict[str, int] = {}
    for item in datasets:
        part = next((step for step in item.path[:-1] if _OPTIMIZER.fullmatch(step)), None)
        if part is None:
            kept.append(item)
        else:
            counts[part] = counts.get(part, 0) + 1
    if counts and not kept:
        raise CheckpointError(
            f"{format_path(path)}: contains no weights, only an optimizer's state; save the "
            "model's weights."
        )
    return kept, tuple(
        f"optimizer state in {quote(part)} left out ({format_count(count, 'tensor')})"
        for part, count in counts.items()
    )


def _leave_out_metrics(datasets: Sequence[Dataset]) -> tuple[list[Dataset], tuple[str, ...]]:
    kept = [item for item in datasets if item.path[0] != METRICS]
    count = len(datasets) - len(kept)
    notes = (f"state of metrics left out ({format_count(count, 'tensor')})",) if count else ()
    return kept, notes


def _describe(entry: Entry) -> tuple[Weight, bool]:
    """Return a tensor as PyTorch has it, and whether its layout is a guess."""
    stored = entry.dataset.weight
    if entry.variable is None or stored.obstacle is not None:
        return replace(stored, name=entry.name), False
    layout = find_layout(entry.variable)
    weight = replace(
        stored,
        name=entry.name,
        kind=layout.kind,
        output_axis=layout.output_axis,
        gates=layout.gates,
        obstacle=layout.obstacle,
    )
    if layout.axes:
        load = _arrange(stored.load, layout)
        weight = replace(weight, shape=layout.shape, load=load, load_rows=None)
    return weight, layout.is_guess and stored.dtype.is_floating_point


def _arrange(load: Callable[[], Tensor], layout: Layout) -> Callable[[], Tensor]:
    return lambda: load().permute(layout.axes).reshape(layout.shape)
