"""Datasets: a name or a path → images or text, as described in `dataset`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rankwise._text import explain_unknown
from rankwise.errors import ConfigError
from rankwise.lab.data.cifar import load_cifar10, load_cifar100
from rankwise.lab.data.dataset import ImageDataset, TextDataset, resize_dataset
from rankwise.lab.data.hugging_face import load_hugging_face
from rankwise.lab.data.image_folders import load_folder, load_imagenet, load_tiny_imagenet
from rankwise.lab.data.mnist import load_digits, load_fashion_mnist, load_mnist
from rankwise.lab.data.pathology import load_adp, load_mhist
from rankwise.lab.data.text import load_ptb, load_text

__all__ = ["DATASETS", "PREFIXES", "cache_datasets", "is_text", "load_dataset"]

# Each loader gets the folder of all datasets.
DATASETS: dict[str, Callable[[Path], ImageDataset | TextDataset]] = {
    "adp": load_adp,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "digits": lambda _: load_digits(),
    "fashion-mnist": load_fashion_mnist,
    "imagenet": load_imagenet,
    "mhist": load_mhist,
    "mnist": load_mnist,
    "ptb": load_ptb,
    "tiny-imagenet": load_tiny_imagenet,
}
# Each loader gets the text after the prefix, and the image size.
PREFIXES: dict[str, Callable[[str, int | None], ImageDataset | TextDataset]] = {
    "folder:": lambda path, size: load_folder(Path(path), size),
    "hf:": load_hugging_face,
    "text:": lambda path, _: load_text(Path(path)),
}

# What `cache_datasets` keeps, by name, folder and size; None while it is not active.
_cache: dict[tuple[str, Path, int | None], ImageDataset | TextDataset] | None = None
_CACHE_SIZE = 2


@contextmanager
def cache_datasets() -> Iterator[None]:
    """Keep the last datasets, for many runs in one process; their files must not change."""
    global _cache  # noqa: PLW0603 - one cache for all runs of the process
    _cache = {}
    try:
        yield
    finally:
        _cache = None


def is_text(name: str) -> bool:
    """Return whether a name stands for text rather than for images."""
    return name == "ptb" or name.startswith("text:")


def load_dataset(
    name: str, root: Path, *, image_size: int | None = None
) -> ImageDataset | TextDataset:
    """Find and load one of `DATASETS`, or a dataset with one of `PREFIXES`.

    The named datasets are in `root`; paths are also looked for below it. Without an image size,
    images keep theirs.

    Example:
        >>> load_dataset("digits", Path("data"), image_size=16).shape
        (1, 16, 16)
    """
    key = name, root.absolute(), image_size
    if _cache is not None and key in _cache:
        return _cache[key]
    dataset = _load(name, root, image_size)
    if _cache is not None:
        if len(_cache) == _CACHE_SIZE:
            del _cache[next(iter(_cache))]
        _cache[key] = dataset
    return dataset


def _load(name: str, root: Path, image_size: int | None) -> ImageDataset | TextDataset:
    if image_size is not None and image_size < 1:
        raise ConfigError(f"Expected an image size of at least 1, got {image_size}.")
    prefix, colon, path = name.partition(":")
    if colon and path and prefix + colon in PREFIXES:
        dataset = PREFIXES[prefix + colon](_locate(path, root), image_size)
    elif name in DATASETS:
        dataset = DATASETS[name](root)
    else:
        forms = [*DATASETS, *(f"{prefix}PATH" for prefix in PREFIXES)]
        raise ConfigError(explain_unknown("data set", name, forms))
    if image_size is None:
        return dataset
    if isinstance(dataset, TextDataset):
        raise ConfigError(f"Expected no image size for {name}, which is text; got {image_size}.")
    return resize_dataset(dataset, image_size)


def _locate(path: str, root: Path) -> str:
    """Return a path as it is, or below the root if it exists only there."""
    try:
        return str(root / path) if not Path(path).exists() and (root / path).exists() else path
    except (OSError, ValueError):  # too long, or with a null character: the loader reports it
        return path
