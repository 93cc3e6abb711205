"""Sets of images that are small enough to be held in memory as bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from rankwise.errors import DataError
from rankwise.lab.data.sets import ImageSet, MemorySplit

__all__ = ["channel_statistics", "memory_set", "resized"]

_CHUNK = 1024


def memory_set(
    name: str,
    train: MemorySplit,
    test: MemorySplit,
    classes: Sequence[str],
    *,
    mirrored: bool = True,
    multilabel: bool = False,
) -> ImageSet:
    """A set from its two splits, with the mean and deviation of its training images.

    Raises:
        DataError: If a split is empty, if the splits' images differ in shape, or if a target is
            not one of the classes.
    """
    for split in (train, test):
        _check(name, split, len(classes), multilabel)
    if train.inputs.shape[1:] != test.inputs.shape[1:]:
        raise DataError(
            f"{name}: expected training and test images of one shape, got "
            f"{tuple(train.inputs.shape[1:])} and {tuple(test.inputs.shape[1:])}."
        )
    channels, height, width = train.inputs.shape[1:]
    mean, std = channel_statistics(train.inputs)
    return ImageSet(
        name=name,
        train=train,
        test=test,
        classes=tuple(classes),
        shape=(channels, height, width),
        mean=mean,
        std=std,
        multilabel=multilabel,
        mirrored=mirrored,
    )


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel on the scale 0 … 1, exact to rounding.

    A channel that is the same everywhere gets the deviation 1, so that it can be divided by.

    Args:
        images: uint8 (N, C, H, W).

    Example:
        >>> channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2))
        ((0.5,), (0.5,))
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        share = _histogram(images[:, channel]).double() / images[:, channel].numel()
        mean = float(share @ levels)
        means.append(mean)
        deviations.append(math.sqrt(float(share @ (levels - mean) ** 2)) or 1.0)
    return tuple(means), tuple(deviations)


def resized(images: ImageSet, size: int) -> ImageSet:
    """The same set with images of `size` × `size`, by antialiased bilinear interpolation."""
    if not (isinstance(images.train, MemorySplit) and isinstance(images.test, MemorySplit)):
        raise TypeError("Expected images in memory; images in files are resized as they are read.")
    return memory_set(
        images.name,
        _resized_split(images.train, size),
        _resized_split(images.test, size),
        images.classes,
        mirrored=images.mirrored,
        multilabel=images.multilabel,
    )


def _histogram(channel: Tensor) -> Tensor:
    """How often each of the 256 levels occurs: (N, H, W) → int64 (256,)."""
    counts = torch.zeros(256, dtype=torch.int64)
    for first in range(0, len(channel), _CHUNK):
        counts += torch.bincount(channel[first : first + _CHUNK].flatten(), minlength=256)
    return counts


def _resized_split(split: MemorySplit, size: int) -> MemorySplit:
    channels = split.inputs.shape[1]
    inputs = torch.empty(len(split), channels, size, size, dtype=torch.uint8)
    for first in range(0, len(split), _CHUNK):
        part = split.inputs[first : first + _CHUNK].float()
        scaled = interpolate(part, (size, size), mode="bilinear", antialias=True)
        inputs[first : first + _CHUNK] = scaled.round_().clamp_(0, 255)
    return MemorySplit(inputs, split.targets)


def _check(name: str, split: MemorySplit, classes: int, multilabel: bool) -> None:
    if len(split) == 0 or len(split) != len(split.targets):
        raise DataError(
            f"{name}: expected as many labels as images and at least one, got {len(split)} images "
            f"and {len(split.targets)} labels."
        )
    if multilabel:
        return
    low, high = int(split.targets.min()), int(split.targets.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"{name}: expected labels from 0 to {classes - 1}, found labels from {low} to {high}."
        )
