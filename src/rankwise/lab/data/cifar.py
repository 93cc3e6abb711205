"""CIFAR-10 and CIFAR-100, from the published binary version or from parquet files.

In the binary version an image is its label (CIFAR-100: the coarse one, then the fine one), a byte
each, then 32 × 32 bytes of red, of green and of blue. The Python version is pickled: reading it
could run code, so it is refused.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from rankwise.errors import DataError
from rankwise.lab.data.dataset import ImageDataset, MemorySplit, make_dataset
from rankwise.lab.data.files import (
    LimitedFile,
    damaged_error,
    find_file,
    list_folders,
    missing_error,
)
from rankwise.lab.data.hugging_face import read_parquet_images

_HOME_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_MAX_BYTES = 1 << 28  # the datasets decompress to 185 MB


@dataclass(frozen=True, slots=True)
class _Layout:
    name: str
    aliases: tuple[str, ...]  # of its own folder
    folder: str
    archive: str
    pickled: tuple[str, ...]
    train: tuple[str, ...]
    test: str
    class_names: str
    label_bytes: int  # before an image; the last one is used
    classes: int
    label_column: str  # in parquet files


_CIFAR10 = _Layout(
    name="cifar10",
    aliases=("cifar10", "cifar-10"),
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    pickled=("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    class_names="batches.meta.txt",
    label_bytes=1,
    classes=10,
    label_column="label",
)
_CIFAR100 = _Layout(
    name="cifar100",
    aliases=("cifar100", "cifar-100"),
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    pickled=("cifar-100-python", "cifar-100-python.tar.gz"),
    train=("train.bin",),
    test="test.bin",
    class_names="fine_label_names.txt",
    label_bytes=2,
    classes=100,
    label_column="fine_label",
)


def load_cifar10(root: Path) -> ImageDataset:
    """Load CIFAR-10: photographs of 10 kinds of things, 32 × 32."""
    return _load(_CIFAR10, root)


def load_cifar100(root: Path) -> ImageDataset:
    """Load CIFAR-100: photographs of 100 kinds of things, 32 × 32, with the fine labels."""
    return _load(_CIFAR100, root)


def _load(layout: _Layout, root: Path) -> ImageDataset:
    own_folders = list_folders(root, layout.aliases)
    folders = [root, *own_folders]
    if folder := find_file(folders, [layout.folder]):
        return _load_binary(layout, folder, _read_folder(layout, folder))
    if archive := find_file(folders, [layout.archive, layout.archive.removesuffix(".gz")]):
        return _load_binary(layout, archive, _read_archive(layout, archive))
    for folder in own_folders:
        if train := _list_shards(folder, "train"):
            return _load_parquet(layout, train, _list_shards(folder, "test"))
    if pickled := find_file(folders, layout.pickled):
        raise DataError(
            f"{pickled} is the Python version of {layout.name}, which is pickled: reading it could "
            f"run code; put the binary version, {layout.archive} from {_HOME_PAGE}, into {root}."
        )
    raise missing_error(
        layout.name,
        folders,
        files=f"{layout.folder}/, {layout.archive} and train*.parquet with test*.parquet",
        advice=f"put {layout.archive}, the binary version from {_HOME_PAGE}, into {root}",
    )


def _read_folder(layout: _Layout, folder: Path) -> dict[str, bytearray]:
    contents = {}
    for name in (*layout.train, layout.test, layout.class_names):
        if (folder / name).is_file():
            with LimitedFile(folder / name, _MAX_BYTES) as file:
                contents[name] = file.read_rest()
    return contents


def _read_archive(layout: _Layout, path: Path) -> dict[str, bytearray]:
    """Read the needed members of a tar archive; nothing is extracted to disk."""
    needed = {
        PurePosixPath(layout.folder, name): name
        for name in (*layout.train, layout.test, layout.class_names)
    }
    contents: dict[str, bytearray] = {}
    try:
        with (
            LimitedFile(path, _MAX_BYTES) as packed,
            tarfile.open(fileobj=packed, mode="r|") as archive,
        ):
            for member in archive:
                name = needed.get(PurePosixPath(member.name))
                file = archive.extractfile(member) if name and member.isfile() else None
                if name and file and name not in contents:
                    contents[name] = bytearray(file.read())
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise damaged_error(path, error) from error
    return contents


def _load_binary(layout: _Layout, path: Path, contents: dict[str, bytearray]) -> ImageDataset:
    missing = [name for name in (*layout.train, layout.test) if name not in contents]
    if missing:
        raise DataError(
            f"{path} lacks {', '.join(missing)}; get {layout.archive} again from {_HOME_PAGE}."
        )
    train = [_parse_records(layout, f"{path}: {name}", contents[name]) for name in layout.train]
    joined = MemorySplit(
        torch.cat([split.inputs for split in train]), torch.cat([split.targets for split in train])
    )
    test = _parse_records(layout, f"{path}: {layout.test}", contents[layout.test])
    names = contents.get(layout.class_names, bytearray()).decode("utf-8", "replace").split()
    return make_dataset(layout.name, joined, test, _choose_class_names(layout, names))


def _parse_records(layout: _Layout, name: str, data: bytearray) -> MemorySplit:
    size = layout.label_bytes + _PIXELS
    if not data or len(data) % size:
        raise DataError(
            f"{name} is incomplete: expected a multiple of {size} bytes, got {len(data)}."
        )
    records = torch.frombuffer(data, dtype=torch.uint8).view(-1, size)
    images = records[:, layout.label_bytes :].reshape(-1, *_SHAPE)
    return MemorySplit(images, records[:, layout.label_bytes - 1].long())


def _list_shards(folder: Path, split: str) -> list[Path]:
    """List the parquet files of a split, in the folder itself or one below it."""
    return sorted(folder.glob(f"{split}*.parquet")) or sorted(folder.glob(f"*/{split}*.parquet"))


def _load_parquet(layout: _Layout, train: Sequence[Path], test: Sequence[Path]) -> ImageDataset:
    if not test:
        raise DataError(f"{train[0].parent} lacks test*.parquet; put it into the same folder.")
    train_split, names = read_parquet_images(train, label=layout.label_column)
    test_split, _ = read_parquet_images(test, label=layout.label_column)
    return make_dataset(layout.name, train_split, test_split, _choose_class_names(layout, names))


def _choose_class_names(layout: _Layout, names: Sequence[str]) -> Sequence[str]:
    """Return the class names, or numbers if the list of names is incomplete."""
    return names if len(names) == layout.classes else [str(n) for n in range(layout.classes)]
