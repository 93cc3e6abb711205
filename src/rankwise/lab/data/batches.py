"""The batches of an epoch: the same for any number of processes and workers, from any batch on.

Images in memory are augmented on the training device. Images in files are read by worker
processes, which also take the random crops, each drawn from a generator of the image's own;
everything else is drawn by batch, as for images in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rankwise.errors import ConfigError, DataError, RunError
from rankwise.lab.data.augmentation import (
    Augmentation,
    augment,
    draw_augmentation,
    draw_boxes,
    normalise,
)
from rankwise.lab.data.dataset import (
    Batch,
    FileSplit,
    ImageDataset,
    MemorySplit,
    Split,
    crop_to_size,
    resize_image,
)
from rankwise.lab.reproducibility import make_generator


def count_batches(images: int, batch_size: int) -> int:
    """Count the batches of an epoch: a last short one is dropped, unless it is the only one.

    Example:
        >>> count_batches(1000, 128), count_batches(100, 128)
        (7, 1)
    """
    _check_batch_size(batch_size)
    return max(1, images // batch_size)


def move_to_device(dataset: ImageDataset, device: torch.device) -> ImageDataset:
    """Return the dataset with its images in memory on a device; call it once, before training."""

    def move(split: Split) -> Split:
        if isinstance(split, FileSplit):
            return split
        return MemorySplit(split.inputs.to(device), split.targets.to(device))

    return replace(dataset, train=move(dataset.train), test=move(dataset.test))


def iter_train_batches(
    dataset: ImageDataset,
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
    """Iterate over the augmented batches of an epoch, in random order.

    The batch size is that of all processes; each gets an equal part of every batch. Seed and epoch
    determine the order, together with the batch's number the augmentation. Batches before `start`
    are not read.
    """
    count = len(dataset.train)
    batches = count_batches(count, batch_size)
    batch_size = min(batch_size, count)
    if batch_size % world:
        raise ConfigError(
            f"Expected a batch size that {world} processes can share evenly, got {batch_size} "
            f"(of {count} training images); choose a multiple of {world}."
        )
    order = torch.randperm(count, generator=make_generator(seed, "order", epoch))
    order = order[: batches * batch_size].view(batches, batch_size)
    share = batch_size // world
    part = slice(rank * share, (rank + 1) * share)
    indices = order[start:, part].to(device)
    if isinstance(dataset.train, FileSplit):
        crop_seed = (seed, "image", epoch) if augmentation.random_resize else None
        files = _FileImages(dataset.train, dataset.shape, crop_seed)
        images: Iterable[Tensor] = _read_files(files, indices.tolist(), workers, device)
        if augmentation.random_resize:  # by the workers
            augmentation = replace(augmentation, random_resize=False, padding=0)
    else:
        inputs = dataset.train.inputs.to(device)
        images = (inputs.index_select(0, batch) for batch in indices)
    targets = dataset.train.targets.to(device)

    def iterate() -> Iterator[Batch]:
        for number, (batch, pixels) in enumerate(zip(indices, images, strict=True), start):
            generator = make_generator(seed, "augment", epoch, number)
            draws = draw_augmentation(augmentation, batch_size, dataset.shape, generator)
            augmented = augment(pixels, draws.select(part), dataset.mean, dataset.std)
            yield Batch(augmented, targets.index_select(0, batch))

    return iterate()


def iter_test_batches(
    dataset: ImageDataset,
    *,
    batch_size: int,
    rank: int,
    world: int,
    device: torch.device,
    workers: int = 0,
) -> Iterator[Batch]:
    """Iterate over the test images in order, each once over all processes.

    Each process has a contiguous part of them; the last ones may get fewer images, or none.
    The batch size is that of this process; its last batch may be shorter.
    """
    _check_batch_size(batch_size)
    images = dataset.test
    share = -(-len(images) // world)
    part = range(len(images))[rank * share : (rank + 1) * share]
    indices = [part[first : first + batch_size] for first in range(0, len(part), batch_size)]
    slices = [slice(batch.start, batch.stop) for batch in indices]
    if isinstance(images, FileSplit):
        files = _FileImages(images, dataset.shape, crop_seed=None)
        batches: Iterable[Tensor] = _read_files(files, list(map(list, indices)), workers, device)
    else:
        inputs = images.inputs
        batches = (inputs[batch].to(device) for batch in slices)
    return (
        Batch(normalise(pixels, dataset.mean, dataset.std), images.targets[batch].to(device))
        for batch, pixels in zip(slices, batches, strict=True)
    )


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(f"Expected a batch size of at least 1, got {batch_size}.")


class _ReadError(Exception):
    """Not a RuntimeError, since the loader raises that when a worker dies."""


@dataclass(frozen=True, slots=True)
class _FileImages(Dataset[Tensor | DataError]):
    """Read images and bring them to the dataset's shape, in a worker."""

    split: FileSplit
    shape: tuple[int, int, int]
    crop_seed: tuple[int | str, ...] | None  # the image's number is appended; None: the centre

    def __getitem__(self, index: int) -> Tensor | DataError:
        try:
            image = self.split.read(index)
        except DataError as error:
            return error  # the loader would put a traceback into the message of a raised one
        except RuntimeError as error:
            raise _ReadError(f"Reading image {index} failed: {error}") from error
        if self.crop_seed is None:
            return crop_to_size(image, *self.shape[1:])
        generator = make_generator(*self.crop_seed, index)
        box = draw_boxes(1, image.shape[1], image.shape[2], generator)[0].tolist()
        top, left, height, width = box
        return resize_image(image[:, top : top + height, left : left + width], *self.shape[1:])


def _stack_images(images: Sequence[Tensor | DataError]) -> Tensor | DataError:
    """Return one batch, or the first error in it."""
    error = next((image for image in images if isinstance(image, DataError)), None)
    return error or torch.stack([image for image in images if isinstance(image, Tensor)])


def _read_files(
    images: _FileImages, indices: list[list[int]], workers: int, device: torch.device
) -> Iterator[Tensor]:
    """Iterate over the uint8 images of each batch, on the device, in order."""
    if not indices:
        return
    workers = min(workers, len(indices))
    loader = DataLoader(
        images,
        batch_sampler=indices,
        num_workers=workers,
        collate_fn=_stack_images,
        pin_memory=device.type == "cuda",
        # By default the loader would draw from torch's global generator.
        generator=torch.Generator().manual_seed(0),
    )
    batches = iter(loader)
    while True:
        try:
            batch = next(batches, None)
        except RuntimeError as error:
            if not workers:
                raise
            raise RunError(
                f"One of the {workers} workers that read images died or failed ({error}), perhaps "
                "because it ran out of memory; run the same command again with fewer workers."
            ) from error
        if batch is None:
            return
        if isinstance(batch, DataError):
            raise batch
        yield batch.to(device, non_blocking=True)
