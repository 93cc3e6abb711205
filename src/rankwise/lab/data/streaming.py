"""Batches of images that are in files, read by worker processes.

The contract is that of `batches`: the same images for any number of processes and of workers, and
from any batch on. The crop of an image is drawn by the worker that reads it, from a generator of
the image's own; all else is drawn by batch, as for images in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rankwise.errors import DataError, RunError
from rankwise.lab.data.augment import Augmentation, apply, draw, normalised, random_boxes
from rankwise.lab.data.batches import share_of, shuffled
from rankwise.lab.data.pictures import fit, scale_to
from rankwise.lab.data.sets import Batch, FileSplit, ImageSet
from rankwise.lab.seeds import generator_for

__all__ = ["test_batches", "training_batches"]


def training_batches(
    images: ImageSet,
    augmentation: Augmentation,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int,
    rank: int,
    world: int,
    device: torch.device,
    workers: int,
) -> Iterator[Batch]:
    """The batches of an epoch in random order, augmented; see `batches.training_batches`.

    Batches before `start` are not read.
    """
    split = _files(images.train)
    order, part = shuffled(len(split), batch_size, seed=seed, epoch=epoch, rank=rank, world=world)
    chosen = order[start:, part]
    crops = (seed, "image", epoch) if augmentation.resized else None
    if augmentation.resized:  # done by the workers: the rest of the augmentation must not crop
        augmentation = replace(augmentation, resized=False, padding=0)
    reader = _Reader(split, images.shape, crops)
    for number, pixels in enumerate(_read(reader, chosen.tolist(), workers, device), start):
        generator = generator_for(seed, "augment", epoch, number)
        drawn = draw(augmentation, order.shape[1], images.shape, generator).share(part)
        targets = split.targets[chosen[number - start]].to(device)
        yield Batch(apply(pixels, drawn, images.mean, images.std), targets)


def test_batches(
    images: ImageSet,
    split: Literal["test", "train"],
    *,
    batch_size: int,
    rank: int,
    world: int,
    device: torch.device,
    workers: int,
) -> Iterator[Batch]:
    """The images of a split in order, not augmented; see `batches.test_batches`."""
    files = _files(images.test if split == "test" else images.train)
    part = share_of(len(files), rank, world)
    chosen = [list(part[first : first + batch_size]) for first in range(0, len(part), batch_size)]
    reader = _Reader(files, images.shape, None)
    for numbers, pixels in zip(chosen, _read(reader, chosen, workers, device), strict=True):
        targets = files.targets[numbers].to(device)
        yield Batch(normalised(pixels, images.mean, images.std), targets)


@dataclass(frozen=True, slots=True)
class _Reader(Dataset[Tensor | DataError]):
    """What a worker does: read an image and bring it to the set's shape.

    Attributes:
        split: Where the images are.
        shape: Channels, height and width.
        crops: The place of the crops' seeds (the image's number follows), or None for the middle.
    """

    split: FileSplit
    shape: tuple[int, int, int]
    crops: tuple[int | str, ...] | None

    def __getitem__(self, index: int) -> Tensor | DataError:
        # An error is given back instead of raised: torch would wrap its sentence in a traceback.
        try:
            image = self.split.read(index)
        except DataError as error:
            return error
        if self.crops is None:
            return fit(image, *self.shape[1:])
        generator = generator_for(*self.crops, index)
        box = random_boxes(1, image.shape[1], image.shape[2], generator)[0].tolist()
        top, left, height, width = box
        return scale_to(image[:, top : top + height, left : left + width], *self.shape[1:])


def _files(split: object) -> FileSplit:
    if not isinstance(split, FileSplit):
        raise TypeError(f"Expected images in files, got {type(split).__name__}.")
    return split


def _stack(read: Sequence[Tensor | DataError]) -> Tensor | DataError:
    """One batch, or the first error in it."""
    error = next((item for item in read if isinstance(item, DataError)), None)
    return error or torch.stack([item for item in read if isinstance(item, Tensor)])


def _read(
    reader: _Reader, chosen: list[list[int]], workers: int, device: torch.device
) -> Iterator[Tensor]:
    """The uint8 images of each batch, on the device, in order."""
    if not chosen:
        return
    loader = DataLoader(
        reader,
        batch_sampler=chosen,
        num_workers=min(workers, len(chosen)),
        collate_fn=_stack,
        pin_memory=device.type == "cuda",
        # Unasked, the loader would draw from torch's own generator and so disturb the run's.
        generator=torch.Generator().manual_seed(0),
    )
    try:
        for pixels in loader:
            if isinstance(pixels, DataError):
                raise pixels
            yield pixels.to(device, non_blocking=True)
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise RunError(
            f"Expected {workers} workers to read images, but one of them ended ({error}); it was "
            "perhaps out of memory: start the same command again, with fewer workers."
        ) from error
