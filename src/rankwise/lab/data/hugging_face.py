"""Images from parquet files, and `hf:NAME_OR_PATH` datasets through Hugging Face's `datasets`.

`NAME_OR_PATH` is a hub id, a folder of parquet files, a parquet file (or a pattern such as
`data/*.parquet`), or a folder written by `save_to_disk`. No code from the hub is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from rankwise.errors import DataError, MissingExtraError
from rankwise.lab.data.dataset import ImageDataset, MemorySplit, split_indices
from rankwise.lab.data.decoding import EncodedImage, LabelledImages, load_image_files, load_images

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

TEST_SPLITS = ("test", "validation", "valid", "val")
LABELS = ("fine_label", "label", "labels")  # in this order; coarse labels only if nothing else
_ROWS = 1024  # of a parquet file that are read at once


class _TableImages:
    """The encoded images of a table: read from disk when needed, picklable for workers."""

    def __init__(self, table: Dataset, column: str) -> None:
        import datasets  # noqa: PLC0415

        undecoded = datasets.Image(decode=False)  # images are decoded by our own rules
        self.table = table.select_columns([column]).cast_column(column, undecoded)
        self.column = column

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> EncodedImage:
        cell = cast(dict[str, Any], self.table[index][self.column] or {})
        if cell.get("bytes"):
            return bytes(cell["bytes"])
        if cell.get("path"):
            return Path(cell["path"])
        raise DataError(
            f"Expected an image in column {self.column!r}, but row {index} has none; remove it."
        )


def load_hugging_face(name_or_path: str, image_size: int | None) -> ImageDataset:
    """Load images with one label each.

    The images are in the column of type Image, the labels in `fine_label`, `label`, `labels` or
    the only column of type ClassLabel. The test is the split `test` or `validation`, the first
    that has labels; if there is none, every fifth row is for testing.
    """
    tables = _load_tables(name_or_path)
    if "train" not in tables:
        raise DataError(
            f"Expected a split 'train' in {name_or_path}, but it has {', '.join(tables)}; use a "
            "dataset that has one."
        )
    image, label = _find_columns(name_or_path, tables["train"])
    train, test = _choose_splits(tables, label)
    labels = [_read_labels(name_or_path, table, label) for table in (train, test)]
    classes, targets = _number_classes(name_or_path, train, label, labels)
    return load_image_files(
        f"hf:{name_or_path}",
        LabelledImages(_TableImages(train, image), targets[0]),
        LabelledImages(_TableImages(test, image), targets[1]),
        classes,
        size=image_size,
    )


def _load_tables(name: str) -> DatasetDict:
    try:
        import datasets  # noqa: PLC0415 (an optional package, and slow to import)
    except ImportError as error:
        raise MissingExtraError("datasets", "hf", "Reading hf: datasets") from error
    path = Path(name).expanduser()
    saved = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
    try:
        if saved:
            tables = datasets.load_from_disk(str(path))
        elif path.suffix == ".parquet":
            tables = datasets.load_dataset("parquet", data_files=str(path))
        else:
            tables = datasets.load_dataset(str(path) if path.exists() else name)
    except Exception as error:  # offline, unknown, gated, broken: each raises its own kind
        raise DataError(
            f"Expected a dataset of the hub, a folder or parquet files, but {name} can't be "
            f"loaded ({type(error).__name__}: {error}); check the name and the connection, or "
            "give the path of a local copy."
        ) from error
    return tables if isinstance(tables, dict) else datasets.DatasetDict(train=tables)


def _find_columns(name: str, table: Dataset) -> tuple[str, str]:
    import datasets  # noqa: PLC0415

    features = table.features
    images = [
        column
        for column, kind in features.items()
        if isinstance(kind, datasets.Image) or (isinstance(kind, dict) and "bytes" in kind)
    ]
    classes = [c for c, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    integers = [c for c, kind in features.items() if "int" in str(getattr(kind, "dtype", ""))]
    labels = [column for column in LABELS if column in classes + integers] or classes
    if not images or not labels:
        raise DataError(
            f"Expected a column of images and a column of classes in {name}, but its columns are "
            f"{', '.join(features)}; name them 'image' and 'label', of types Image and ClassLabel."
        )
    return images[0], labels[0]


def _choose_splits(tables: DatasetDict, label: str) -> tuple[Dataset, Dataset]:
    train = tables["train"]
    for name in TEST_SPLITS:
        # On the hub, test labels that are kept secret are -1.
        if name in tables and _has_labels(tables[name][label][:]):
            return train, tables[name]
    train_rows, test_rows = split_indices(len(train))
    return train.select(train_rows), train.select(test_rows)


def _has_labels(values: list[int | None]) -> bool:
    return bool(values) and all(value is not None and value >= 0 for value in values)


def _read_labels(name: str, table: Dataset, column: str) -> Tensor:
    values = table[column][:]
    if not _has_labels(values):
        raise DataError(
            f"Expected a class for every row in column {column!r} of {name}, but some have none; "
            "remove these rows."
        )
    return torch.tensor(values)


def _number_classes(
    name: str, table: Dataset, column: str, labels: list[Tensor]
) -> tuple[tuple[str, ...], list[Tensor]]:
    """Return the class names and the targets; without names, each label is a class."""
    names = getattr(table.features[column], "names", None)
    if names:
        return tuple(names), labels
    known = torch.tensor(sorted(set(labels[0].tolist())))
    extra = labels[1][~torch.isin(labels[1], known)]
    if len(extra):
        raise DataError(
            f"Expected the same classes for training and test in {name}, but {int(extra[0])} is in "
            "the test only; add training images or remove it."
        )
    targets = [torch.searchsorted(known, values) for values in labels]
    return tuple(str(value) for value in known.tolist()), targets


def read_parquet_images(files: Sequence[Path], *, label: str) -> tuple[MemorySplit, list[str]]:
    """Decode the images and labels of a split's shards, and its class names if the first has them.

    The images must be of one size, in the only column of bytes, or of structs with the field
    `bytes`; grey becomes colour.
    """
    schema = _open_parquet(files[0]).schema_arrow
    columns = [field.name for field in schema if _is_image_type(field.type)]
    if len(columns) != 1 or label not in schema.names:
        raise DataError(
            f"{files[0]}: expected one column of encoded images and a column {label!r}, but its "
            f"columns are {', '.join(schema.names)}."
        )
    images: list[bytes] = []
    targets: list[int] = []
    for file in files:
        for data, target in _iter_rows(file, columns[0], label):
            if not isinstance(data, bytes) or not isinstance(target, int):
                raise DataError(
                    f"{file}, row {len(images)}: expected an encoded image and an integer label, "
                    f"got {type(data).__name__} and {target!r}."
                )
            images.append(data)
            targets.append(target)
    try:
        split = load_images(images, torch.tensor(targets, dtype=torch.int64), None)
    except DataError as error:
        raise DataError(f"{', '.join(map(str, files))}: {error}") from error
    return split, _read_class_names(schema.metadata, label)


def _iter_rows(file: Path, image: str, label: str) -> Iterator[tuple[Any, Any]]:
    import pyarrow as pa  # noqa: PLC0415

    try:
        for batch in _open_parquet(file).iter_batches(batch_size=_ROWS, columns=[image, label]):
            encoded = batch.column(image)
            if pa.types.is_struct(encoded.type):
                encoded = encoded.field("bytes")
            yield from zip(encoded.to_pylist(), batch.column(label).to_pylist(), strict=True)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_error(file, error) from error


def _open_parquet(file: Path) -> Any:  # noqa: ANN401 - pyarrow has no annotations
    try:
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "Reading parquet files") from error
    try:
        return ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_error(file, error) from error


def _unreadable_error(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} can't be read as parquet: {error}; download the file again.")


def _is_image_type(kind: Any) -> bool:  # noqa: ANN401 - pyarrow has no annotations
    """Return whether a column's type is bytes, or a struct with the field `bytes`."""
    if str(kind).startswith("struct"):
        return any(field.name == "bytes" and _is_image_type(field.type) for field in kind)
    return str(kind) in {"binary", "large_binary"}


def _read_class_names(metadata: dict[bytes, bytes] | None, label: str) -> list[str]:
    """Return the class names from the column description that `datasets` writes, if it is there."""
    try:
        description = json.loads((metadata or {})[b"huggingface"])
        names = description["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return []
    return list(map(str, names)) if isinstance(names, list) else []
