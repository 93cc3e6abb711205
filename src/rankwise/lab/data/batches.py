"""The batches of an epoch, the same for any number of processes and from any batch on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from rankwise.errors import ConfigError
from rankwise.lab.data.augment import Augmentation, apply, draw, normalised
from rankwise.lab.data.sets import Batch, FileSplit, ImageSet, MemorySplit
from rankwise.lab.seeds import generator_for

__all__ = [
    "batches_per_epoch",
    "on_device",
    "share_of",
    "shuffled",
    "test_batches",
    "training_batches",
]


def batches_per_epoch(count: int, batch_size: int) -> int:
    """How many batches an epoch has: a last short one is left out, unless it is the only one.

    Example:
        >>> batches_per_epoch(1000, 128), batches_per_epoch(100, 128)
        (7, 1)
    """
    if batch_size < 1:
        raise ConfigError(f"Expected a batch size of at least 1, got {batch_size}.")
    return max(1, count // batch_size)


def on_device(images: ImageSet, device: torch.device) -> ImageSet:
    """The same set with the splits that are in memory on a device; do it once, before training."""

    def moved(split: MemorySplit | FileSplit) -> MemorySplit | FileSplit:
        if isinstance(split, FileSplit):
            return split
        return MemorySplit(split.inputs.to(device), split.targets.to(device))

    return replace(images, train=moved(images.train), test=moved(images.test))


def training_batches(
    images: ImageSet,
    augmentation: Augmentation,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    device: torch.device,
    workers: int = 0,
) -> Iterator[Batch]:
    """The batches of an epoch in random order, augmented.

    Args:
        images: The data set.
        augmentation: What is done to the images.
        batch_size: Images in a batch, over all processes.
        seed: The run's seed; with the epoch it decides the order, with the batch the augmentation.
        epoch: The epoch's number.
        start: The first batch to give, for a run that goes on in the middle of an epoch.
        rank: This process's number.
        world: How many processes there are; each gets an equal part of every batch.
        device: Where the batches are wanted.
        workers: How many processes read images that are in files.

    Raises:
        ConfigError: If a batch can't be split evenly.
    """
    if isinstance(images.train, FileSplit):
        from rankwise.lab.data import streaming  # noqa: PLC0415

        return streaming.training_batches(
            images,
            augmentation,
            batch_size=batch_size,
            seed=seed,
            epoch=epoch,
            start=start,
            rank=rank,
            world=world,
            device=device,
            workers=workers,
        )
    chosen, part = shuffled(
        len(images.train), batch_size, seed=seed, epoch=epoch, rank=rank, world=world
    )
    return _augmented(
        images,
        images.train,
        augmentation,
        chosen=chosen,
        place=(seed, "augment", epoch),
        start=start,
        part=part,
        device=device,
    )


def shuffled(
    count: int, batch_size: int, *, seed: int, epoch: int, rank: int, world: int
) -> tuple[Tensor, slice]:
    """The order of an epoch: which images each batch has (batches, size), and a process's part.

    Raises:
        ConfigError: If a batch can't be split evenly.
    """
    batches = batches_per_epoch(count, batch_size)
    batch_size = min(batch_size, count)
    if batch_size % world:
        raise ConfigError(
            f"Expected a batch size that {world} processes can share evenly, got {batch_size} "
            f"(of {count} training images); choose a multiple of {world}."
        )
    order = torch.randperm(count, generator=generator_for(seed, "order", epoch))
    share = batch_size // world
    part = slice(rank * share, (rank + 1) * share)
    return order[: batches * batch_size].view(batches, batch_size), part


def test_batches(
    images: ImageSet,
    split: Literal["test", "train"],
    *,
    batch_size: int,
    rank: int,
    world: int,
    device: torch.device,
    workers: int = 0,  # noqa: PT028 - a test of the network, not of the code
) -> Iterator[Batch]:
    """The images of a split in order, each exactly once over all processes, not augmented.

    Args:
        images: The data set.
        split: Which of its splits.
        batch_size: Images in a batch of this process; the last batch may be shorter.
        rank: This process's number; each process has a contiguous part of the split.
        world: How many processes there are; the last ones may get fewer images, or none.
        device: Where the batches are wanted.
        workers: How many processes read images that are in files.
    """
    batches_per_epoch(1, batch_size)  # checks the size
    chosen = images.test if split == "test" else images.train
    if isinstance(chosen, FileSplit):
        from rankwise.lab.data import streaming  # noqa: PLC0415

        return streaming.test_batches(
            images,
            split,
            batch_size=batch_size,
            rank=rank,
            world=world,
            device=device,
            workers=workers,
        )
    part = share_of(len(chosen), rank, world)
    return _in_order(images, chosen, batch_size, part, device)


def share_of(count: int, rank: int, world: int) -> range:
    """The contiguous part of `count` images that belongs to a process.

    Example:
        >>> [share_of(5, rank, 4) for rank in range(4)]
        [range(0, 2), range(2, 4), range(4, 5), range(5, 5)]
    """
    share = -(-count // world)
    return range(min(rank * share, count), min((rank + 1) * share, count))


def _augmented(
    images: ImageSet,
    split: MemorySplit,
    augmentation: Augmentation,
    *,
    chosen: Tensor,  # (batches, batch size): which images
    place: tuple[int | str, ...],
    start: int,
    part: slice,
    device: torch.device,
) -> Iterator[Batch]:
    inputs, targets = split.inputs.to(device), split.targets.to(device)
    for number in range(start, len(chosen)):
        generator = generator_for(*place, number)
        drawn = draw(augmentation, chosen.shape[1], images.shape, generator).share(part)
        mine = chosen[number, part].to(device)
        pixels = apply(inputs.index_select(0, mine), drawn, images.mean, images.std)
        yield Batch(pixels, targets.index_select(0, mine))


def _in_order(
    images: ImageSet, split: MemorySplit, batch_size: int, part: range, device: torch.device
) -> Iterator[Batch]:
    for first in range(part.start, part.stop, batch_size):
        chosen = slice(first, min(first + batch_size, part.stop))
        pixels = split.inputs[chosen].to(device)
        yield Batch(normalised(pixels, images.mean, images.std), split.targets[chosen].to(device))
