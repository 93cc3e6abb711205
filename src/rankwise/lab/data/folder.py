"""`folder:PATH`: pictures in one folder per class.

Either `PATH/train/CLASS/*` with `PATH/test/CLASS/*` (or `val`, `valid`, `validation`; the first of
them that exists), or `PATH/CLASS/*` only (also `PATH/train/CLASS/*` only). In the latter case every
fifth picture of each class, in the order of the names, is kept for the test.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rankwise.errors import DataError
from rankwise.lab.data.pictures import FileList, sampled_statistics, splits_of
from rankwise.lab.data.sets import ImageSet

__all__ = ["EXTENSIONS", "Listing", "list_classes", "read"]

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
TEST_FOLDERS = ("test", "val", "valid", "validation")
EVERY = 5  # where there is no test folder, every fifth picture of a class is for the test


@dataclass(frozen=True, slots=True)
class Listing:
    """What the class folders below a root hold.

    Attributes:
        root: Where the class folders are.
        pictures: Each class's files, sorted, as CLASS/NAME; classes without any are left out.
        others: How many entries of the class folders are no pictures.
        empty: The class folders without a picture.
    """

    root: Path
    pictures: dict[str, list[str]]
    others: int
    empty: tuple[str, ...]


def read(path: Path, image_size: int | None) -> ImageSet:
    """Read class folders.

    Args:
        path: The folder.
        image_size: Height and width that all pictures are brought to. None means the size that
            all have in common, or 224 if they differ.

    Raises:
        DataError: If there is no such folder, it has no class folders with pictures, or the test
            has a class that the training pictures lack.
    """
    train, test = _listings(path)
    _warn_of_skipped(path, [train] if test is None else [train, test])
    classes = _checked_classes(path, train, test)
    if test is None:
        train_names = {name: _not_every(files) for name, files in train.pictures.items()}
        test_names = {name: files[EVERY - 1 :: EVERY] for name, files in train.pictures.items()}
        test = train
    else:
        train_names, test_names = train.pictures, test.pictures
    if not any(test_names.values()):
        raise DataError(
            f"Expected a class folder with at least {EVERY} pictures in {path}, every fifth being "
            "for the test, but all have fewer; add pictures, or a folder 'test'."
        )
    first, second, shape = splits_of(
        *_flat(train.root, train_names, classes), *_flat(test.root, test_names, classes), image_size
    )
    mean, std = sampled_statistics(first, shape)
    return ImageSet(f"folder:{path}", first, second, classes, shape, mean, std)


def list_classes(root: Path) -> Listing:
    """List the class folders below a root, hidden ones left out; links are followed."""
    pictures: dict[str, list[str]] = {}
    empty, others = [], 0
    for folder in sorted(_folders(root)):
        names = sorted(entry.name for entry in folder.iterdir())
        chosen = [name for name in names if Path(name).suffix.lower() in EXTENSIONS]
        others += len(names) - len(chosen)
        if chosen:
            pictures[folder.name] = [f"{folder.name}/{name}" for name in chosen]
        else:
            empty.append(folder.name)
    return Listing(root, pictures, others, tuple(empty))


def _folders(root: Path) -> list[Path]:
    return [entry for entry in root.iterdir() if entry.is_dir() and entry.name[0] != "."]


def _listings(path: Path) -> tuple[Listing, Listing | None]:
    if not path.is_dir():
        raise DataError(
            f"Expected a folder with one folder of pictures per class, but there is no folder "
            f"{path}; give an existing one, as in folder:PATH."
        )
    train = path / "train"
    if not train.is_dir() or not _folders(train):  # "train" may be a class beside "car" and "bus"
        return list_classes(path), None
    for name in TEST_FOLDERS:
        if (path / name).is_dir():
            return list_classes(train), list_classes(path / name)
    return list_classes(train), None


def _checked_classes(path: Path, train: Listing, test: Listing | None) -> tuple[str, ...]:
    if len(train.pictures) < 2:
        raise DataError(
            f"Expected at least two class folders with pictures in {train.root}, but found "
            f"{len(train.pictures)}; put each class's pictures into a folder of its own "
            f"({', '.join(sorted(EXTENSIONS))})."
        )
    extra = sorted(set(test.pictures if test else ()) - set(train.pictures))
    if extra:
        raise DataError(
            f"Expected the same classes for training and test in {path}, but {extra[0]!r} "
            f"({len(extra)} in all) has test pictures only; add training pictures or remove it."
        )
    return tuple(sorted(train.pictures))


def _not_every(files: list[str]) -> list[str]:
    return [file for index, file in enumerate(files) if index % EVERY != EVERY - 1]


def _flat(
    root: Path, names: dict[str, list[str]], classes: tuple[str, ...]
) -> tuple[FileList, Tensor]:
    """All files in one list, and the class of each."""
    counts = torch.tensor([len(names.get(name, ())) for name in classes])
    files = [file for name in classes for file in names.get(name, ())]
    return FileList(root, files), torch.arange(len(classes)).repeat_interleave(counts)


def _warn_of_skipped(path: Path, listings: list[Listing]) -> None:
    others = sum(listing.others for listing in listings)
    empty = sum(len(listing.empty) for listing in listings)
    if others or empty:
        warnings.warn(
            f"Skipped in {path}: {others} entries that are no pictures and {empty} class folders "
            "without pictures.",
            stacklevel=3,
        )
