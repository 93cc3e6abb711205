import shutil
from pathlib import Path

import pytest
from PIL import Image

from rankwise.errors import DataError
from rankwise.lab.data import tiny_imagenet
from rankwise.lab.data.sets import MemorySplit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of three training pictures and four validation pictures, in that layout."""
    base = tmp_path / "tiny-imagenet-200"
    for number, kind in enumerate(("n02", "n01")):
        folder = base / "train" / kind / "images"
        folder.mkdir(parents=True)
        (base / "train" / kind / f"{kind}_boxes.txt").write_text("x\t0\t0\t1\t1\n")
        for index in range(3):
            grey = 100 * number + 20 * index
            Image.new("L", (64, 64), grey).save(folder / f"{kind}_{index}.JPEG", quality=100)
    (base / "val" / "images").mkdir(parents=True)
    lines = []
    for index, kind in enumerate(("n01", "n02", "n02", "n01")):
        Image.new("RGB", (64, 64), (10 * index,) * 3).save(base / f"val/images/val_{index}.JPEG")
        lines.append(f"val_{index}.JPEG\t{kind}\t0\t0\t10\t10\n")
    (base / "val" / "val_annotations.txt").write_text("".join(lines))
    (base / "wnids.txt").write_text("n02\nn01\n")
    (base / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn03\tnot used\n")
    return tmp_path


def pack(root: Path) -> None:
    shutil.make_archive(str(root / "tiny-imagenet-200"), "zip", root, "tiny-imagenet-200")
    shutil.rmtree(root / "tiny-imagenet-200")


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_the_original_layout_is_read(root: Path, packed: bool) -> None:
    if packed:
        pack(root)
    images = tiny_imagenet.read(root)
    assert images.name == "tiny-imagenet"
    assert images.shape == (3, 64, 64)
    assert images.classes == ("goldfish, Carassius auratus", "n02")
    assert isinstance(images.train, MemorySplit)
    assert isinstance(images.test, MemorySplit)
    assert images.train.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.train.inputs[:, 0, 0, 0].tolist() == [100, 120, 140, 0, 20, 40]
    assert images.test.targets.tolist() == [0, 1, 1, 0]
    assert images.test.inputs[:, 2, 63, 63].tolist() == [0, 10, 20, 30]
    assert images.mean[0] == pytest.approx(70 / 255, abs=1e-3)


def test_the_data_folder_itself_may_be_given(root: Path) -> None:
    assert len(tiny_imagenet.read(root / "tiny-imagenet-200").train) == 6


def test_a_missing_set_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tiny-imagenet-200\.zip from .* put it into"):
        tiny_imagenet.read(tmp_path)


def test_missing_annotations_are_an_error(root: Path) -> None:
    (root / "tiny-imagenet-200/val/val_annotations.txt").unlink()
    with pytest.raises(DataError, match="val_annotations"):
        tiny_imagenet.read(root)


def test_a_member_missing_from_the_zip_is_an_error(root: Path) -> None:
    (root / "tiny-imagenet-200/words.txt").unlink()
    pack(root)
    with pytest.raises(DataError, match=r"words\.txt"):
        tiny_imagenet.read(root)


def test_a_validation_class_without_training_pictures_is_an_error(root: Path) -> None:
    shutil.rmtree(root / "tiny-imagenet-200/train/n02")
    with pytest.raises(DataError, match="missing"):
        tiny_imagenet.read(root)


def test_a_missing_validation_picture_is_named(root: Path) -> None:
    (root / "tiny-imagenet-200/val/images/val_2.JPEG").unlink()
    with pytest.raises(DataError, match=r"val_2\.JPEG"):
        tiny_imagenet.read(root)


def test_a_broken_zip_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match="download it again"):
        tiny_imagenet.read(tmp_path)
