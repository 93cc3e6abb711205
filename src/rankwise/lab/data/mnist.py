"""MNIST and Fashion-MNIST, from the idx files in which they were first given out.

An idx file starts with two zero bytes, a byte for the type (8: unsigned bytes), a byte for the
number of dimensions, and each dimension's size as a big-endian integer of four bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from rankwise.errors import DataError
from rankwise.lab.data.memory import memory_set
from rankwise.lab.data.places import Source, first_existing, homes, missing, read_all
from rankwise.lab.data.sets import ImageSet, MemorySplit

__all__ = ["read_fashion_mnist", "read_mnist"]

# Where the Debian package dataset-fashion-mnist puts its files.
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_SIDE = 28
# Ten times the number of images that the sets have: enough for any idx file meant here.
_MOST_IMAGES = 700_000
_STEMS = {"train": "train", "test": "t10k"}
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_mnist(root: Path) -> ImageSet:
    """Handwritten digits of 28 × 28."""
    folders = homes(root, ("mnist", "MNIST", "MNIST/raw"))
    page = "http://yann.lecun.com/exdb/mnist/, or as torchvision downloads them,"
    train, test = _read("mnist", folders, page)
    return memory_set("mnist", train, test, [str(digit) for digit in range(10)], mirrored=False)


def read_fashion_mnist(root: Path) -> ImageSet:
    """Clothes of 28 × 28."""
    folders = homes(root, ("fashion-mnist", "FashionMNIST", "FashionMNIST/raw"))
    page = "https://github.com/zalandoresearch/fashion-mnist"
    train, test = _read("fashion-mnist", [*folders, _DEBIAN], page)
    return memory_set("fashion-mnist", train, test, _CLOTHES)


def _read(name: str, folders: Sequence[Path], page: str) -> tuple[MemorySplit, MemorySplit]:
    """Both splits from the first folder that has any of the files."""
    first = first_existing(folders, _names("train", "images", 3))
    if first is None:
        files = "train-images-idx3-ubyte.gz and its three companions (or the same without .gz)"
        advice = f"put the four files from its home page {page} into {folders[0]}"
        raise missing(name, files, folders, advice)
    return _split(first.parent, "train"), _split(first.parent, "test")


def _split(folder: Path, split: str) -> MemorySplit:
    images = _read_idx(_file(folder, split, "images", 3), (_SIDE, _SIDE))
    targets = _read_idx(_file(folder, split, "labels", 1), ())
    return MemorySplit(images.unsqueeze(1), targets.long())


def _file(folder: Path, split: str, part: str, dimensions: int) -> Path:
    names = _names(split, part, dimensions)
    found = first_existing([folder], names)
    if found is None:
        raise DataError(f"{folder} lacks {names[-1]}; put it beside the other idx files.")
    return found


def _names(split: str, part: str, dimensions: int) -> tuple[str, ...]:
    """The names a file is given out under; some unpackers turn the second hyphen into a dot."""
    stem, end = f"{_STEMS[split]}-{part}", f"idx{dimensions}-ubyte"
    return f"{stem}-{end}", f"{stem}.{end}", f"{stem}.{end}.gz", f"{stem}-{end}.gz"


def _read_idx(path: Path, item: tuple[int, ...]) -> Tensor:
    """The bytes of an idx file as uint8 (N, *item), read no further than its header says."""
    magic = bytes([0, 0, 8, 1 + len(item)])
    header = len(magic) + 4 * (1 + len(item))
    with Source(path, header) as source:
        start = source.read(header)
        if len(start) < header or not start.startswith(magic):
            raise DataError(
                f"{path} is not the idx file it should be: expected it to start with "
                f"{magic.hex()} and {1 + len(item)} sizes, found {start.hex() or 'nothing'}."
            )
        count, *sizes = struct.unpack(f">{1 + len(item)}I", start[len(magic) :])
        if tuple(sizes) != item or not 0 < count <= _MOST_IMAGES:
            shape = " × ".join(map(str, ("N", *item)))
            given = " × ".join(map(str, (count, *sizes)))
            raise DataError(f"{path}: expected {shape} bytes, but the header says {given}.")
        source.allow(count * math.prod(item))
        data = read_all(source)
    if len(data) != count * math.prod(item):
        raise DataError(
            f"{path} is cut off: its header says {count * math.prod(item)} bytes, "
            f"it holds {len(data)}; get the file anew."
        )
    return torch.frombuffer(data, dtype=torch.uint8).view(count, *item)
