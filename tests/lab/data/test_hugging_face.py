import io
import pickle
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import rankwise
from rankwise.errors import DataError
from rankwise.lab.data import hugging_face, pictures
from rankwise.lab.data.sets import FileSplit, MemorySplit
from tests import SHARED

LABELS = datasets.ClassLabel(names=["cat", "dog"])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def shared(name: str) -> str:
    if not (SHARED / name).is_dir():
        pytest.skip(f"needs the shared data folder beside the project: {name}")
    return str(SHARED / name)


def png(red: int, side: int = 6) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (red, 0, 0)).save(file, "PNG")
    return file.getvalue()


def table(
    count: int, *, first: int = 0, labels: list[int] | None = None, kind: object = LABELS
) -> datasets.Dataset:
    """Images whose red channel is their number, of two classes by turns."""
    cells = [{"bytes": png(number), "path": None} for number in range(first, first + count)]
    features = datasets.Features(image=datasets.Image(), label=kind)
    values = labels or [number % 2 for number in range(count)]
    return datasets.Dataset.from_dict({"image": cells, "label": values}, features=features)


def reds(split: object) -> list[int]:
    assert isinstance(split, MemorySplit)
    return split.inputs[:, 0, 0, 0].tolist()


def test_a_parquet_file_of_real_tissue_is_read_at_another_size() -> None:
    images = hugging_face.read(shared("histology") + "/test-00000-of-00001.parquet", 32)
    assert images.shape == (3, 32, 32)
    assert len(images.classes) == 5
    assert isinstance(images.train, MemorySplit)
    assert images.train.inputs.shape == (400, 3, 32, 32)
    assert len(images.test) == 100
    every = torch.cat([images.train.targets, images.test.targets])
    assert every.bincount().tolist() == [100] * 5
    assert all(0.4 < mean < 0.9 for mean in images.mean)  # stained tissue is bright
    assert images.mean[0] > images.mean[1]  # and pink: more red than green


def test_a_folder_of_real_parquet_files_has_its_own_splits_and_fine_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pictures, "MEMORY_LIMIT", 1)  # to decode a few images only
    monkeypatch.setattr(pictures, "STATISTICS_SAMPLE", 200)
    images = hugging_face.read(shared("cifar100"), 32)
    assert images.shape == (3, 32, 32)
    assert len(images.classes) == 100
    assert images.classes[0] == "apple"
    assert images.train.targets.bincount().tolist() == [100] * 100
    assert images.test.targets.bincount().tolist() == [20] * 100
    assert isinstance(images.train, FileSplit)
    assert images.train.read(9_999).shape == (3, 32, 32)
    published = (0.507, 0.487, 0.441)
    assert images.mean == pytest.approx(published, abs=0.03)


def test_a_saved_set_is_read(tmp_path: Path) -> None:
    both = datasets.DatasetDict(train=table(6), test=table(3, first=100))
    both.save_to_disk(str(tmp_path / "saved"))
    images = hugging_face.read(str(tmp_path / "saved"), None)
    assert images.name == f"hf:{tmp_path / 'saved'}"
    assert images.classes == ("cat", "dog")
    assert reds(images.train) == [0, 1, 2, 3, 4, 5]
    assert images.train.targets.tolist() == [0, 1, 0, 1, 0, 1]
    assert reds(images.test) == [100, 101, 102]


def test_of_a_single_table_every_fifth_row_is_the_test(tmp_path: Path) -> None:
    table(12).save_to_disk(str(tmp_path / "saved"))
    images = hugging_face.read(str(tmp_path / "saved"), None)
    assert reds(images.test) == [4, 9]
    assert images.test.targets.tolist() == [0, 1]
    assert reds(images.train) == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]


@pytest.mark.parametrize("pattern", ["a.parquet", "*.parquet"])
def test_parquet_files_are_read_by_name_or_pattern(tmp_path: Path, pattern: str) -> None:
    table(10).to_parquet(tmp_path / "a.parquet")
    images = hugging_face.read(str(tmp_path / pattern), 4)
    assert images.shape == (3, 4, 4)
    assert (len(images.train), len(images.test)) == (8, 2)


def test_images_as_bare_structs_of_bytes_are_found(tmp_path: Path) -> None:
    cells = [{"bytes": png(number), "path": f"{number}.png"} for number in range(10)]
    plain = pa.table({"picture": cells, "label": [3, 5] * 5})
    pq.write_table(plain, tmp_path / "a.parquet")
    images = hugging_face.read(str(tmp_path / "a.parquet"), None)
    assert reds(images.test) == [4, 9]
    assert images.classes == ("3", "5")
    assert images.test.targets.tolist() == [0, 1]


def test_a_test_split_without_labels_is_passed_over_for_the_validation(tmp_path: Path) -> None:
    both = datasets.DatasetDict(
        train=table(4),
        test=table(2, first=50, labels=[-1, -1]),
        validation=table(2, first=60),
    )
    both.save_to_disk(str(tmp_path / "saved"))
    assert reds(hugging_face.read(str(tmp_path / "saved"), None).test) == [60, 61]


def test_a_set_too_large_for_memory_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(10).save_to_disk(str(tmp_path / "saved"))
    monkeypatch.setattr(pictures, "MEMORY_LIMIT", 100)
    images = hugging_face.read(str(tmp_path / "saved"), 4)
    assert isinstance(images.train, FileSplit)
    read = pickle.loads(pickle.dumps(images.train.read))  # noqa: S301
    assert read(7)[0].unique().tolist() == [8]
    assert isinstance(images.test, FileSplit)
    assert images.test.read(0).shape == (3, 4, 4)


def test_a_hub_id_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def load(name: str) -> datasets.DatasetDict:
        asked.append(name)
        return datasets.DatasetDict(train=table(4), test=table(2))

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert hugging_face.read("somebody/pets", None).name == "hf:somebody/pets"
    assert asked == ["somebody/pets"]


@pytest.mark.parametrize(
    "error",
    [ConnectionError("offline"), datasets.exceptions.DatasetNotFoundError("unknown")],
    ids=["offline", "unknown"],
)
def test_a_set_that_can_not_be_had_is_a_data_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load(name: str) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError, match=rf"somebody/pets can't be loaded .*{error}"):
        hugging_face.read("somebody/pets", None)


def test_a_folder_without_data_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty can't be loaded"):
        hugging_face.read(str(tmp_path / "empty"), None)


def test_a_broken_parquet_file_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"bad\.parquet can't be loaded"):
        hugging_face.read(str(tmp_path / "bad.parquet"), None)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(rankwise.MissingExtraError, match=r"rankwise\[hf\]"):
        hugging_face.read("somebody/pets", None)


def saved(tmp_path: Path, data: datasets.Dataset | datasets.DatasetDict) -> str:
    data.save_to_disk(str(tmp_path / "saved"))
    return str(tmp_path / "saved")


def test_a_set_without_images_or_labels_is_an_error(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    with pytest.raises(DataError, match="its columns are text, label"):
        hugging_face.read(saved(tmp_path, data), None)


def test_a_set_without_a_training_split_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found test"):
        hugging_face.read(saved(tmp_path, datasets.DatasetDict(test=table(2))), None)


def test_a_training_row_without_a_label_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="some have none"):
        hugging_face.read(saved(tmp_path, table(6, labels=[0, 1, 0, 1, 0, -1])), None)


def test_a_number_that_only_the_test_has_is_an_error(tmp_path: Path) -> None:
    number = datasets.Value("int64")
    both = datasets.DatasetDict(train=table(4, kind=number), test=table(1, labels=[7], kind=number))
    with pytest.raises(DataError, match="7 is in the test only"):
        hugging_face.read(saved(tmp_path, both), None)


def test_a_row_without_an_image_is_an_error(tmp_path: Path) -> None:
    features = datasets.Features(image=datasets.Image(), label=LABELS)
    cells = [{"bytes": png(1), "path": None}, None, {"bytes": png(2), "path": None}]
    data = datasets.Dataset.from_dict({"image": cells, "label": [0, 1, 0]}, features=features)
    both = datasets.DatasetDict(train=data, test=table(2))
    with pytest.raises(DataError, match="row 1 has none"):
        hugging_face.read(saved(tmp_path, both), None)


def test_a_broken_image_is_an_error_that_gives_its_row(tmp_path: Path) -> None:
    features = datasets.Features(image=datasets.Image(), label=LABELS)
    cells = [{"bytes": png(1), "path": None}, {"bytes": b"broken", "path": None}]
    data = datasets.Dataset.from_dict({"image": cells, "label": [0, 1]}, features=features)
    both = datasets.DatasetDict(train=data, test=table(2))
    with pytest.raises(DataError, match="picture 1 can't be decoded"):
        hugging_face.read(saved(tmp_path, both), None)


def test_targets_are_whole_numbers(tmp_path: Path) -> None:
    images = hugging_face.read(saved(tmp_path, table(10)), None)
    assert images.train.targets.dtype == torch.int64
