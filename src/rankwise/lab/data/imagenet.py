"""ImageNet (ILSVRC 2012) in the usual form: one folder of JPEG files per class, streamed."""

from __future__ import annotations

from pathlib import Path

import torch

from rankwise.errors import DataError
from rankwise.lab.data.folder import Listing, list_classes
from rankwise.lab.data.pictures import FileList, Pictures
from rankwise.lab.data.places import first_existing, homes, missing
from rankwise.lab.data.sets import FileSplit, ImageSet

__all__ = ["MEAN", "SIZE", "STD", "TEST_RESIZE", "read"]

SIZE = 224
TEST_RESIZE = 256  # the shorter side's length before the middle is cut out
# Of the training images; published with the first pretrained networks and used ever since.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def read(root: Path) -> ImageSet:
    """Read `ROOT/imagenet/{train,val}/nXXXXXXXX/*.JPEG`.

    Training images are given as they are, for random-resized crops. The test is the validation
    set: the shorter side becomes 256 pixels long and the middle 224×224 are cut out.

    Args:
        root: The folder of all data sets.

    Raises:
        DataError: If the folders are missing or don't have the same classes.
    """
    folders = homes(root, ("imagenet", "ImageNet"))
    found = first_existing(folders, ["train"])
    if found is None:
        advice = (
            f"unpack ILSVRC 2012 there, as {folders[0]}/train/nXXXXXXXX/*.JPEG and likewise val"
        )
        raise missing("imagenet", "the folders train and val", folders, advice)
    folder = found.parent
    train, test = _listing(folder / "train"), _listing(folder / "val")
    if train.pictures.keys() != test.pictures.keys():
        odd = sorted(train.pictures.keys() ^ test.pictures.keys())
        raise DataError(
            f"Expected the same classes in {train.root} and {test.root}, but {odd[0]} "
            f"({len(odd)} in all) has pictures in one of them only; unpack the archives again."
        )
    return ImageSet(
        name="imagenet",
        train=_split(train, None, None),
        test=_split(test, SIZE, TEST_RESIZE),
        classes=tuple(train.pictures),
        shape=(3, SIZE, SIZE),
        mean=MEAN,
        std=STD,
    )


def _listing(folder: Path) -> Listing:
    listing = list_classes(folder) if folder.is_dir() else None
    if listing is None or not listing.pictures:
        raise DataError(
            f"Expected ImageNet's pictures as {folder}/nXXXXXXXX/*.JPEG, one folder per class, but "
            f"found {'none' if listing else 'no such folder'}; sort the pictures into class "
            "folders there."
        )
    return listing


def _split(listing: Listing, size: int | None, resize: int | None) -> FileSplit:
    files = [file for names in listing.pictures.values() for file in names]
    counts = torch.tensor([len(names) for names in listing.pictures.values()])
    targets = torch.arange(len(counts)).repeat_interleave(counts)
    return FileSplit(Pictures(FileList(listing.root, files), size, resize), targets)
