"""What a data set is once it has been found: images in memory, images in files, or text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

__all__ = ["Batch", "FileSplit", "ImageSet", "MemorySplit", "TextSet"]


class Batch(NamedTuple):
    """What a step is given."""

    inputs: Tensor  # images: normalised float (B, C, H, W); text: words (T, B)
    targets: Tensor  # classes (B,), labels as float (B, K), or the next words (T, B)


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Images that are held in memory."""

    inputs: Tensor  # uint8 (N, C, H, W)
    targets: Tensor  # int64 (N,), or float32 (N, K) where an image may have several labels

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, slots=True)
class FileSplit:
    """Images that are read one by one when they are needed."""

    read: Callable[[int], Tensor]  # index → uint8 (C, h, w), of any size; picklable, for workers
    targets: Tensor  # as in MemorySplit

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Images with their classes.

    Attributes:
        name: As the user wrote it.
        train: What is learned from.
        test: What is tested on.
        classes: The classes' names, in the order of the targets.
        shape: Channels, height and width of what the network gets.
        mean: Of each channel over the training images, on the scale 0 … 1.
        std: Likewise.
        multilabel: Whether an image may have several labels at once.
        mirrored: Whether an image means the same in a mirror (a digit does not).
    """

    name: str
    train: MemorySplit | FileSplit
    test: MemorySplit | FileSplit
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    multilabel: bool = False
    mirrored: bool = True


@dataclass(frozen=True, slots=True)
class TextSet:
    """Running text as numbers of words.

    Attributes:
        name: As the user wrote it.
        train: What is learned from, int64 (N,).
        test: What is tested on.
        words: The vocabulary, in the order of the numbers; unknown words are "<unk>".
    """

    name: str
    train: Tensor
    test: Tensor
    words: tuple[str, ...]
