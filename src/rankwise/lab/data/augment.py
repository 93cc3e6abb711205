"""Augmentation of whole batches, on the device that trains.

What happens to an image is drawn on the CPU for the whole batch of all processes; each process
then takes its share of the draws, so that any number of processes sees the same images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from rankwise.lab.data.sets import ImageSet

__all__ = [
    "Augmentation",
    "Draw",
    "apply",
    "default_augmentation",
    "draw",
    "normalised",
    "random_boxes",
]

_PHOTOGRAPH = 96  # from this size on, images are cropped at random scales
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Augmentation:
    """What is done to training images.

    Attributes:
        padding: Black pixels on each side, out of which a crop of the image's size is taken.
        flip: Whether half of the images are mirrored.
        cutout: The side of a square that is set to the mean (Cutout, one hole); 0 for none.
        resized: Whether crops of random area and aspect are scaled to the image's size instead.
    """

    padding: int = 0
    flip: bool = False
    cutout: int = 0
    resized: bool = False


@dataclass(frozen=True, slots=True)
class Draw:
    """What was drawn for each image of a batch, on the CPU."""

    augmentation: Augmentation
    boxes: Tensor  # int64 (B, 4): top, left, height and width of the crop in the padded image
    flips: Tensor  # bool (B,)
    centres: Tensor  # int64 (B, 2): row and column of the hole's centre

    def share(self, part: slice) -> Draw:
        """The draws of some images of the batch."""
        return Draw(self.augmentation, self.boxes[part], self.flips[part], self.centres[part])


def default_augmentation(images: ImageSet, *, cutout: bool) -> Augmentation:
    """The paper's augmentation: at 32 × 32 a padding of 4, flips, and a hole of 16.

    Both lengths grow with the image; from 96 pixels on, crops are of random size as for ImageNet.
    """
    size = min(images.shape[1:])
    large = size >= _PHOTOGRAPH
    return Augmentation(
        padding=0 if large else max(1, size // 8),
        flip=images.mirrored,
        cutout=size // 2 if cutout else 0,
        resized=large,
    )


def draw(
    augmentation: Augmentation,
    count: int,
    shape: tuple[int, int, int],
    generator: torch.Generator,
) -> Draw:
    """Draw for a batch of images.

    All parts are drawn even if they are not used, so that an option changes no other part.

    Args:
        augmentation: What is done.
        count: How many images.
        shape: Channels, height and width.
        generator: On the CPU.
    """
    _, height, width = shape
    flips = torch.rand(count, generator=generator) < 0.5
    centres = _below((height, width), count, generator)
    if augmentation.resized:
        boxes = random_boxes(count, height, width, generator)
    else:
        offsets = 2 * augmentation.padding + 1
        corners = _below((offsets, offsets), count, generator)
        boxes = torch.cat([corners, torch.tensor([[height, width]]).expand(count, 2)], 1)
    return Draw(augmentation, boxes, flips & augmentation.flip, centres)


def random_boxes(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Boxes of 8 … 100 % of an image's area and an aspect of 3/4 … 4/3, as int64 (count, 4).

    Both are drawn up to ten times until the box fits; if it never does, it is the largest that
    has an allowed aspect. A box is top, left, height and width.
    """
    area, aspect, place = (
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
    first = fits.int().argmax(1)  # argmax gives the first of equals
    side = sides[torch.arange(count), first]
    corner = (place * (image - side + 1)).long()
    return torch.cat([corner, side], 1)


def apply(images: Tensor, draw: Draw, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Augment and normalise a batch.

    Args:
        images: uint8 (B, C, H, W), on any device.
        draw: What was drawn for these images.
        mean: Of each channel, on the scale 0 … 1.
        std: Likewise.

    Returns:
        float32 (B, C, H, W), channels last.
    """
    what = draw.augmentation
    boxes, flips = draw.boxes.to(images.device), draw.flips.to(images.device)
    if what.resized:
        images = _resized_crop(images, boxes, flips)
    elif what.padding or what.flip:
        images = _crop(pad(images, (what.padding,) * 4), boxes, flips, images.shape[2:])
    pixels = _scaled(images, mean, std)
    if what.cutout:
        pixels *= _outside(draw.centres.to(images.device), what.cutout, pixels.shape[2:])
    return pixels.contiguous(memory_format=torch.channels_last)


def normalised(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Images without augmentation: uint8 (B, C, H, W) → float32, channels last."""
    return _scaled(images, mean, std).contiguous(memory_format=torch.channels_last)


def _below(limits: tuple[int, int], count: int, generator: torch.Generator) -> Tensor:
    """Pairs of whole numbers below two limits: int64 (count, 2)."""
    pairs = [torch.randint(limit, (count,), generator=generator) for limit in limits]
    return torch.stack(pairs, 1)


def _crop(padded: Tensor, boxes: Tensor, flips: Tensor, size: Sequence[int]) -> Tensor:
    """Crops of one size: (B, C, H', W') → (B, C, H, W), in one gather, with the flips in it."""
    count, channels = padded.shape[:2]
    rows = boxes[:, :1] + torch.arange(size[0], device=padded.device)  # (B, H)
    columns = boxes[:, 1:2] + torch.arange(size[1], device=padded.device)  # (B, W)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    pixels = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # (B, H, W)
    pixels = pixels.view(count, 1, -1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, pixels).view(count, channels, *size)


def _resized_crop(images: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
    """Boxes scaled to the whole image by bilinear interpolation: float32, 0 … 255."""
    _, _, height, width = images.shape
    rows = _positions(boxes[:, 0], boxes[:, 2], height)  # (B, H)
    columns = _positions(boxes[:, 1], boxes[:, 3], width)  # (B, W)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    grid = torch.stack(
        [
            columns[:, None, :].expand(-1, height, -1),
            rows[:, :, None].expand(-1, -1, width),
        ],
        3,
    )
    return grid_sample(images.float(), grid, align_corners=False)


def _positions(first: Tensor, length: Tensor, size: int) -> Tensor:
    """Where `size` pixels lie along an edge of a box, on grid_sample's scale of -1 … 1."""
    steps = torch.arange(size, device=first.device) + 0.5
    first, length = first[:, None], length[:, None]
    place = first + steps * (length / size) - 0.5
    # A crop knows nothing of the pixels around it, so its border is repeated.
    place = torch.minimum(torch.maximum(place, first), first + length - 1)
    return (2 * place + 1) / size - 1


def _scaled(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(images / 255 - mean) / std, in two operations that round alike on any share of a batch."""
    shift = images.new_tensor(mean, dtype=torch.float32).mul_(255).view(-1, 1, 1)
    scale = images.new_tensor(std, dtype=torch.float32).mul_(255).reciprocal_().view(-1, 1, 1)
    return (images - shift).mul_(scale)


def _outside(centres: Tensor, side: int, size: Sequence[int]) -> Tensor:
    """1 outside each image's hole and 0 within: float32 (B, 1, H, W); the border cuts holes."""
    first = centres - side // 2
    inside = []
    for axis in (0, 1):
        pixels = torch.arange(size[axis], device=centres.device)
        distance = pixels - first[:, axis, None]
        inside.append((distance >= 0) & (distance < side))
    rows, columns = inside
    return (~(rows[:, None, :, None] & columns[:, None, None, :])).float()
