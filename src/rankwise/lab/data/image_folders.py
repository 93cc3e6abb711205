"""Datasets of image files, one folder per class: folder:PATH, ImageNet and Tiny ImageNet."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from rankwise.errors import DataError
from rankwise.lab.data.dataset import FileSplit, ImageDataset, split_indices
from rankwise.lab.data.decoding import FileList, ImageReader, LabelledImages, load_image_files
from rankwise.lab.data.files import list_folders, require_file

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
TEST_FOLDERS = ("test", "val", "valid", "validation")

IMAGENET_SIZE = 224
IMAGENET_RESIZE = 256  # length of a test image's shorter side before the crop
# Of the training images; published with the first pretrained networks and used ever since.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

TINY_SIZE = 64
TINY_FOLDER = "tiny-imagenet-200"
_TINY_TRAINING = re.compile(r"train/(n\d+)/images/[^/]+\.JPEG")


@dataclass(frozen=True, slots=True)
class _ClassFolders:
    """The images in the class folders below a root."""

    root: Path
    images: dict[str, list[str]]  # sorted files of each class, as CLASS/NAME; no empty classes
    others: int  # files in the class folders that are not images
    empty: int  # class folders without an image


def load_folder(path: Path, image_size: int | None) -> ImageDataset:
    """Load `folder:PATH`, images in one folder per class.

    Either `PATH/train/CLASS/*` with `PATH/test/CLASS/*` (or `val`, `valid`, `validation`: the
    first that exists), or only `PATH/CLASS/*` or `PATH/train/CLASS/*`. Without a test folder, every
    fifth image of each class, in the order of the names, is for testing.
    """
    train, test = _list_splits(path)
    _warn_about_skipped(path, [train] if test is None else [train, test])
    classes = _check_classes(path, train, test)
    if test is None:
        indices = {name: split_indices(len(files)) for name, files in train.images.items()}
        train_images, test_images = (
            {name: [files[i] for i in indices[name][part]] for name, files in train.images.items()}
            for part in (0, 1)
        )
        test = train
    else:
        train_images, test_images = train.images, test.images
    if not any(test_images.values()):
        raise DataError(
            f"Expected a class folder with at least 5 images in {path}, every fifth of which is "
            "for testing, but all have fewer; add images, or a folder 'test'."
        )
    return load_image_files(
        f"folder:{path}",
        _label_files(train.root, train_images, classes),
        _label_files(test.root, test_images, classes),
        classes,
        size=image_size,
    )


def _list_splits(path: Path) -> tuple[_ClassFolders, _ClassFolders | None]:
    if not path.is_dir():
        raise DataError(
            f"Expected a folder with one folder of images per class, but there is no folder "
            f"{path}; give an existing one, as in folder:PATH."
        )
    train = path / "train"
    if not train.is_dir() or not _list_subfolders(train):  # "train" may be a class, next to "bus"
        return _list_class_folders(path), None
    for name in TEST_FOLDERS:
        if (path / name).is_dir():
            return _list_class_folders(train), _list_class_folders(path / name)
    return _list_class_folders(train), None


def _list_class_folders(root: Path) -> _ClassFolders:
    """List the class folders below a root except hidden ones; links are followed."""
    images: dict[str, list[str]] = {}
    empty, others = 0, 0
    for folder in sorted(_list_subfolders(root)):
        names = sorted(entry.name for entry in folder.iterdir())
        image_names = [name for name in names if Path(name).suffix.lower() in EXTENSIONS]
        others += len(names) - len(image_names)
        if image_names:
            images[folder.name] = [f"{folder.name}/{name}" for name in image_names]
        else:
            empty += 1
    return _ClassFolders(root, images, others, empty)


def _list_subfolders(root: Path) -> list[Path]:
    return [entry for entry in root.iterdir() if entry.is_dir() and entry.name[0] != "."]


def _check_classes(path: Path, train: _ClassFolders, test: _ClassFolders | None) -> tuple[str, ...]:
    if len(train.images) < 2:
        raise DataError(
            f"Expected at least two class folders with images in {train.root}, but found "
            f"{len(train.images)}; put the images of each class into a folder of its own "
            f"({', '.join(sorted(EXTENSIONS))})."
        )
    extra = sorted(set(test.images if test else ()) - set(train.images))
    if extra:
        raise DataError(
            f"Expected the same classes for training and test in {path}, but {extra[0]!r} "
            f"({len(extra)} in all) has test images only; add training images or remove it."
        )
    return tuple(sorted(train.images))


def _label_files(
    root: Path, names: Mapping[str, list[str]], classes: Iterable[str]
) -> LabelledImages:
    """Put all files into one list, with the class of each."""
    lists = [names.get(name, []) for name in classes]
    targets = torch.arange(len(lists)).repeat_interleave(torch.tensor(list(map(len, lists))))
    return LabelledImages(FileList(root, list(chain.from_iterable(lists))), targets)


def _warn_about_skipped(path: Path, folders: list[_ClassFolders]) -> None:
    others = sum(folder.others for folder in folders)
    empty = sum(folder.empty for folder in folders)
    if others or empty:
        warnings.warn(
            f"Skipped in {path}: {others} files that are not images and {empty} class folders "
            "without images.",
            stacklevel=3,
        )


def load_imagenet(root: Path) -> ImageDataset:
    """Load ImageNet (ILSVRC 2012), streamed from `ROOT/imagenet/{train,val}/nXXXXXXXX/*.JPEG`.

    Training images keep their size, for random crops. The validation images are the test: their
    shorter side is resized to 256 pixels and the centre of 224×224 is cropped.
    """
    folders = list_folders(root, ("imagenet", "ImageNet"))
    train_folder = require_file(
        "imagenet",
        folders,
        ["train"],
        files="the folders train and val",
        advice=f"unpack ILSVRC 2012 as {folders[0]}/train/nXXXXXXXX/*.JPEG and likewise val",
    )
    train, test = _list_imagenet(train_folder), _list_imagenet(train_folder.parent / "val")
    different = sorted(train.images.keys() ^ test.images.keys())
    if different:
        raise DataError(
            f"Expected the same classes in {train.root} and {test.root}, but {different[0]} "
            f"({len(different)} in all) has images in one of them only; unpack the archives again."
        )
    classes = tuple(train.images)
    train_files = _label_files(train.root, train.images, classes)
    test_files = _label_files(test.root, test.images, classes)
    test_reader = ImageReader(test_files.images, IMAGENET_SIZE, IMAGENET_RESIZE)
    return ImageDataset(
        name="imagenet",
        train=FileSplit(ImageReader(train_files.images), train_files.targets),
        test=FileSplit(test_reader, test_files.targets),
        classes=classes,
        shape=(3, IMAGENET_SIZE, IMAGENET_SIZE),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


def _list_imagenet(folder: Path) -> _ClassFolders:
    listing = _list_class_folders(folder) if folder.is_dir() else None
    if listing is None or not listing.images:
        raise DataError(
            f"Expected ImageNet's images as {folder}/nXXXXXXXX/*.JPEG, one folder per class, but "
            f"found {'none' if listing else 'no such folder'}; sort the images into class folders "
            "there."
        )
    return listing


def load_tiny_imagenet(root: Path) -> ImageDataset:
    """Load `tiny-imagenet-200/` or `tiny-imagenet-200.zip` from ROOT or `ROOT/tiny-imagenet/`.

    The labels of its test images were never published, so the validation images are the test.
    """
    folders = [root, *list_folders(root, ("tiny-imagenet", "TinyImageNet"))]
    if root.resolve().name == TINY_FOLDER:
        folders.append(root.resolve().parent)
    path = require_file(
        "tiny-imagenet",
        folders,
        [TINY_FOLDER, f"{TINY_FOLDER}.zip"],
        files=f"{TINY_FOLDER} or {TINY_FOLDER}.zip",
        advice=f"download {TINY_FOLDER}.zip from http://cs231n.stanford.edu and put it into {root}",
    )
    if path.is_dir():
        return _load_tiny(
            path, [file.relative_to(path).as_posix() for file in path.rglob("*.JPEG")]
        )
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removeprefix(f"{TINY_FOLDER}/") for name in archive.namelist()]
            return _load_tiny(zipfile.Path(archive, f"{TINY_FOLDER}/"), names)
    except zipfile.BadZipFile as error:
        raise DataError(
            f"Expected a complete zip file, but {path} is broken ({error}); download it again."
        ) from error


def _load_tiny(folder: Path | zipfile.Path, names: list[str]) -> ImageDataset:
    """Load the dataset from a folder, unpacked or in a zip file, and the names of its files."""
    train = sorted(name for name in names if _TINY_TRAINING.fullmatch(name))
    test_classes = dict(_read_columns(folder, "val/val_annotations.txt"))
    test = sorted(test_classes)
    train_classes = [name.split("/")[1] for name in train]
    classes = sorted(set(train_classes))
    if not train or not test or not set(test_classes.values()) <= set(classes):
        raise DataError(
            f"Expected train/nXXXXXXXX/images/*.JPEG in {folder} for each class in "
            "val/val_annotations.txt, but some or all are missing; unpack the dataset again."
        )
    numbers = {name: number for number, name in enumerate(classes)}
    words = dict(_read_columns(folder, "words.txt"))

    def label(files: list[str], file_classes: Iterable[str]) -> LabelledImages:
        targets = torch.tensor([numbers[name] for name in file_classes])
        return LabelledImages([folder / file for file in files], targets)

    return load_image_files(
        "tiny-imagenet",
        label(train, train_classes),
        label([f"val/images/{name}" for name in test], [test_classes[name] for name in test]),
        [words.get(name, name) for name in classes],
        size=TINY_SIZE,
        stream=False,
    )


def _read_columns(folder: Path | zipfile.Path, name: str) -> list[tuple[str, str]]:
    """Return the first two columns of a tab-separated file."""
    try:
        lines = (folder / name).read_bytes().decode().splitlines()
        return [(key, value) for key, value, *_ in (line.split("\t") for line in lines if line)]
    except (KeyError, OSError, ValueError) as error:
        raise DataError(
            f"Expected the original {name} in {folder}, but it can't be read ({error}); unpack or "
            "download the dataset again."
        ) from error
