from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rankwise.errors import DataError
from rankwise.lab.data import imagenet
from rankwise.lab.data.sets import FileSplit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for split, count in (("train", 3), ("val", 1)):
        for grey, kind in enumerate(("n01440764", "n15075141")):
            folder = tmp_path / "imagenet" / split / kind
            folder.mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (300, 280), (100 * grey,) * 3)
                image.save(folder / f"{kind}_{index}.JPEG")
    return tmp_path


def test_class_folders_are_streamed_at_224(root: Path) -> None:
    images = imagenet.read(root)
    assert images.shape == (3, 224, 224)
    assert images.classes == ("n01440764", "n15075141")
    assert images.mean == (0.485, 0.456, 0.406)
    assert images.std == (0.229, 0.224, 0.225)
    assert isinstance(images.train, FileSplit)
    assert isinstance(images.test, FileSplit)
    assert images.train.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.test.targets.tolist() == [0, 1]
    assert images.train.read(5).unique().tolist() == [100]


def test_training_pictures_keep_their_size_and_test_pictures_are_cut(root: Path) -> None:
    images = imagenet.read(root)
    assert isinstance(images.train, FileSplit)
    assert isinstance(images.test, FileSplit)
    assert images.train.read(0).shape == (3, 280, 300)
    assert images.test.read(0).shape == (3, 224, 224)


def test_test_pictures_are_scaled_to_256_before_the_cut(root: Path) -> None:
    array = np.zeros((256, 256, 3), dtype=np.uint8)
    array[16:240, 16:240] = 255  # what is left when 16 pixels are cut off each side
    Image.fromarray(array).save(root / "imagenet/val/n01440764/n01440764_0.JPEG", quality=100)
    images = imagenet.read(root)
    assert isinstance(images.test, FileSplit)
    assert torch.all(images.test.read(0) > 240)


def test_a_missing_set_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="imagenet/train/nXXXXXXXX"):
        imagenet.read(tmp_path)


def test_validation_pictures_that_are_not_in_class_folders_are_an_error(root: Path) -> None:
    for folder in (root / "imagenet/val").iterdir():
        for path in folder.iterdir():
            path.rename(root / "imagenet/val" / path.name)
        folder.rmdir()
    with pytest.raises(DataError, match="class folders"):
        imagenet.read(root)


def test_classes_that_differ_are_an_error(root: Path) -> None:
    (root / "imagenet/val/n01440764").rename(root / "imagenet/val/n99999999")
    with pytest.raises(DataError, match=r"n01440764 \(2 in all\)"):
        imagenet.read(root)
