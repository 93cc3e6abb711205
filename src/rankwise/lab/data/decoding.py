"""Image files → uint8 tensors; a broken or huge file raises an error that names it."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rankwise.errors import DataError, MissingExtraError
from rankwise.lab.data.dataset import FileSplit, ImageDataset, MemorySplit, make_dataset

if TYPE_CHECKING:
    from PIL.Image import Image

MEMORY_LIMIT = 2 * 2**30  # bytes; larger decoded datasets are streamed
DEFAULT_SIZE = 224  # pixels a side, if images differ in size and no size was given
MAX_PIXELS = 2**27  # 134 million: a larger image is taken for a decompression bomb
STATISTICS_SAMPLE = 2000  # images; the standard error of a mean is then far below one grey level

EncodedImage = bytes | Path | zipfile.Path


class EncodedImages(Protocol):
    """The encoded images of a split: a sequence of bytes or paths."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> EncodedImage: ...


class LabelledImages(NamedTuple):
    """The encoded images of a split and their targets."""

    images: EncodedImages
    targets: Tensor


class FileList:
    """Paths below a root, stored as one array of bytes.

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
class ImageReader:
    """Read images by index; picklable, for workers. `size` and `resize` as in `decode_image`."""

    images: EncodedImages
    size: int | None = None
    resize: int | None = None

    def __call__(self, index: int) -> Tensor:
        """Return an image as uint8 (3, H, W)."""
        image = self.images[index]
        name = _name_image(image, f"image {index}")
        return decode_image(image, size=self.size, resize=self.resize, name=name)


def decode_image(
    encoded: EncodedImage, *, size: int | None, resize: int | None = None, name: str | None = None
) -> Tensor:
    """Decode one image to uint8 (3, H, W): resize its shorter side, then crop the centre.

    Only the first frame is read, transparency is dropped, 16 bits become 8, and the EXIF
    orientation is ignored (as in the published training recipes). With `size` None the image keeps
    its size; with `resize` None it is `size`. Errors call the image `name`.
    """
    name = name or _name_image(encoded, "an image")
    opened = _open(encoded, name)
    try:
        with opened as image:
            pixels = _crop_and_resize(_convert_to_rgb(image), size, resize)
            array = np.array(pixels, dtype=np.uint8)
    except Exception as error:  # decoders raise anything on broken bytes
        raise _broken_error(name, error) from error
    return torch.from_numpy(array).permute(2, 0, 1).contiguous()


def _name_image(encoded: EncodedImage, otherwise: str) -> str:
    return otherwise if isinstance(encoded, bytes) else str(encoded)


def _open(encoded: EncodedImage, name: str) -> Image:
    """Read the header only; the pixels are decoded on first use."""
    try:
        import PIL.Image  # noqa: PLC0415 (an optional package)
    except ImportError as error:
        raise MissingExtraError("pillow", "lab", "Reading images") from error
    bombs = (PIL.Image.DecompressionBombWarning, PIL.Image.DecompressionBombError)
    try:
        if isinstance(encoded, Path):
            image: Image = PIL.Image.open(encoded)
        else:
            data = encoded if isinstance(encoded, bytes) else encoded.read_bytes()
            image = PIL.Image.open(io.BytesIO(data))
    except bombs as error:
        raise _too_large_error(name) from error
    except Exception as error:
        raise _broken_error(name, error) from error
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise _too_large_error(name)
    return image


def _convert_to_rgb(image: Image) -> Image:
    from PIL import Image as pillow  # noqa: N813, PLC0415 (the class has the same name)

    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers without a known range")
    if image.mode.startswith("I"):  # 16 bits: Pillow's own conversion would clip at 255
        image = pillow.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in {"P", "PA", "LA", "La"}:  # a palette may contain transparency
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def _crop_and_resize(image: Image, size: int | None, resize: int | None) -> Image:
    """Crop the centre and resize it in one step: same result as resizing first, less work."""
    from PIL.Image import Resampling  # noqa: PLC0415

    if size is None or (image.size == (size, size) and resize in {None, size}):
        return image
    side = min(image.size) * min(1.0, size / (resize or size))
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Resampling.BILINEAR, box=box)


def _broken_error(name: str, error: Exception) -> DataError:
    reason = str(error) or type(error).__name__
    return DataError(
        f"Expected a readable image, but {name} can't be decoded ({reason}); replace or remove it."
    )


def _too_large_error(name: str) -> DataError:
    return DataError(
        f"Expected an image of at most {MAX_PIXELS:,} pixels, but {name} has more and may be a "
        "decompression bomb; cut it into tiles or remove it."
    )


def load_images(images: EncodedImages, targets: Tensor, size: int | None) -> MemorySplit:
    """Decode all images into memory, in threads; with `size` None they must be of one size."""
    read = ImageReader(images, size)
    if not len(images):
        return MemorySplit(torch.empty(0, 3, size or 0, size or 0, dtype=torch.uint8), targets)
    first = read(0)
    inputs = torch.empty(len(images), *first.shape, dtype=torch.uint8)

    def fill(index: int) -> None:
        image = read(index)
        if image.shape != first.shape:
            raise DataError(
                f"Expected images of one size, {tuple(first.shape[1:])}, but image {index} is "
                f"{tuple(image.shape[1:])}; give an image size."
            )
        inputs[index] = image

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:  # Pillow releases the GIL
        for _ in pool.map(fill, range(len(images))):
            pass  # iterating raises the first error
    return MemorySplit(inputs, targets)


def load_image_files(
    name: str,
    train: LabelledImages,
    test: LabelledImages,
    classes: Sequence[str],
    *,
    size: int | None,
    multilabel: bool = False,
    stream: bool = True,
) -> ImageDataset:
    """Make a dataset of encoded images: in memory if they fit, else streamed from their files.

    Without a size, all images keep the size that they share, or are brought to `DEFAULT_SIZE` if
    they differ. With `stream=False`, they are loaded even if they exceed `MEMORY_LIMIT`.
    """
    common = (size, size) if size is not None else _find_common_size(train.images, test.images)
    height, width = common or (DEFAULT_SIZE, DEFAULT_SIZE)
    square = None if size is None and common else height
    train_split: MemorySplit | FileSplit
    test_split: MemorySplit | FileSplit
    count = len(train.images) + len(test.images)
    if stream and 3 * height * width * count > MEMORY_LIMIT:
        # Training images keep their size, so that a random crop can use all of it.
        train_split = FileSplit(ImageReader(train.images), train.targets)
        test_split = FileSplit(ImageReader(test.images, square), test.targets)
    else:
        train_split = load_images(train.images, train.targets, square)
        test_split = load_images(test.images, test.targets, square)
    return make_dataset(
        name,
        train_split,
        test_split,
        classes,
        shape=(3, height, width),
        sample=STATISTICS_SAMPLE,
        multilabel=multilabel,
    )


def _find_common_size(*splits: EncodedImages) -> tuple[int, int] | None:
    """Return the height and width that all images share, or None; stop at the first difference."""
    size: tuple[int, int] | None = None
    for images in splits:
        for index in range(len(images)):
            encoded = images[index]
            with _open(encoded, _name_image(encoded, f"image {index}")) as image:
                if size not in {None, (image.height, image.width)}:
                    return None
                size = (image.height, image.width)
    return size
