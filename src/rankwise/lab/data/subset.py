"""A part of a data set: fewer training images or words, and some that are held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankwise.errors import ConfigError
from rankwise.lab.data.sets import FileSplit, ImageSet, MemorySplit, TextSet

__all__ = ["subset"]


def subset(found: ImageSet | TextSet, size: int, *, validate: bool) -> ImageSet | TextSet:
    """The set with fewer training images, or words, and perhaps another test.

    The images are the first ones of each class, as many as its share of all; the words are the
    first. Which they are does not depend on a run's seed. Means and deviations stay those of the
    whole training set.

    Args:
        found: The whole set.
        size: How many to train on.
        validate: Whether those that come next, at most as many as the test has, take its place.

    Raises:
        ConfigError: If there are not enough.

    Example:
        >>> from pathlib import Path
        >>> from rankwise.lab.data import find
        >>> digits = find("digits", Path("data"))
        >>> part = subset(digits, 1000, validate=True)
        >>> len(part.train), len(part.test)
        (1000, 359)
    """
    count = len(found.train)
    most = count - 1 if validate else count
    if size > most:
        rest = ", of which some must be left for validate" if validate else ""
        what = "words" if isinstance(found, TextSet) else "images"
        raise ConfigError(
            f"Expected train_size of at most the {count:,} training {what} of {found.name}{rest}, "
            f"got {size:,}."
        )
    held_out = min(len(found.test), count - size)
    if isinstance(found, TextSet):
        test = found.train[size : size + held_out] if validate else found.test
        return replace(found, train=found.train[:size], test=test)
    order = _fair_order(found.train.targets)
    test_split = _picked(found.train, order[size : size + held_out]) if validate else found.test
    return replace(found, train=_picked(found.train, order[:size]), test=test_split)


def _fair_order(targets: Tensor) -> Tensor:
    """All indices, so that any first part of them has each class by its share.

    The k-th of a class's n images stands at (k + ½)/n. Images with several labels have no classes
    to be fair to and come in a fixed random order.
    """
    if targets.ndim > 1:
        return torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    place = torch.empty(len(targets), dtype=torch.float64)
    for label in range(int(targets.max()) + 1):
        own = (targets == label).nonzero().flatten()
        place[own] = (torch.arange(len(own), dtype=torch.float64) + 0.5) / len(own)
    return torch.argsort(place, stable=True)


def _picked(split: MemorySplit | FileSplit, which: Tensor) -> MemorySplit | FileSplit:
    if isinstance(split, MemorySplit):
        return MemorySplit(split.inputs[which], split.targets[which])
    return FileSplit(_PickedReader(split.read, tuple(which.tolist())), split.targets[which])


@dataclass(frozen=True, slots=True)
class _PickedReader:
    """Reads some of a split's images by new numbers; workers can be sent it."""

    read: Callable[[int], Tensor]
    which: tuple[int, ...]

    def __call__(self, index: int) -> Tensor:
        return self.read(self.which[index])
