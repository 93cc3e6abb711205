"""Datasets once they are loaded: images in memory, images in files, or text."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from rankwise.errors import ConfigError, DataError

_CHUNK = 1024  # images that are converted at once
_TEST_INTERVAL = 5


class Batch(NamedTuple):
    """The data of one step."""

    inputs: Tensor  # images: normalised float (B, C, H, W); text: words (T, B)
    targets: Tensor  # classes (B,), labels as float (B, K), or the next words (T, B)


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Images in memory."""

    inputs: Tensor  # uint8 (N, C, H, W)
    targets: Tensor  # int64 (N,), or float32 (N, K) if an image may have several labels

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, slots=True)
class FileSplit:
    """Images that are read from files when they are needed."""

    read: Callable[[int], Tensor]  # index → uint8 (C, h, w), of any size; picklable, for workers
    targets: Tensor  # as in MemorySplit

    def __len__(self) -> int:
        return len(self.targets)


Split = MemorySplit | FileSplit


@dataclass(frozen=True, slots=True)
class ImageDataset:
    """Images with their classes."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]  # in the order of the targets
    shape: tuple[int, int, int]  # channels, height and width of the network's input
    mean: tuple[float, ...]  # of each channel over the training images, on the scale 0 … 1
    std: tuple[float, ...]
    multilabel: bool = False  # an image may have several labels
    can_flip: bool = True  # a mirrored image means the same (a mirrored digit does not)


@dataclass(frozen=True, slots=True)
class TextDataset:
    """Text as word numbers."""

    name: str
    train: Tensor  # int64 (N,)
    test: Tensor
    words: tuple[str, ...]  # in the order of the numbers; unknown words are "<unk>"


def make_dataset(
    name: str,
    train: Split,
    test: Split,
    classes: Sequence[str],
    *,
    shape: tuple[int, int, int] | None = None,
    sample: int | None = None,
    can_flip: bool = True,
    multilabel: bool = False,
) -> ImageDataset:
    """Check two splits and make a dataset of them, with the statistics of the training images.

    Images in files need a shape. With `sample`, mean and deviation are measured on that many
    images, else on all.
    """
    for split in (train, test):
        _check_split(name, split, len(classes), multilabel)
    if isinstance(train, MemorySplit) and isinstance(test, MemorySplit):
        train_shape, test_shape = (tuple(split.inputs.shape[1:]) for split in (train, test))
        if train_shape != test_shape:
            raise DataError(
                f"{name}: expected training and test images of one shape, got {train_shape} and "
                f"{test_shape}."
            )
        shape = shape or (train_shape[0], train_shape[1], train_shape[2])
    if shape is None:
        raise TypeError("Expected a shape for images in files.")
    mean, std = measure_channels(_sample_images(train, shape, sample))
    return ImageDataset(
        name,
        train,
        test,
        tuple(classes),
        shape,
        mean,
        std,
        multilabel=multilabel,
        can_flip=can_flip,
    )


def _check_split(name: str, split: Split, classes: int, multilabel: bool) -> None:
    if len(split) == 0 or len(split) != len(split.targets):
        raise DataError(
            f"{name}: expected as many labels as images and at least one, got {len(split)} images "
            f"and {len(split.targets)} labels."
        )
    if multilabel:
        return
    lowest, highest = int(split.targets.min()), int(split.targets.max())
    if lowest < 0 or highest >= classes:
        raise DataError(
            f"{name}: expected labels from 0 to {classes - 1}, got labels from {lowest} to "
            f"{highest}."
        )


def _sample_images(split: Split, shape: tuple[int, int, int], sample: int | None) -> Tensor:
    """Return evenly spaced images of a split, all of one size: uint8 (N, C, H, W)."""
    if sample is None and isinstance(split, MemorySplit):
        return split.inputs
    count = len(split) if sample is None else min(len(split), sample)
    indices = torch.linspace(0, len(split) - 1, count).long()
    if isinstance(split, MemorySplit):
        return split.inputs[indices]
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        images = pool.map(split.read, indices.tolist())
        return torch.stack([crop_to_size(image, *shape[1:]) for image in images])


def measure_channels(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 (N, C, H, W), scaled to 0 … 1.

    Both are exact to rounding. A constant channel gets the deviation 1, so that it can be divided
    by.

    Example:
        >>> measure_channels(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2))
        ((0.5,), (0.5,))
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        share = _count_levels(images[:, channel]).double() / images[:, channel].numel()
        mean = float(share @ levels)
        means.append(mean)
        deviations.append(math.sqrt(float(share @ (levels - mean) ** 2)) or 1.0)
    return tuple(means), tuple(deviations)


def _count_levels(channel: Tensor) -> Tensor:
    """Count how often each of the 256 levels occurs: (N, H, W) → int64 (256,)."""
    counts = torch.zeros(256, dtype=torch.int64)
    for first in range(0, len(channel), _CHUNK):
        counts += torch.bincount(channel[first : first + _CHUNK].flatten(), minlength=256)
    return counts


def resize_image(image: Tensor, height: int, width: int) -> Tensor:
    """Resize an image, uint8 (C, h, w), without regard to its aspect ratio."""
    return interpolate(image[None], size=(height, width), mode="bilinear", antialias=True)[0]


def crop_to_size(image: Tensor, height: int, width: int) -> Tensor:
    """Crop the centre of an image, uint8 (C, h, w), to the aspect ratio of a size and resize it."""
    if image.shape[1:] == (height, width):
        return image
    scale = min(image.shape[1] / height, image.shape[2] / width)
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    top, left = (image.shape[1] - rows) // 2, (image.shape[2] - columns) // 2
    return resize_image(image[:, top : top + rows, left : left + columns], height, width)


def resize_dataset(dataset: ImageDataset, size: int) -> ImageDataset:
    """Return the dataset with images of `size` × `size`.

    Images in memory are resized at once, by antialiased bilinear interpolation; images in files
    when they are read.
    """
    train, test = dataset.train, dataset.test
    if dataset.shape[1:] == (size, size):
        return dataset
    if not (isinstance(train, MemorySplit) and isinstance(test, MemorySplit)):
        return replace(dataset, shape=(dataset.shape[0], size, size))
    return make_dataset(
        dataset.name,
        _resize_split(train, size),
        _resize_split(test, size),
        dataset.classes,
        can_flip=dataset.can_flip,
        multilabel=dataset.multilabel,
    )


def _resize_split(split: MemorySplit, size: int) -> MemorySplit:
    channels = split.inputs.shape[1]
    inputs = torch.empty(len(split), channels, size, size, dtype=torch.uint8)
    for first in range(0, len(split), _CHUNK):
        chunk = split.inputs[first : first + _CHUNK].float()
        resized = interpolate(chunk, (size, size), mode="bilinear", antialias=True)
        inputs[first : first + _CHUNK] = resized.round_().clamp_(0, 255)
    return MemorySplit(inputs, split.targets)


def split_indices(count: int) -> tuple[list[int], list[int]]:
    """Split images that have no test split: every fifth is for testing.

    Example:
        >>> split_indices(7)
        ([0, 1, 2, 3, 5, 6], [4])
    """
    test = range(_TEST_INTERVAL - 1, count, _TEST_INTERVAL)
    return [index for index in range(count) if index not in test], list(test)


def take_subset(
    dataset: ImageDataset | TextDataset, size: int, *, validate: bool
) -> ImageDataset | TextDataset:
    """Return the dataset with fewer training images, or words, and perhaps another test split.

    The images are the first ones of each class, in proportion to the class's size; the words are
    the first ones. With `validate`, the next ones, at most as many as the test split has, replace
    it. The choice does not depend on a run's seed. Means and deviations stay those of the whole
    training split.

    Example:
        >>> from pathlib import Path
        >>> from rankwise.lab.data import load_dataset
        >>> part = take_subset(load_dataset("digits", Path("data")), 1000, validate=True)
        >>> len(part.train), len(part.test)
        (1000, 359)
    """
    count = len(dataset.train)
    if size > (count - 1 if validate else count):
        rest = ", of which some must be left for validate" if validate else ""
        unit = "words" if isinstance(dataset, TextDataset) else "images"
        raise ConfigError(
            f"Expected train_size of at most the {count:,} training {unit} of {dataset.name}"
            f"{rest}, got {size:,}."
        )
    end = size + min(len(dataset.test), count - size)
    if isinstance(dataset, TextDataset):
        text = dataset.train[size:end] if validate else dataset.test
        return replace(dataset, train=dataset.train[:size], test=text)
    order = _interleave_classes(dataset.train.targets)
    test = _select_images(dataset.train, order[size:end]) if validate else dataset.test
    return replace(dataset, train=_select_images(dataset.train, order[:size]), test=test)


def _interleave_classes(targets: Tensor) -> Tensor:
    """Order all indices so that any first part of them has each class in proportion.

    The k-th of a class's n images is placed at (k + ½)/n. Images with several labels come in a
    fixed random order.
    """
    if targets.ndim > 1:
        return torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    position = torch.empty(len(targets), dtype=torch.float64)
    for label in range(int(targets.max()) + 1):
        members = (targets == label).nonzero().flatten()
        position[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    return torch.argsort(position, stable=True)


def _select_images(split: Split, indices: Tensor) -> Split:
    if isinstance(split, MemorySplit):
        return MemorySplit(split.inputs[indices], split.targets[indices])
    return FileSplit(_SubsetReader(split.read, tuple(indices.tolist())), split.targets[indices])


@dataclass(frozen=True, slots=True)
class _SubsetReader:
    """Read some of a split's images by new numbers; picklable, for workers."""

    read: Callable[[int], Tensor]
    indices: tuple[int, ...]

    def __call__(self, index: int) -> Tensor:
        return self.read(self.indices[index])
