"""MNIST and Fashion-MNIST, from the published idx files, and scikit-learn's digits.

An idx file starts with two zero bytes, a byte for the type (8: unsigned bytes), a byte for the
number of dimensions, and each dimension's size as a big-endian integer of four bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rankwise.errors import DataError, MissingExtraError
from rankwise.lab.data import files
from rankwise.lab.data.dataset import ImageDataset, MemorySplit, make_dataset, split_indices
from rankwise.lab.data.files import LimitedFile, find_file, list_folders, require_file

_SIDE = 28
_MAX_IMAGES = 700_000  # ten times the size of the datasets
_STEMS = {"train": "train", "test": "t10k"}
_DIGITS = tuple("0123456789")
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def load_digits() -> ImageDataset:
    """Load the 1,797 handwritten digits of 8 × 8 of scikit-learn; every fifth is for testing.

    Example:
        >>> digits = load_digits()
        >>> len(digits.train), len(digits.test), digits.shape
        (1438, 359, (1, 8, 8))
    """
    try:
        from sklearn import datasets  # noqa: PLC0415 (an optional package)
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "lab", "The dataset digits") from error
    raw = datasets.load_digits()
    grey = np.rint(raw.images * (255 / 16)).astype(np.uint8)  # the levels are 0 … 16
    images = torch.from_numpy(grey).unsqueeze(1)  # (N, 1, 8, 8)
    targets = torch.from_numpy(raw.target).long()
    train, test = (
        MemorySplit(images[indices], targets[indices]) for indices in split_indices(len(images))
    )
    return make_dataset("digits", train, test, _DIGITS, can_flip=False)


def load_mnist(root: Path) -> ImageDataset:
    """Load MNIST: handwritten digits of 28 × 28."""
    folders = list_folders(root, ("mnist", "MNIST", "MNIST/raw"))
    page = "http://yann.lecun.com/exdb/mnist/, or as torchvision downloads them,"
    train, test = _load_splits("mnist", folders, page)
    return make_dataset("mnist", train, test, _DIGITS, can_flip=False)


def load_fashion_mnist(root: Path) -> ImageDataset:
    """Load Fashion-MNIST: clothes of 28 × 28. Debian's dataset-fashion-mnist is found too."""
    folders = list_folders(root, ("fashion-mnist", "FashionMNIST", "FashionMNIST/raw"))
    folders.append(files.SYSTEM_FOLDER / "fashion-mnist")
    page = "https://github.com/zalandoresearch/fashion-mnist"
    train, test = _load_splits("fashion-mnist", folders, page)
    return make_dataset("fashion-mnist", train, test, _CLOTHES)


def _load_splits(name: str, folders: Sequence[Path], page: str) -> tuple[MemorySplit, MemorySplit]:
    """Load both splits from the first folder that has the training images."""
    first = require_file(
        name,
        folders,
        _list_names("train", "images", 3),
        files="train-images-idx3-ubyte.gz and the three other files (or the same without .gz)",
        advice=f"put the four files from {page} into {folders[0]}",
    )
    return _load_split(first.parent, "train"), _load_split(first.parent, "test")


def _load_split(folder: Path, split: str) -> MemorySplit:
    images = _read_idx(_find_idx(folder, split, "images", 3), (_SIDE, _SIDE))
    targets = _read_idx(_find_idx(folder, split, "labels", 1), ())
    return MemorySplit(images.unsqueeze(1), targets.long())


def _find_idx(folder: Path, split: str, part: str, dimensions: int) -> Path:
    names = _list_names(split, part, dimensions)
    path = find_file([folder], names)
    if path is None:
        raise DataError(f"{folder} lacks {names[-1]}; put it into the same folder.")
    return path


def _list_names(split: str, part: str, dimensions: int) -> tuple[str, ...]:
    """List the names of a file; some programs turn the second hyphen into a dot."""
    stem, end = f"{_STEMS[split]}-{part}", f"idx{dimensions}-ubyte"
    return f"{stem}-{end}", f"{stem}.{end}", f"{stem}.{end}.gz", f"{stem}-{end}.gz"


def _read_idx(path: Path, item: tuple[int, ...]) -> Tensor:
    """Read an idx file as uint8 (N, *item), no further than its header says."""
    magic = bytes([0, 0, 8, 1 + len(item)])
    header_size = len(magic) + 4 * (1 + len(item))
    with LimitedFile(path, header_size) as file:
        header = file.read(header_size)
        if len(header) < header_size or not header.startswith(magic):
            raise DataError(
                f"{path} is not the expected idx file: it should start with {magic.hex()} and "
                f"{1 + len(item)} sizes, got {header.hex() or 'nothing'}."
            )
        count, *sizes = struct.unpack(f">{1 + len(item)}I", header[len(magic) :])
        if tuple(sizes) != item or not 0 < count <= _MAX_IMAGES:
            expected = " × ".join(map(str, ("N", *item)))
            actual = " × ".join(map(str, (count, *sizes)))
            raise DataError(f"{path}: expected {expected} bytes, but the header says {actual}.")
        length = count * math.prod(item)
        file.set_limit(length)
        data = file.read_rest()
    if len(data) != length:
        raise DataError(
            f"{path} is incomplete: its header says {length} bytes, it has {len(data)}; download "
            "the file again."
        )
    return torch.frombuffer(data, dtype=torch.uint8).view(count, *item)
