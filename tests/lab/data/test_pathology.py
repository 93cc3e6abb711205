import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rankwise.errors import DataError
from rankwise.lab.data import pathology
from rankwise.lab.data.dataset import MemorySplit

MHIST_HEADER = (
    "Image Name",
    "Majority Vote Label",
    "Number of Annotators who Selected SSA (Out of 7)",
    "Partition",
)
ADP_HEADER = ("Patch Names", "E", "E.M", "E.M.S", "E.T", "T")


def write(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def mhist(
    root: Path, rows: Sequence[Sequence[object]], header: Sequence[str] = MHIST_HEADER
) -> None:
    write(root / "mhist" / "annotations.csv", header, rows)
    (root / "mhist" / "images").mkdir()
    for index, row in enumerate(rows):
        Image.new("RGB", (224, 224), (index, 0, 0)).save(root / "mhist/images" / str(row[0]))


ROWS = [
    ("MHIST_aaa.png", "SSA", 6, "train"),
    ("MHIST_aab.png", "HP", 0, "train"),
    ("MHIST_aac.png", "SSA", 4, "test"),
    ("MHIST_aad.png", "HP", 2, "train"),
    ("MHIST_aae.png", "HP", 1, "test"),
]


def test_mhist_has_the_split_and_the_two_classes_of_its_table(tmp_path: Path) -> None:
    mhist(tmp_path, ROWS)
    images = pathology.load_mhist(tmp_path)
    assert images.name == "mhist"
    assert images.classes == ("HP", "SSA")
    assert images.shape == (3, 224, 224)
    assert not images.multilabel
    assert isinstance(images.train, MemorySplit)
    assert isinstance(images.test, MemorySplit)
    assert images.train.targets.tolist() == [1, 0, 0]
    assert images.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 3]
    assert images.test.targets.tolist() == [1, 0]
    assert images.test.inputs[:, 0, 0, 0].tolist() == [2, 4]


def test_a_missing_mhist_says_where_to_get_it_and_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"request it at https://bmirds.* unpack it into .*mhist"):
        pathology.load_mhist(tmp_path)


def test_mhist_without_a_needed_column_is_an_error(tmp_path: Path) -> None:
    mhist(tmp_path, ROWS, header=[*MHIST_HEADER[:3], "Set"])
    with pytest.raises(DataError, match="the column Partition is missing"):
        pathology.load_mhist(tmp_path)


def test_mhist_with_another_label_is_an_error(tmp_path: Path) -> None:
    mhist(tmp_path, [*ROWS, ("MHIST_aaf.png", "??", 3, "train")])
    with pytest.raises(DataError, match="HP and SSA"):
        pathology.load_mhist(tmp_path)


def test_mhist_with_a_missing_image_names_it(tmp_path: Path) -> None:
    mhist(tmp_path, ROWS)
    (tmp_path / "mhist/images/MHIST_aad.png").unlink()
    with pytest.raises(DataError, match=r"1 are missing, such as MHIST_aad\.png"):
        pathology.load_mhist(tmp_path)


def test_a_table_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    mhist(tmp_path, ROWS)
    (tmp_path / "mhist/annotations.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(DataError, match="UTF-8"):
        pathology.load_mhist(tmp_path)


def adp(root: Path, count: int, header: Sequence[str] = ADP_HEADER) -> None:
    """Pictures whose red channel is their number and whose labels are its binary digits."""
    rows = [
        [f"{index:03}.png", *(index >> bit & 1 for bit in range(len(header) - 1))]
        for index in range(count)
    ]
    write(root / "adp" / "ADP_EncodedLabels_Release1_Flat.csv", header, rows)
    folder = root / "adp" / "img_res_1um_bicubic"
    folder.mkdir()
    for index in range(count):
        Image.new("RGB", (272, 272), (index, 0, 0)).save(folder / f"{index:03}.png")


def numbers(split: object) -> list[int]:
    assert isinstance(split, MemorySplit)
    return split.inputs[:, 0, 0, 0].tolist()


def test_adp_has_several_labels_an_image(tmp_path: Path) -> None:
    adp(tmp_path, 12)
    images = pathology.load_adp(tmp_path)
    assert images.multilabel
    assert images.shape == (3, 272, 272)
    assert images.classes == ("E.M.S", "E.T", "T")  # E and E.M have labels below them
    assert images.train.targets.dtype == torch.float32
    for split in (images.train, images.test):
        expected = [[float(i >> bit & 1) for bit in (2, 3, 4)] for i in numbers(split)]
        assert split.targets.tolist() == expected


def test_without_a_split_every_patch_is_in_exactly_one_and_stays_there(tmp_path: Path) -> None:
    adp(tmp_path / "few", 12)
    adp(tmp_path / "more", 24)
    few, more = pathology.load_adp(tmp_path / "few"), pathology.load_adp(tmp_path / "more")
    assert sorted(numbers(few.train) + numbers(few.test)) == list(range(12))
    assert set(numbers(few.test)) == {number for number in numbers(more.test) if number < 12}
    assert 0 < len(more.test) < len(more.train) / 2


def test_the_22_classes_of_level_3_are_taken_where_the_table_has_them(tmp_path: Path) -> None:
    assert len(set(pathology.ADP_CLASSES)) == 22
    header = ["Patch Names", "E", "E.P", *reversed(pathology.ADP_CLASSES)]
    adp(tmp_path, 8, header)
    images = pathology.load_adp(tmp_path)
    assert images.classes == pathology.ADP_CLASSES
    assert images.train.targets.shape[1] == 22
    position = header.index("T") - 1
    expected = [float(i >> position & 1) for i in numbers(images.train)]
    assert images.train.targets[:, pathology.ADP_CLASSES.index("T")].tolist() == expected


def test_the_published_split_is_taken_where_it_is(tmp_path: Path) -> None:
    adp(tmp_path, 8)
    (tmp_path / "adp/splits").mkdir()
    np.save(tmp_path / "adp/splits/train.npy", np.array([6, 1, 2]))
    np.save(tmp_path / "adp/splits/test.npy", np.array([7, 3]))
    images = pathology.load_adp(tmp_path)
    assert numbers(images.train) == [1, 2, 6]
    assert numbers(images.test) == [3, 7]


def test_a_split_by_names_is_taken_where_it_is(tmp_path: Path) -> None:
    adp(tmp_path, 8)
    write(tmp_path / "adp/train.csv", ["Patch Names"], [["004.png"], ["000.png"]])
    write(tmp_path / "adp/test.csv", ["Patch Names"], [["005.png"]])
    images = pathology.load_adp(tmp_path)
    assert numbers(images.train) == [0, 4]
    assert numbers(images.test) == [5]


@pytest.mark.parametrize("content", [np.array([99]), np.array(["a"])], ids=["beyond", "text"])
def test_a_split_that_does_not_fit_the_table_is_an_error(
    tmp_path: Path, content: np.ndarray
) -> None:
    adp(tmp_path, 8)
    (tmp_path / "adp/splits").mkdir()
    np.save(tmp_path / "adp/splits/train.npy", np.array([0]))
    np.save(tmp_path / "adp/splits/test.npy", content)
    with pytest.raises(DataError, match=r"test\.npy"):
        pathology.load_adp(tmp_path)


def test_a_pickled_split_is_not_loaded(tmp_path: Path) -> None:
    adp(tmp_path, 8)
    (tmp_path / "adp/splits").mkdir()
    np.save(tmp_path / "adp/splits/train.npy", np.array([0]))
    np.save(tmp_path / "adp/splits/test.npy", np.array([{}], dtype=object))
    with pytest.raises(DataError, match="allow_pickle"):
        pathology.load_adp(tmp_path)


def test_a_missing_adp_says_where_to_get_it_and_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dsp\.utoronto\.ca.* unpack it into .*adp"):
        pathology.load_adp(tmp_path)


def test_adp_without_labels_is_an_error(tmp_path: Path) -> None:
    adp(tmp_path, 8, ["Patch Names"])
    with pytest.raises(DataError, match="label columns of 0 and 1"):
        pathology.load_adp(tmp_path)


def test_a_label_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    adp(tmp_path, 8, ["Patch Names", *pathology.ADP_CLASSES])
    table = tmp_path / "adp/ADP_EncodedLabels_Release1_Flat.csv"
    table.write_text(table.read_text().replace("002.png,0", "002.png,yes"))
    with pytest.raises(DataError, match="Expected 0 or 1"):
        pathology.load_adp(tmp_path)
