"""CIFAR-10 and CIFAR-100, from the binary version as it is given out, or from parquet files.

In the binary version an image is its label (CIFAR-100: the coarse one, then the fine one), a byte
each, then 32 × 32 bytes of red, of green and of blue. The Python version is pickled: reading it
runs whatever code is in it, so it is refused.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from rankwise.errors import DataError
from rankwise.lab.data.memory import memory_set
from rankwise.lab.data.parquet import find_columns, read_split
from rankwise.lab.data.places import Source, first_existing, homes, missing, read_all
from rankwise.lab.data.sets import ImageSet, MemorySplit

__all__ = ["read_cifar10", "read_cifar100"]

_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
# The sets unpack to 185 MB; more than this is not one of them.
_MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class _Layout:
    """What one of the two sets looks like on disk."""

    name: str
    aliases: tuple[str, ...]  # of its own folder
    folder: str
    archive: str
    pickled: tuple[str, ...]
    train: tuple[str, ...]
    test: str
    names: str
    labels: int  # bytes of labels before an image; the last one counts
    classes: int
    column: str  # of the labels in parquet files


_CIFAR10 = _Layout(
    name="cifar10",
    aliases=("cifar10", "cifar-10"),
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    pickled=("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    names="batches.meta.txt",
    labels=1,
    classes=10,
    column="label",
)
_CIFAR100 = _Layout(
    name="cifar100",
    aliases=("cifar100", "cifar-100"),
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    pickled=("cifar-100-python", "cifar-100-python.tar.gz"),
    train=("train.bin",),
    test="test.bin",
    names="fine_label_names.txt",
    labels=2,
    classes=100,
    column="fine_label",
)


def read_cifar10(root: Path) -> ImageSet:
    """Photographs of 10 kinds of things, 32 × 32."""
    return _read(_CIFAR10, root)


def read_cifar100(root: Path) -> ImageSet:
    """Photographs of 100 kinds of things, 32 × 32; the fine labels."""
    return _read(_CIFAR100, root)


def _read(layout: _Layout, root: Path) -> ImageSet:
    own = homes(root, layout.aliases)
    folders = [root, *own]
    if folder := first_existing(folders, [layout.folder]):
        return _from_binary(layout, folder, _folder_parts(layout, folder))
    if archive := first_existing(folders, [layout.archive, layout.archive.removesuffix(".gz")]):
        return _from_binary(layout, archive, _archive_parts(layout, archive))
    for folder in own:
        if train := _shards(folder, "train"):
            return _from_parquet(layout, train, _shards(folder, "test"))
    if pickled := first_existing(folders, layout.pickled):
        raise DataError(
            f"{pickled} is the Python version of {layout.name}, which is pickled: reading it could "
            f"run code; put the binary version, {layout.archive} from {_PAGE}, into {root}."
        )
    files = f"{layout.folder}/, {layout.archive} and train*.parquet with test*.parquet"
    advice = f"put {layout.archive}, the binary version from its home page {_PAGE}, into {root}"
    raise missing(layout.name, files, folders, advice)


def _folder_parts(layout: _Layout, folder: Path) -> dict[str, bytearray]:
    parts = {}
    for name in (*layout.train, layout.test, layout.names):
        if (folder / name).is_file():
            with Source(folder / name, _MOST_BYTES) as source:
                parts[name] = read_all(source)
    return parts


def _archive_parts(layout: _Layout, path: Path) -> dict[str, bytearray]:
    """The wanted members of a tar archive, which is read through and never extracted."""
    wanted = {
        PurePosixPath(layout.folder, name): name
        for name in (*layout.train, layout.test, layout.names)
    }
    parts: dict[str, bytearray] = {}
    try:
        with (
            Source(path, _MOST_BYTES) as source,
            tarfile.open(fileobj=source, mode="r|") as archive,
        ):
            for member in archive:
                name = wanted.get(PurePosixPath(member.name))
                file = archive.extractfile(member) if name and member.isfile() else None
                if name and file and name not in parts:
                    parts[name] = bytearray(file.read())
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(f"{path} is damaged or cut off ({error}); get the file anew.") from error
    return parts


def _from_binary(layout: _Layout, path: Path, parts: dict[str, bytearray]) -> ImageSet:
    lacking = [name for name in (*layout.train, layout.test) if name not in parts]
    if lacking:
        raise DataError(
            f"{path} lacks {', '.join(lacking)}; get {layout.archive} anew from {_PAGE}."
        )
    train = [_records(layout, f"{path}: {name}", parts[name]) for name in layout.train]
    joined = MemorySplit(
        torch.cat([split.inputs for split in train]), torch.cat([split.targets for split in train])
    )
    test = _records(layout, f"{path}: {layout.test}", parts[layout.test])
    names = parts.get(layout.names, bytearray()).decode("utf-8", "replace").split()
    return memory_set(layout.name, joined, test, _classes(layout, names))


def _records(layout: _Layout, where: str, data: bytearray) -> MemorySplit:
    size = layout.labels + _PIXELS
    if not data or len(data) % size:
        raise DataError(
            f"{where} is cut off: expected a multiple of {size} bytes, found {len(data)}."
        )
    records = torch.frombuffer(data, dtype=torch.uint8).view(-1, size)
    images = records[:, layout.labels :].reshape(-1, *_SHAPE)
    return MemorySplit(images, records[:, layout.labels - 1].long())


def _shards(folder: Path, split: str) -> list[Path]:
    """The parquet files of a split, in the folder itself or one below it."""
    return sorted(folder.glob(f"{split}*.parquet")) or sorted(folder.glob(f"*/{split}*.parquet"))


def _from_parquet(layout: _Layout, train: Sequence[Path], test: Sequence[Path]) -> ImageSet:
    if not test:
        raise DataError(f"{train[0].parent} lacks test*.parquet; put the test images beside it.")
    columns = find_columns(train[0], label=layout.column)
    return memory_set(
        layout.name,
        read_split(train, columns.image, columns.label),
        read_split(test, columns.image, columns.label),
        _classes(layout, columns.classes or ()),
    )


def _classes(layout: _Layout, names: Sequence[str]) -> Sequence[str]:
    """The classes' names, or their numbers if there is no full list of names."""
    return names if len(names) == layout.classes else [str(n) for n in range(layout.classes)]
