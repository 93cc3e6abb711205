import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rankwise.errors import DataError
from rankwise.lab.data import decoding
from rankwise.lab.data.dataset import FileSplit, ImageDataset, MemorySplit
from rankwise.lab.data.image_folders import load_folder, load_imagenet, load_tiny_imagenet


def write(place: Path, count: int, *, red: int = 0, side: int = 8, first: int = 0) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        Image.new("RGB", (side, side), (red, number, 0)).save(place / f"{number:03}.png")


def numbers(images: ImageDataset) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The target and the number (in the green channel) of each image, for train and test."""
    pairs = []
    for split in (images.train, images.test):
        assert isinstance(split, MemorySplit)
        greens = split.inputs[:, 1, 0, 0].tolist()
        pairs.append(list(zip(split.targets.tolist(), greens, strict=True)))
    return pairs[0], pairs[1]


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation"])
def test_train_and_test_folders_are_the_two_splits(tmp_path: Path, name: str) -> None:
    for number, kind in enumerate(["zebra", "ant"]):
        write(tmp_path / "train" / kind, 3, first=10 * number)
        write(tmp_path / name / kind, 1, first=100 + number)
    images = load_folder(tmp_path, None)
    assert images.classes == ("ant", "zebra")
    assert images.shape == (3, 8, 8)
    assert images.name == f"folder:{tmp_path}"
    train, test = numbers(images)
    assert train == [(0, 10), (0, 11), (0, 12), (1, 0), (1, 1), (1, 2)]
    assert test == [(0, 101), (1, 100)]


@pytest.mark.parametrize("inner", ["", "train"], ids=["classes only", "train only"])
def test_without_a_test_folder_every_fifth_of_each_class_is_the_test(
    tmp_path: Path, inner: str
) -> None:
    write(tmp_path / inner / "a", 11)
    write(tmp_path / inner / "b", 5, first=20)
    train, test = numbers(load_folder(tmp_path, None))
    assert test == [(0, 4), (0, 9), (1, 24)]
    assert len(train) == 13
    assert not set(train) & set(test)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    write(tmp_path / "train", 5)
    write(tmp_path / "bus", 5)
    assert load_folder(tmp_path, None).classes == ("bus", "train")


def test_the_image_size_is_the_one_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "a", 5, side=9)
    write(tmp_path / "b", 5, side=13)
    images = load_folder(tmp_path, 6)
    assert images.shape == (3, 6, 6)
    assert isinstance(images.train, MemorySplit)
    assert images.train.inputs.shape == (8, 3, 6, 6)


def test_mean_and_deviation_are_those_of_the_training_images(tmp_path: Path) -> None:
    for kind, red in (("a", 100), ("b", 200)):
        write(tmp_path / "train" / kind, 4, red=red)
        write(tmp_path / "test" / kind, 4, red=0)
    images = load_folder(tmp_path, None)
    assert images.mean[0] == pytest.approx(150 / 255)
    assert images.std[0] == pytest.approx(50 / 255)


def test_what_is_skipped_is_said_once_with_counts(tmp_path: Path) -> None:
    write(tmp_path / "a", 5)
    write(tmp_path / "b", 5)
    (tmp_path / "a" / "notes.txt").touch()
    (tmp_path / "b" / "Thumbs.db").touch()
    (tmp_path / "c").mkdir()
    (tmp_path / ".cache").mkdir()
    with pytest.warns(UserWarning, match="2 files that are not images and 1 class folder") as all_:
        images = load_folder(tmp_path, None)
    assert len(all_) == 1
    assert images.classes == ("a", "b")


def test_upper_case_extensions_count(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        write(tmp_path / kind, 5)
        for path in (tmp_path / kind).iterdir():
            path.rename(path.with_suffix(".PNG"))
    assert len(load_folder(tmp_path, None).train) == 8


def test_links_to_class_folders_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", 5)
    write(tmp_path / "set" / "a", 5)
    (tmp_path / "set" / "b").symlink_to(tmp_path / "elsewhere")
    assert len(load_folder(tmp_path / "set", None).train) == 8


def test_a_set_too_large_for_memory_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", 5)
    write(tmp_path / "b", 5)
    monkeypatch.setattr(decoding, "MEMORY_LIMIT", 100)
    images = load_folder(tmp_path, None)
    assert isinstance(images.train, FileSplit)
    assert images.train.targets.tolist() == [0] * 4 + [1] * 4
    assert images.train.read(3)[1].unique().tolist() == [3]
    assert images.mean[1] == pytest.approx(1.5 / 255)


def test_a_test_class_without_training_images_is_an_error(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        write(tmp_path / "train" / kind, 1)
        write(tmp_path / "test" / kind, 1)
    write(tmp_path / "test" / "c", 1)
    with pytest.raises(DataError, match="'c'"):
        load_folder(tmp_path, None)


def test_a_training_class_may_be_absent_from_the_test(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        write(tmp_path / "train" / kind, 1)
    write(tmp_path / "test" / "b", 2)
    assert load_folder(tmp_path, None).test.targets.tolist() == [1, 1]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        load_folder(tmp_path / "nowhere", None)


def test_fewer_than_two_classes_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a", 5)
    with pytest.raises(DataError, match="at least two class folders"):
        load_folder(tmp_path, None)


def test_too_few_images_for_a_test_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a", 4)
    write(tmp_path / "b", 4)
    with pytest.raises(DataError, match="at least 5 images"):
        load_folder(tmp_path, None)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", 5)
    write(tmp_path / "b", 5)
    (tmp_path / "b" / "002.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"b/002\.png"):
        load_folder(tmp_path, 8)


def test_targets_are_whole_numbers(tmp_path: Path) -> None:
    write(tmp_path / "a", 5)
    write(tmp_path / "b", 5)
    assert load_folder(tmp_path, None).train.targets.dtype == torch.int64


@pytest.fixture
def imagenet_root(tmp_path: Path) -> Path:
    for split, count in (("train", 3), ("val", 1)):
        for grey, kind in enumerate(("n01440764", "n15075141")):
            folder = tmp_path / "imagenet" / split / kind
            folder.mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (300, 280), (100 * grey,) * 3)
                image.save(folder / f"{kind}_{index}.JPEG")
    return tmp_path


def test_class_folders_are_streamed_at_224(imagenet_root: Path) -> None:
    images = load_imagenet(imagenet_root)
    assert images.shape == (3, 224, 224)
    assert images.classes == ("n01440764", "n15075141")
    assert images.mean == (0.485, 0.456, 0.406)
    assert images.std == (0.229, 0.224, 0.225)
    assert isinstance(images.train, FileSplit)
    assert isinstance(images.test, FileSplit)
    assert images.train.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.test.targets.tolist() == [0, 1]
    assert images.train.read(5).unique().tolist() == [100]


def test_training_images_keep_their_size_and_test_images_are_cut(imagenet_root: Path) -> None:
    images = load_imagenet(imagenet_root)
    assert isinstance(images.train, FileSplit)
    assert isinstance(images.test, FileSplit)
    assert images.train.read(0).shape == (3, 280, 300)
    assert images.test.read(0).shape == (3, 224, 224)


def test_test_images_are_scaled_to_256_before_the_cut(imagenet_root: Path) -> None:
    array = np.zeros((256, 256, 3), dtype=np.uint8)
    array[16:240, 16:240] = 255  # what is left when 16 pixels are cut off each side
    Image.fromarray(array).save(
        imagenet_root / "imagenet/val/n01440764/n01440764_0.JPEG", quality=100
    )
    images = load_imagenet(imagenet_root)
    assert isinstance(images.test, FileSplit)
    assert torch.all(images.test.read(0) > 240)


def test_a_missing_imagenet_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="imagenet/train/nXXXXXXXX"):
        load_imagenet(tmp_path)


def test_validation_images_outside_class_folders_are_an_error(
    imagenet_root: Path,
) -> None:
    for folder in (imagenet_root / "imagenet/val").iterdir():
        for path in folder.iterdir():
            path.rename(imagenet_root / "imagenet/val" / path.name)
        folder.rmdir()
    with pytest.raises(DataError, match="class folders"):
        load_imagenet(imagenet_root)


def test_classes_that_differ_are_an_error(imagenet_root: Path) -> None:
    (imagenet_root / "imagenet/val/n01440764").rename(imagenet_root / "imagenet/val/n99999999")
    with pytest.raises(DataError, match=r"n01440764 \(2 in all\)"):
        load_imagenet(imagenet_root)


@pytest.fixture
def tiny_root(tmp_path: Path) -> Path:
    """Two classes of three training images and four validation images, in that layout."""
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
def test_the_original_layout_is_read(tiny_root: Path, packed: bool) -> None:
    if packed:
        pack(tiny_root)
    images = load_tiny_imagenet(tiny_root)
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


def test_the_data_folder_itself_may_be_given(tiny_root: Path) -> None:
    assert len(load_tiny_imagenet(tiny_root / "tiny-imagenet-200").train) == 6


def test_a_missing_tiny_imagenet_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tiny-imagenet-200\.zip from .* put it into"):
        load_tiny_imagenet(tmp_path)


def test_missing_annotations_are_an_error(tiny_root: Path) -> None:
    (tiny_root / "tiny-imagenet-200/val/val_annotations.txt").unlink()
    with pytest.raises(DataError, match="val_annotations"):
        load_tiny_imagenet(tiny_root)


def test_a_member_missing_from_the_zip_is_an_error(tiny_root: Path) -> None:
    (tiny_root / "tiny-imagenet-200/words.txt").unlink()
    pack(tiny_root)
    with pytest.raises(DataError, match=r"words\.txt"):
        load_tiny_imagenet(tiny_root)


def test_a_validation_class_without_training_images_is_an_error(tiny_root: Path) -> None:
    shutil.rmtree(tiny_root / "tiny-imagenet-200/train/n02")
    with pytest.raises(DataError, match="missing"):
        load_tiny_imagenet(tiny_root)


def test_a_missing_validation_image_is_named(tiny_root: Path) -> None:
    (tiny_root / "tiny-imagenet-200/val/images/val_2.JPEG").unlink()
    with pytest.raises(DataError, match=r"val_2\.JPEG"):
        load_tiny_imagenet(tiny_root)


def test_a_broken_zip_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match="download it again"):
        load_tiny_imagenet(tmp_path)
