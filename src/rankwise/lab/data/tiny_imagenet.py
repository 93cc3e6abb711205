"""Tiny ImageNet in its original layout, as the folder `tiny-imagenet-200` or the zip of it.

Its own test labels were never given out, so the validation pictures are the test.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from rankwise.errors import DataError
from rankwise.lab.data.pictures import FileList, Source, Sources, load_all, sampled_statistics
from rankwise.lab.data.places import first_existing, homes, missing
from rankwise.lab.data.sets import ImageSet

__all__ = ["SIZE", "read"]

SIZE = 64
FOLDER = "tiny-imagenet-200"
TRAINING = re.compile(r"train/(n\d+)/images/[^/]+\.JPEG")


class _Archive:
    """The pictures of a zip, read without unpacking it."""

    def __init__(self, archive: zipfile.ZipFile, names: list[str]) -> None:
        self.archive = archive
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Source:
        return zipfile.Path(self.archive, f"{FOLDER}/{self.names[index]}")


def read(root: Path) -> ImageSet:
    """Read `tiny-imagenet-200/` or `tiny-imagenet-200.zip` into memory.

    They are looked for in ROOT and in `ROOT/tiny-imagenet/`.

    Args:
        root: The folder of all data sets.

    Raises:
        DataError: If neither is there, or it isn't as it was given out.
    """
    parents = [root, *homes(root, ("tiny-imagenet", "TinyImageNet"))]
    found = first_existing(parents, [FOLDER, f"{FOLDER}.zip"])
    if found is None and root.resolve().name == FOLDER:
        found = root
    if found is None:
        advice = f"download {FOLDER}.zip from http://cs231n.stanford.edu and put it into {root}"
        raise missing("tiny-imagenet", f"{FOLDER} or {FOLDER}.zip", parents, advice)
    return _read_folder(found) if found.is_dir() else _read_zip(found)


def _read_folder(folder: Path) -> ImageSet:
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.JPEG")]
    return _image_set(
        folder,
        names,
        lambda name: (folder / name).read_bytes(),
        lambda chosen: FileList(folder, chosen),
    )


def _read_zip(packed: Path) -> ImageSet:
    try:
        with zipfile.ZipFile(packed) as archive:
            names = [name.removeprefix(f"{FOLDER}/") for name in archive.namelist()]
            return _image_set(
                packed,
                names,
                lambda name: archive.read(f"{FOLDER}/{name}"),
                lambda chosen: _Archive(archive, chosen),
            )
    except zipfile.BadZipFile as error:
        raise DataError(
            f"Expected a whole zip, but {packed} is broken ({error}); download it again."
        ) from error


def _image_set(
    place: Path,
    names: list[str],
    content: Callable[[str], bytes],
    sources: Callable[[list[str]], Sources],
) -> ImageSet:
    """Build the set from all names in the layout, and two ways to get at what they name."""
    train = sorted(name for name in names if TRAINING.fullmatch(name))
    labels = dict(_table(place, content, "val/val_annotations.txt"))
    test = sorted(labels)
    kinds = sorted({name.split("/")[1] for name in train})
    if not train or not test or not set(labels.values()) <= set(kinds):
        raise DataError(
            f"Expected train/nXXXXXXXX/images/*.JPEG in {place} for each class that "
            "val/val_annotations.txt names, but some or all are missing; unpack the set again."
        )
    number = {kind: index for index, kind in enumerate(kinds)}
    words = dict(_table(place, content, "words.txt"))
    first = load_all(sources(train), _targets(number, [name.split("/")[1] for name in train]), SIZE)
    second = load_all(
        sources([f"val/images/{name}" for name in test]),
        _targets(number, [labels[name] for name in test]),
        SIZE,
    )
    shape = (3, SIZE, SIZE)
    mean, std = sampled_statistics(first, shape)
    classes = tuple(words.get(kind, kind) for kind in kinds)
    return ImageSet("tiny-imagenet", first, second, classes, shape, mean, std)


def _targets(number: dict[str, int], kinds: list[str]) -> Tensor:
    return torch.tensor([number[kind] for kind in kinds])


def _table(place: Path, content: Callable[[str], bytes], name: str) -> list[tuple[str, str]]:
    """The first two columns of a file with tabs."""
    try:
        lines = content(name).decode().splitlines()
        return [(key, value) for key, value, *_ in (line.split("\t") for line in lines if line)]
    except (KeyError, OSError, ValueError) as error:
        raise DataError(
            f"Expected {name} in {place} as it was given out, but it can't be read ({error}); "
            "unpack or download the set again."
        ) from error
