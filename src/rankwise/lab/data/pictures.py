"""Picture files → uint8 tensors, safely: a broken or monstrous file is a sentence, not a crash."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import rankwise
from rankwise.errors import DataError
from rankwise.lab.data.memory import channel_statistics
from rankwise.lab.data.sets import FileSplit, MemorySplit

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "DEFAULT_SIZE",
    "MEMORY_LIMIT",
    "FileList",
    "Pictures",
    "Source",
    "Sources",
    "Split",
    "common_shape",
    "decode",
    "fit",
    "load_all",
    "sampled_statistics",
    "scale_to",
    "splits_of",
]

MEMORY_LIMIT = 2 * 2**30  # bytes; decoded sets up to this size are held in memory
DEFAULT_SIZE = 224  # pixels a side, where pictures differ in size and the user names none
MAX_PIXELS = 2**27  # 134 million: no sane training image; more is a decompression bomb
STATISTICS_SAMPLE = 2000  # pictures: the standard error of a mean is then far below one grey level

Source = bytes | Path | zipfile.Path


class Sources(Protocol):
    """Where the pictures of a split come from: a list, or anything that looks like one."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Source: ...


class FileList:
    """Paths below a root, kept as one array of bytes.

    A million `Path` objects take a gigabyte, and worker processes would copy them.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        self.names = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Path:
        return self.root / os.fsdecode(bytes(self.names[index]))


@dataclass(frozen=True, slots=True)
class Pictures:
    """Reads the picture at an index; picklable, so that workers can.

    Attributes:
        sources: Where the pictures are.
        size: As in `decode`.
        resize: As in `decode`.
    """

    sources: Sources
    size: int | None = None
    resize: int | None = None

    def __call__(self, index: int) -> Tensor:
        """The picture as uint8 (3, H, W)."""
        source = self.sources[index]
        name = _name(source, f"picture {index}")
        return decode(source, size=self.size, resize=self.resize, name=name)


def decode(
    source: Source,
    *,
    size: int | None,
    channels: int = 3,
    resize: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Decode one picture.

    The first frame counts, transparency is dropped, 16 bits become 8, and the EXIF orientation is
    ignored (as it is in the published training recipes).

    Args:
        source: The encoded picture, or its file.
        size: Height and width wanted: the shorter side becomes `resize` long and the middle is cut
            out. None keeps the picture as it is.
        channels: 3 for colour, 1 for grey.
        resize: Length of the shorter side before the cut; `size` if not given.
        name: What an error calls the picture; the file's path if not given.

    Returns:
        uint8 (channels, H, W).

    Raises:
        DataError: If the picture is broken, unknown or too large.
    """
    name = name or _name(source, "a picture")
    opened = _open(source, name)
    try:
        with opened as image:
            pixels = _resized(_to_mode(image, {1: "L", 3: "RGB"}[channels]), size, resize)
            array = np.array(pixels, dtype=np.uint8).reshape(pixels.height, pixels.width, channels)
    except Exception as error:  # decoders raise whatever broken bytes lead them to
        raise _broken(name, error) from error
    return torch.from_numpy(array).permute(2, 0, 1).contiguous()


def _name(source: Source, otherwise: str) -> str:
    return otherwise if isinstance(source, bytes) else str(source)


def _open(source: Source, name: str) -> Image:
    """Read the header only; the pixels are decoded when they are first used."""
    try:
        import PIL.Image  # noqa: PLC0415 (an optional package)
    except ImportError as error:
        raise rankwise.MissingExtraError("pillow", "lab", "Reading pictures") from error
    bombs = (PIL.Image.DecompressionBombWarning, PIL.Image.DecompressionBombError)
    try:
        if isinstance(source, Path):
            image: Image = PIL.Image.open(source)
        else:
            data = source if isinstance(source, bytes) else source.read_bytes()
            image = PIL.Image.open(io.BytesIO(data))
    except bombs as error:
        raise _too_large(name) from error
    except Exception as error:
        raise _broken(name, error) from error
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise _too_large(name)
    return image


def _to_mode(image: Image, mode: str) -> Image:
    """Convert to grey or colour."""
    from PIL import Image as pillow  # noqa: N813, PLC0415 (the class has the same name)

    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers without a known range")
    if image.mode.startswith("I"):  # 16 bits: Pillow's own conversion would clip at 255
        image = pillow.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in {"P", "PA", "LA", "La"}:  # a palette may hold transparency of its own
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


def _resized(image: Image, size: int | None, resize: int | None) -> Image:
    """Cut the middle out and scale it in one go: the same as scaling first, for less work."""
    from PIL.Image import Resampling  # noqa: PLC0415

    if size is None or (image.size == (size, size) and resize in {None, size}):
        return image
    side = min(image.size) * min(1.0, size / (resize or size))
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Resampling.BILINEAR, box=box)


def _broken(name: str, error: Exception) -> DataError:
    reason = str(error) or type(error).__name__
    return DataError(
        f"Expected a picture that can be read, but {name} can't be decoded ({reason}); "
        "replace or remove it."
    )


def _too_large(name: str) -> DataError:
    return DataError(
        f"Expected a picture of at most {MAX_PIXELS:,} pixels, but {name} has more and may be a "
        "decompression bomb; cut it into tiles or remove it."
    )


def fit(image: Tensor, height: int, width: int) -> Tensor:
    """Scale a decoded picture (C, h, w), uint8, to a size and cut off what is too much."""
    if image.shape[1:] == (height, width):
        return image
    scale = min(image.shape[1] / height, image.shape[2] / width)
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    top, left = (image.shape[1] - rows) // 2, (image.shape[2] - columns) // 2
    return scale_to(image[:, top : top + rows, left : left + columns], height, width)


def scale_to(image: Tensor, height: int, width: int) -> Tensor:
    """Scale a decoded picture (C, h, w), uint8, without regard to its aspect ratio."""
    return functional.interpolate(
        image[None], size=(height, width), mode="bilinear", antialias=True
    )[0]


def common_shape(*sources: Sources) -> tuple[int, int] | None:
    """Height and width that all pictures share, or None; headers are read until one differs."""
    shape: tuple[int, int] | None = None
    for group in sources:
        for index in range(len(group)):
            source = group[index]
            with _open(source, _name(source, f"picture {index}")) as image:
                if shape not in {None, (image.height, image.width)}:
                    return None
                shape = (image.height, image.width)
    return shape


def load_all(
    sources: Sources, targets: Tensor, size: int | None, *, resize: int | None = None
) -> MemorySplit:
    """Decode all pictures into memory, by threads; with `size` None they must be of one size."""
    read = Pictures(sources, size, resize)
    if not len(sources):
        return MemorySplit(torch.empty(0, 3, size or 0, size or 0, dtype=torch.uint8), targets)
    first = read(0)
    inputs = torch.empty(len(sources), *first.shape, dtype=torch.uint8)

    def fill(index: int) -> None:
        image = read(index)
        if image.shape != first.shape:
            raise DataError(
                f"Expected pictures of one size, {tuple(first.shape[1:])}, but picture {index} is "
                f"{tuple(image.shape[1:])}; give an image size."
            )
        inputs[index] = image

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:  # Pillow frees the lock
        for _ in pool.map(fill, range(len(sources))):
            pass  # a result is asked for only so that an error is raised
    return MemorySplit(inputs, targets)


Split = MemorySplit | FileSplit


def splits_of(
    train: Sources, train_targets: Tensor, test: Sources, test_targets: Tensor, size: int | None
) -> tuple[Split, Split, tuple[int, int, int]]:
    """Both splits and their shape: in memory if they fit, else as files that are streamed.

    Without a size it is the one that all pictures share, or `DEFAULT_SIZE`.
    """
    shared = (size, size) if size is not None else common_shape(train, test)
    height, width = shared or (DEFAULT_SIZE, DEFAULT_SIZE)
    square = None if size is None and shared else height
    shape = (3, height, width)
    if 3 * height * width * (len(train) + len(test)) <= MEMORY_LIMIT:
        memory = load_all(train, train_targets, square)
        return memory, load_all(test, test_targets, square), shape
    # Training pictures keep their size, so that a random crop has all of them to choose from.
    files = FileSplit(Pictures(train), train_targets)
    return files, FileSplit(Pictures(test, square), test_targets), shape


def sampled_statistics(
    split: Split, shape: tuple[int, int, int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, on the scale 0 … 1, from a spread sample."""
    indices = torch.linspace(0, len(split) - 1, min(len(split), STATISTICS_SAMPLE)).long()
    if isinstance(split, MemorySplit):
        return channel_statistics(split.inputs[indices])
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        images = pool.map(split.read, indices.tolist())
        return channel_statistics(torch.stack([fit(image, *shape[1:]) for image in images]))
