"""Augmentation of whole batches, on the training device.

The random numbers are drawn on the CPU for the whole batch of all processes; each process then
takes its part of the draws, so that the images do not depend on the number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from rankwise.lab.data.dataset import ImageDataset

_LARGE_SIZE = 96  # from this size on, crops are of random size
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Augmentation:
    """How training images are changed."""

    padding: int = 0  # black pixels added on each side before a crop of the image's size
    flip: bool = False  # mirrors half of the images
    cutout: int = 0  # side of a square that is set to the mean (Cutout, one hole); 0 for none
    random_resize: bool = False  # crops of random area and aspect ratio instead of padding


@dataclass(frozen=True, slots=True)
class AugmentationDraws:
    """The random choices for each image of a batch, on the CPU."""

    augmentation: Augmentation
    boxes: Tensor  # int64 (B, 4): top, left, height and width of the crop in the padded image
    flips: Tensor  # bool (B,)
    centres: Tensor  # int64 (B, 2): row and column of the hole's centre

    def select(self, part: slice) -> AugmentationDraws:
        """Return the draws of some images of the batch."""
        return AugmentationDraws(
            self.augmentation, self.boxes[part], self.flips[part], self.centres[part]
        )


def choose_augmentation(dataset: ImageDataset, *, cutout: bool) -> Augmentation:
    """Return the paper's augmentation: at 32 × 32 a padding of 4, flips, and a hole of 16.

    Both lengths grow with the image; from 96 pixels on, crops are of random size as for ImageNet.
    """
    size = min(dataset.shape[1:])
    large = size >= _LARGE_SIZE
    return Augmentation(
        padding=0 if large else max(1, size // 8),
        flip=dataset.can_flip,
        cutout=size // 2 if cutout else 0,
        random_resize=large,
    )


def draw_augmentation(
    augmentation: Augmentation, count: int, shape: tuple[int, int, int], generator: torch.Generator
) -> AugmentationDraws:
    """Draw the random choices for `count` images of a shape (channels, height, width).

    Flips and holes are drawn even if they are not used, so that an option changes no other draw.
    """
    _, height, width = shape
    flips = torch.rand(count, generator=generator) < 0.5
    centres = _draw_pairs((height, width), count, generator)
    if augmentation.random_resize:
        boxes = draw_boxes(count, height, width, generator)
    else:
        offsets = 2 * augmentation.padding + 1
        corners = _draw_pairs((offsets, offsets), count, generator)
        boxes = torch.cat([corners, torch.tensor([[height, width]]).expand(count, 2)], 1)
    return AugmentationDraws(augmentation, boxes, flips & augmentation.flip, centres)


def draw_boxes(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw boxes of 8 … 100 % of an image's area and an aspect ratio of 3/4 … 4/3.

    Both are drawn up to ten times until the box fits; if it never does, the largest box with an
    allowed aspect ratio is used. A box is top, left, height and width: int64 (count, 4).
    """
    area, aspect, position = (
        torch.rand(count, size, dtype=torch.float64, generator=generator)
        for size in (_TRIES, _TRIES, 2)
    )
    area = (0.08 + 0.92 * area) * (height * width)
    aspect = torch.exp((2 * aspect - 1) * math.log(4 / 3))  # width / height, log-uniform
    sides = torch.stack([(area / aspect).sqrt(), (area * aspect).sqrt()], 2).round().long()
    largest = [min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))]
    sides = torch.cat([sides, torch.tensor(largest).expand(count, 1, 2)], 1)  # (B, tries + 1, 2)
    image = torch.tensor([height, width])
    fits = ((sides >= 1) & (sides <= image)).all(2)
    first = fits.int().argmax(1)  # argmax returns the first of equal values
    side = sides[torch.arange(count), first]
    corner = (position * (image - side + 1)).long()
    return torch.cat([corner, side], 1)


def augment(
    images: Tensor, draws: AugmentationDraws, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """Augment and normalise a batch: uint8 (B, C, H, W) → float32, channels last."""
    augmentation = draws.augmentation
    boxes, flips = draws.boxes.to(images.device), draws.flips.to(images.device)
    if augmentation.random_resize:
        images = _crop_and_resize(images, boxes, flips)
    elif augmentation.padding or augmentation.flip:
        images = _crop(pad(images, (augmentation.padding,) * 4), boxes, flips, images.shape[2:])
    pixels = _standardise(images, mean, std)
    if augmentation.cutout:
        centres = draws.centres.to(images.device)
        pixels *= _mask_holes(centres, augmentation.cutout, pixels.shape[2:])
    return pixels.contiguous(memory_format=torch.channels_last)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise a batch without augmentation: uint8 (B, C, H, W) → float32, channels last."""
    return _standardise(images, mean, std).contiguous(memory_format=torch.channels_last)


def _draw_pairs(limits: tuple[int, int], count: int, generator: torch.Generator) -> Tensor:
    """Draw pairs of integers below two limits: int64 (count, 2)."""
    pairs = [torch.randint(limit, (count,), generator=generator) for limit in limits]
    return torch.stack(pairs, 1)


def _crop(padded: Tensor, boxes: Tensor, flips: Tensor, size: Sequence[int]) -> Tensor:
    """Crop to one size and flip, in one gather: (B, C, H', W') → (B, C, H, W)."""
    count, channels = padded.shape[:2]
    rows = boxes[:, :1] + torch.arange(size[0], device=padded.device)  # (B, H)
    columns = boxes[:, 1:2] + torch.arange(size[1], device=padded.device)  # (B, W)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    pixels = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # (B, H, W)
    pixels = pixels.view(count, 1, -1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, pixels).view(count, channels, *size)


def _crop_and_resize(images: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
    """Resize boxes to the whole image by bilinear interpolation: float32, 0 … 255."""
    _, _, height, width = images.shape
    rows = _place_pixels(boxes[:, 0], boxes[:, 2], height)  # (B, H)
    columns = _place_pixels(boxes[:, 1], boxes[:, 3], width)  # (B, W)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    grid = torch.stack(
        [columns[:, None, :].expand(-1, height, -1), rows[:, :, None].expand(-1, -1, width)], 3
    )
    return grid_sample(images.float(), grid, align_corners=False)


def _place_pixels(first: Tensor, length: Tensor, size: int) -> Tensor:
    """Place `size` pixels along an edge of each box, on grid_sample's scale of -1 … 1."""
    steps = torch.arange(size, device=first.device) + 0.5
    first, length = first[:, None], length[:, None]
    pixel = first + steps * (length / size) - 0.5
    # Pixels outside the crop must not be used, so its border is repeated.
    pixel = torch.minimum(torch.maximum(pixel, first), first + length - 1)
    return (2 * pixel + 1) / size - 1


def _standardise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (images / 255 - mean) / std; both operations round alike on any part of a batch."""
    shift = images.new_tensor(mean, dtype=torch.float32).mul_(255).view(-1, 1, 1)
    scale = images.new_tensor(std, dtype=torch.float32).mul_(255).reciprocal_().view(-1, 1, 1)
    return (images - shift).mul_(scale)


def _mask_holes(centres: Tensor, side: int, size: Sequence[int]) -> Tensor:
    """Return 0 inside each image's hole and 1 outside: float32 (B, 1, H, W)."""
    first = centres - side // 2
    inside = []
    for axis in (0, 1):
        pixels = torch.arange(size[axis], device=centres.device)
        distance = pixels - first[:, axis, None]
        inside.append((distance >= 0) & (distance < side))
    rows, columns = inside
    return (~(rows[:, None, :, None] & columns[:, None, None, :])).float()
