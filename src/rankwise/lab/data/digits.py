"""The handwritten digits that scikit-learn carries within itself: 1,797 images of 8 × 8."""

import numpy as np
import torch

import rankwise
from rankwise.lab.data.memory import memory_set
from rankwise.lab.data.sets import ImageSet, MemorySplit

__all__ = ["read"]


def read() -> ImageSet:
    """The digits; every fifth image is for testing.

    Example:
        >>> digits = read()
        >>> len(digits.train), len(digits.test), digits.shape
        (1438, 359, (1, 8, 8))
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415
    except ImportError as error:
        raise rankwise.MissingExtraError("scikit-learn", "lab", "The data set digits") from error
    raw = load_digits()
    grey = np.rint(raw.images * (255 / 16)).astype(np.uint8)  # the levels are 0 … 16
    images = torch.from_numpy(grey).unsqueeze(1)  # (N, 1, 8, 8)
    targets = torch.from_numpy(raw.target).long()
    tested = torch.arange(len(images)) % 5 == 4
    train = MemorySplit(images[~tested], targets[~tested])
    test = MemorySplit(images[tested], targets[tested])
    return memory_set("digits", train, test, [str(digit) for digit in range(10)], mirrored=False)
