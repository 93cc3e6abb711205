"""Data sets: a name or a path → images or text, as `sets` describes them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rankwise.errors import ConfigError
from rankwise.lab.data import (
    cifar,
    digits,
    folder,
    hugging_face,
    imagenet,
    mnist,
    pathology,
    text,
    tiny_imagenet,
)
from rankwise.lab.data.memory import resized
from rankwise.lab.data.sets import ImageSet, MemorySplit, TextSet

__all__ = ["NAMES", "PREFIXES", "find", "is_text", "remembering"]

# Each reader is given the folder in which data sets are looked for.
_NAMED: dict[str, Callable[[Path], ImageSet | TextSet]] = {
    "adp": pathology.read_adp,
    "cifar10": cifar.read_cifar10,
    "cifar100": cifar.read_cifar100,
    "digits": lambda _: digits.read(),
    "fashion-mnist": mnist.read_fashion_mnist,
    "imagenet": imagenet.read,
    "mhist": pathology.read_mhist,
    "mnist": mnist.read_mnist,
    "ptb": text.read_ptb,
    "tiny-imagenet": tiny_imagenet.read,
}
# Each reader is given what follows the prefix, and the size of the images.
_PREFIXED: dict[str, Callable[[str, int | None], ImageSet | TextSet]] = {
    "folder:": lambda path, size: folder.read(Path(path), size),
    "hf:": hugging_face.read,
    "text:": lambda path, _: text.read_text(Path(path)),
}
NAMES = tuple(_NAMED)
PREFIXES = tuple(_PREFIXED)


# What `remembering` keeps: by name, folder and size. None while it is not asked for.
_kept: dict[tuple[str, Path, int | None], ImageSet | TextSet] | None = None
_MOST_KEPT = 2


@contextmanager
def remembering() -> Iterator[None]:
    """Keep the last sets that were read, for many runs in one process: their files must stay."""
    global _kept  # noqa: PLW0603 - one process reads for all its runs
    _kept = {}
    try:
        yield
    finally:
        _kept = None


def is_text(name: str) -> bool:
    """Whether a name stands for text rather than for images."""
    return name == "ptb" or name.startswith("text:")


def find(name: str, root: Path, *, image_size: int | None = None) -> ImageSet | TextSet:
    """Find and read a data set.

    Args:
        name: One of `NAMES`; or `folder:PATH` (class folders), `hf:NAME_OR_PATH` (Hugging Face
            `datasets`), `text:PATH` (words).
        root: The folder in which the named sets are looked for, and paths that are not here.
        image_size: Height and width that images are scaled to; None leaves them as they are.

    Raises:
        ConfigError: If there is no such data set, or the size makes no sense.
        DataError: If its files are missing or broken; the message says where to put them.

    Example:
        >>> find("digits", Path("data"), image_size=16).shape
        (1, 16, 16)
    """
    key = name, root.absolute(), image_size
    if _kept is not None and key in _kept:
        return _kept[key]
    found = _read(name, root, image_size)
    if _kept is not None:
        if len(_kept) == _MOST_KEPT:
            del _kept[next(iter(_kept))]
        _kept[key] = found
    return found


def _read(name: str, root: Path, image_size: int | None) -> ImageSet | TextSet:
    if image_size is not None and image_size < 1:
        raise ConfigError(f"Expected an image size of at least 1, got {image_size}.")
    prefix, colon, rest = name.partition(":")
    if colon and rest and prefix + colon in PREFIXES:
        found = _PREFIXED[prefix + colon](_located(rest, root), image_size)
    elif name in NAMES:
        found = _sized(_NAMED[name](root), image_size)
    else:
        raise ConfigError(_unknown(name))
    if image_size is not None and isinstance(found, TextSet):
        raise ConfigError(f"Expected no image size for {name}, which is text; got {image_size}.")
    return found


def _located(path: str, root: Path) -> str:
    """A path as it is given, or the same below the folder of all data sets if it is only there."""
    try:
        return str(root / path) if not Path(path).exists() and (root / path).exists() else path
    except (OSError, ValueError):  # too long, or with a null character: the reader says what it is
        return path


def _sized(found: ImageSet | TextSet, size: int | None) -> ImageSet | TextSet:
    """Images in memory are scaled at once, images in files as they are read."""
    if size is None or isinstance(found, TextSet) or found.shape[1:] == (size, size):
        return found
    if isinstance(found.train, MemorySplit):
        return resized(found, size)
    return replace(found, shape=(found.shape[0], size, size))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [*NAMES, *PREFIXES])
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    forms = ", ".join([*NAMES, *(prefix + "PATH" for prefix in PREFIXES)])
    return f"Expected a data set out of {forms}, got {name!r}{hint}"
