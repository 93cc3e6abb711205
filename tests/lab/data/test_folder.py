from pathlib import Path

import pytest
import torch
from PIL import Image

from rankwise.errors import DataError
from rankwise.lab.data import folder, pictures
from rankwise.lab.data.sets import FileSplit, ImageSet, MemorySplit


def write(place: Path, count: int, *, red: int = 0, side: int = 8, first: int = 0) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        Image.new("RGB", (side, side), (red, number, 0)).save(place / f"{number:03}.png")


def numbers(images: ImageSet) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The target and the number (in the green channel) of each image, for train and test."""
    found = []
    for split in (images.train, images.test):
        assert isinstance(split, MemorySplit)
        greens = split.inputs[:, 1, 0, 0].tolist()
        found.append(list(zip(split.targets.tolist(), greens, strict=True)))
    return found[0], found[1]


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation"])
def test_train_and_test_folders_are_the_two_splits(tmp_path: Path, name: str) -> None:
    for number, kind in enumerate(["zebra", "ant"]):
        write(tmp_path / "train" / kind, 3, first=10 * number)
        write(tmp_path / name / kind, 1, first=100 + number)
    images = folder.read(tmp_path, None)
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
    train, test = numbers(folder.read(tmp_path, None))
    assert test == [(0, 4), (0, 9), (1, 24)]
    assert len(train) == 13
    assert not set(train) & set(test)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    write(tmp_path / "train", 5)
    write(tmp_path / "bus", 5)
    assert folder.read(tmp_path, None).classes == ("bus", "train")


def test_the_image_size_is_the_one_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "a", 5, side=9)
    write(tmp_path / "b", 5, side=13)
    images = folder.read(tmp_path, 6)
    assert images.shape == (3, 6, 6)
    assert isinstance(images.train, MemorySplit)
    assert images.train.inputs.shape == (8, 3, 6, 6)


def test_mean_and_deviation_are_those_of_the_training_images(tmp_path: Path) -> None:
    for kind, red in (("a", 100), ("b", 200)):
        write(tmp_path / "train" / kind, 4, red=red)
        write(tmp_path / "test" / kind, 4, red=0)
    images = folder.read(tmp_path, None)
    assert images.mean[0] == pytest.approx(150 / 255)
    assert images.std[0] == pytest.approx(50 / 255)


def test_what_is_skipped_is_said_once_with_counts(tmp_path: Path) -> None:
    write(tmp_path / "a", 5)
    write(tmp_path / "b", 5)
    (tmp_path / "a" / "notes.txt").touch()
    (tmp_path / "b" / "Thumbs.db").touch()
    (tmp_path / "c").mkdir()
    (tmp_path / ".cache").mkdir()
    with pytest.warns(
        UserWarning, match="2 entries that are no pictures and 1 class folder"
    ) as all_:
        images = folder.read(tmp_path, None)
    assert len(all_) == 1
    assert images.classes == ("a", "b")


def test_upper_case_extensions_count(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        write(tmp_path / kind, 5)
        for path in (tmp_path / kind).iterdir():
            path.rename(path.with_suffix(".PNG"))
    assert len(folder.read(tmp_path, None).train) == 8


def test_links_to_class_folders_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", 5)
    write(tmp_path / "set" / "a", 5)
    (tmp_path / "set" / "b").symlink_to(tmp_path / "elsewhere")
    assert len(folder.read(tmp_path / "set", None).train) == 8


def test_a_set_too_large_for_memory_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", 5)
    write(tmp_path / "b", 5)
    monkeypatch.setattr(pictures, "MEMORY_LIMIT", 100)
    images = folder.read(tmp_path, None)
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
        folder.read(tmp_path, None)


def test_a_training_class_may_be_absent_from_the_test(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        write(tmp_path / "train" / kind, 1)
    write(tmp_path / "test" / "b", 2)
    assert folder.read(tmp_path, None).test.targets.tolist() == [1, 1]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        folder.read(tmp_path / "nowhere", None)


def test_fewer_than_two_classes_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a", 5)
    with pytest.raises(DataError, match="at least two class folders"):
        folder.read(tmp_path, None)


def test_too_few_pictures_for_a_test_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a", 4)
    write(tmp_path / "b", 4)
    with pytest.raises(DataError, match="at least 5 pictures"):
        folder.read(tmp_path, None)


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", 5)
    write(tmp_path / "b", 5)
    (tmp_path / "b" / "002.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"b/002\.png"):
        folder.read(tmp_path, 8)


def test_targets_are_whole_numbers(tmp_path: Path) -> None:
    write(tmp_path / "a", 5)
    write(tmp_path / "b", 5)
    assert folder.read(tmp_path, None).train.targets.dtype == torch.int64
