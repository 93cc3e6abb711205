"""Images and labels in parquet files, as Hugging Face's `datasets` lays them out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import rankwise
from rankwise.errors import DataError
from rankwise.lab.data.pictures import load_all
from rankwise.lab.data.sets import MemorySplit

__all__ = ["Columns", "find_columns", "read_split"]

_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns hold the images and the labels, and what the labels are called."""

    image: str
    label: str
    classes: tuple[str, ...] | None  # None where the file does not say


def find_columns(file: Path, *, label: str | None = None) -> Columns:
    """Find the columns by their content: encoded images are bytes, labels are integers.

    Args:
        file: A parquet file.
        label: The label's column; None takes the one of integers, or the one named "label".

    Raises:
        DataError: If the file can't be read or leaves open which columns are meant.
    """
    schema = _open(file).schema_arrow
    types = {field.name: field.type for field in schema}
    image = _one(file, "encoded images", [name for name in types if _holds_bytes(types[name])])
    if label is None:
        integers = [name for name in types if str(types[name]).lstrip("u").startswith("int")]
        label = "label" if "label" in integers else _one(file, "integer labels", integers)
    elif label not in types:
        raise DataError(f"{file}: expected a column {label!r}, found {', '.join(types)}.")
    return Columns(image, label, _class_names(schema.metadata, label))


def read_split(files: Sequence[Path], image: str, label: str) -> MemorySplit:
    """Decode all images of some parquet files, which must be of one size; grey becomes colour.

    Args:
        files: The shards of one split, in order.
        image: The column of encoded images: bytes, or a struct with the field `bytes`.
        label: The column of classes, as integers.

    Raises:
        DataError: If a file, an image or a label can't be read.
    """
    images: list[bytes] = []
    targets: list[int] = []
    for file in files:
        for data, target in _rows(file, image, label):
            if not isinstance(data, bytes) or not isinstance(target, int):
                raise DataError(
                    f"{file}, row {len(images)}: expected an encoded image and an integer label, "
                    f"found {type(data).__name__} and {target!r}."
                )
            images.append(data)
            targets.append(target)
    try:
        return load_all(images, torch.tensor(targets, dtype=torch.int64), None)
    except DataError as error:
        raise DataError(f"{', '.join(map(str, files))}: {error}") from error


def _rows(file: Path, image: str, label: str) -> Iterator[tuple[Any, Any]]:
    import pyarrow as pa  # noqa: PLC0415

    try:
        for batch in _open(file).iter_batches(batch_size=_ROWS, columns=[image, label]):
            encoded = batch.column(image)
            if pa.types.is_struct(encoded.type):
                encoded = encoded.field("bytes")
            yield from zip(encoded.to_pylist(), batch.column(label).to_pylist(), strict=True)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error


def _open(file: Path) -> Any:  # noqa: ANN401 - pyarrow has no annotations
    try:
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415
    except ImportError as error:
        raise rankwise.MissingExtraError("pyarrow", "parquet", "Reading parquet files") from error
    try:
        return ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} can't be read as parquet: {error}; get the file anew.")


def _holds_bytes(kind: Any) -> bool:  # noqa: ANN401 - pyarrow has no annotations
    """Whether a column's type is bytes, or a struct with bytes in it."""
    if str(kind).startswith("struct"):
        fields = {field.name: str(field.type) for field in kind}
        return fields.get("bytes") in {"binary", "large_binary"}
    return str(kind) in {"binary", "large_binary"}


def _one(file: Path, what: str, names: list[str]) -> str:
    if len(names) != 1:
        raise DataError(
            f"{file}: expected one column of {what}, found {', '.join(names) or 'none'}."
        )
    return names[0]


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> tuple[str, ...] | None:
    """The classes' names, where `datasets` has left its description of the columns."""
    try:
        described = json.loads((metadata or {})[b"huggingface"])
        names = described["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) else None
