"""`hf:NAME_OR_PATH`: a set of images through Hugging Face's `datasets`.

A hub id, a folder of parquet files, a parquet file (or a pattern such as `data/*.parquet`), or a
folder that `save_to_disk` wrote. No code from the hub is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

import rankwise
from rankwise.errors import DataError
from rankwise.lab.data.pictures import Source, sampled_statistics, splits_of
from rankwise.lab.data.sets import ImageSet

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

__all__ = ["read"]

TEST_SPLITS = ("test", "validation", "valid", "val")
LABELS = ("fine_label", "label", "labels")  # in this order; coarse labels only if nothing else
EVERY = 5  # where there is no test split, every fifth row is for the test


class _Rows:
    """The encoded images of a table: read from the disk when asked for, picklable for workers."""

    def __init__(self, table: Dataset, column: str) -> None:
        self.table = table
        self.column = column

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Source:
        cell = cast(dict[str, Any], self.table[index][self.column] or {})
        if cell.get("bytes"):
            return bytes(cell["bytes"])
        if cell.get("path"):
            return Path(cell["path"])
        raise DataError(
            f"Expected an image in column {self.column!r}, but row {index} has none; remove it."
        )


def read(name_or_path: str, image_size: int | None) -> ImageSet:
    """Read a set of images with one label each.

    The images are in the column that says so, the labels in `fine_label`, `label`, `labels` or the
    only column of classes. The test is the split `test` or `validation`, the first that has labels;
    if there is none, every fifth row is for the test.

    Args:
        name_or_path: The hub id or where the files are.
        image_size: Height and width that all images are brought to. None means the size that all
            have in common, or 224 if they differ.

    Raises:
        DataError: If the set can't be had, or has no such columns.
        rankwise.MissingExtraError: If `datasets` is not installed.
    """
    tables = _load(name_or_path)
    if "train" not in tables:
        raise DataError(
            f"Expected a split 'train' in {name_or_path}, but found {', '.join(tables)}; give a "
            "set that has one."
        )
    image, label = _columns(name_or_path, tables["train"])
    train, test = _split(tables, label)
    numbers = [_labels(name_or_path, part, label) for part in (train, test)]
    classes, targets = _classes(name_or_path, train, label, numbers)
    sources = [_Rows(_encoded(part, image), image) for part in (train, test)]
    first, second, shape = splits_of(sources[0], targets[0], sources[1], targets[1], image_size)
    mean, std = sampled_statistics(first, shape)
    return ImageSet(f"hf:{name_or_path}", first, second, classes, shape, mean, std)


def _load(name: str) -> DatasetDict:
    try:
        import datasets  # noqa: PLC0415 (an optional package, and slow to import)
    except ImportError as error:
        raise rankwise.MissingExtraError("datasets", "hf", "Reading hf: data sets") from error
    path = Path(name).expanduser()
    saved = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
    try:
        if saved:
            loaded = datasets.load_from_disk(str(path))
        elif path.suffix == ".parquet":
            loaded = datasets.load_dataset("parquet", data_files=str(path))
        else:
            loaded = datasets.load_dataset(str(path) if path.exists() else name)
    except Exception as error:  # offline, unknown, gated, broken: each raises its own kind
        raise DataError(
            f"Expected a data set of the hub, a folder or parquet files, but {name} can't be "
            f"loaded ({type(error).__name__}: {error}); check the name and the connection, or "
            "give the path of a local copy."
        ) from error
    return loaded if isinstance(loaded, dict) else datasets.DatasetDict(train=loaded)


def _columns(name: str, table: Dataset) -> tuple[str, str]:
    """The columns of the images and of the labels."""
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


def _split(tables: DatasetDict, label: str) -> tuple[Dataset, Dataset]:
    train = tables["train"]
    for name in TEST_SPLITS:
        # On the hub, test labels that are kept secret are -1.
        if name in tables and _labelled(tables[name][label][:]):
            return train, tables[name]
    tested = np.arange(len(train)) % EVERY == EVERY - 1
    return train.select(np.flatnonzero(~tested)), train.select(np.flatnonzero(tested))


def _labelled(values: list[int | None]) -> bool:
    return bool(values) and all(value is not None and value >= 0 for value in values)


def _labels(name: str, table: Dataset, label: str) -> Tensor:
    values = table[label][:]
    if not _labelled(values):
        raise DataError(
            f"Expected a class for every row in column {label!r} of {name}, but some have none; "
            "remove these rows."
        )
    return torch.tensor(values)


def _classes(
    name: str, table: Dataset, label: str, numbers: list[Tensor]
) -> tuple[tuple[str, ...], list[Tensor]]:
    """The classes' names and the targets; without names, the classes are the numbers found."""
    known = getattr(table.features[label], "names", None)
    if known:
        return tuple(known), numbers
    found = torch.tensor(sorted(set(numbers[0].tolist())))
    extra = numbers[1][~torch.isin(numbers[1], found)]
    if len(extra):
        raise DataError(
            f"Expected the same classes for training and test in {name}, but {int(extra[0])} is in "
            "the test only; add training images or remove it."
        )
    targets = [torch.searchsorted(found, part) for part in numbers]
    return tuple(str(value) for value in found.tolist()), targets


def _encoded(table: Dataset, column: str) -> Dataset:
    """The table with its images as bytes, so that they are decoded by our own rules."""
    import datasets  # noqa: PLC0415

    return table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
