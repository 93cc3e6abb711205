import io
import json
import pickle
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import rankwise
from rankwise.errors import DataError
from rankwise.lab.data import decoding
from rankwise.lab.data.dataset import FileSplit, MemorySplit
from rankwise.lab.data.hugging_face import load_hugging_face, read_parquet_images
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
    images = load_hugging_face(shared("histology") + "/test-00000-of-00001.parquet", 32)
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
    monkeypatch.setattr(decoding, "MEMORY_LIMIT", 1)  # to decode a few images only
    monkeypatch.setattr(decoding, "STATISTICS_SAMPLE", 200)
    images = load_hugging_face(shared("cifar100"), 32)
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
    images = load_hugging_face(str(tmp_path / "saved"), None)
    assert images.name == f"hf:{tmp_path / 'saved'}"
    assert images.classes == ("cat", "dog")
    assert reds(images.train) == [0, 1, 2, 3, 4, 5]
    assert images.train.targets.tolist() == [0, 1, 0, 1, 0, 1]
    assert reds(images.test) == [100, 101, 102]


def test_of_a_single_table_every_fifth_row_is_the_test(tmp_path: Path) -> None:
    table(12).save_to_disk(str(tmp_path / "saved"))
    images = load_hugging_face(str(tmp_path / "saved"), None)
    assert reds(images.test) == [4, 9]
    assert images.test.targets.tolist() == [0, 1]
    assert reds(images.train) == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]


@pytest.mark.parametrize("pattern", ["a.parquet", "*.parquet"])
def test_parquet_files_are_read_by_name_or_pattern(tmp_path: Path, pattern: str) -> None:
    table(10).to_parquet(tmp_path / "a.parquet")
    images = load_hugging_face(str(tmp_path / pattern), 4)
    assert images.shape == (3, 4, 4)
    assert (len(images.train), len(images.test)) == (8, 2)


def test_images_as_bare_structs_of_bytes_are_found(tmp_path: Path) -> None:
    cells = [{"bytes": png(number), "path": f"{number}.png"} for number in range(10)]
    plain = pa.table({"picture": cells, "label": [3, 5] * 5})
    pq.write_table(plain, tmp_path / "a.parquet")
    images = load_hugging_face(str(tmp_path / "a.parquet"), None)
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
    assert reds(load_hugging_face(str(tmp_path / "saved"), None).test) == [60, 61]


def test_a_set_too_large_for_memory_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(10).save_to_disk(str(tmp_path / "saved"))
    monkeypatch.setattr(decoding, "MEMORY_LIMIT", 100)
    images = load_hugging_face(str(tmp_path / "saved"), 4)
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
    assert load_hugging_face("somebody/pets", None).name == "hf:somebody/pets"
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
        load_hugging_face("somebody/pets", None)


def test_a_folder_without_data_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty can't be loaded"):
        load_hugging_face(str(tmp_path / "empty"), None)


def test_a_broken_parquet_file_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"bad\.parquet can't be loaded"):
        load_hugging_face(str(tmp_path / "bad.parquet"), None)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(rankwise.MissingExtraError, match="pip install datasets"):
        load_hugging_face("somebody/pets", None)


def saved(tmp_path: Path, data: datasets.Dataset | datasets.DatasetDict) -> str:
    data.save_to_disk(str(tmp_path / "saved"))
    return str(tmp_path / "saved")


def test_a_set_without_images_or_labels_is_an_error(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    with pytest.raises(DataError, match="its columns are text, label"):
        load_hugging_face(saved(tmp_path, data), None)


def test_a_set_without_a_training_split_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it has test"):
        load_hugging_face(saved(tmp_path, datasets.DatasetDict(test=table(2))), None)


def test_a_training_row_without_a_label_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="some have none"):
        load_hugging_face(saved(tmp_path, table(6, labels=[0, 1, 0, 1, 0, -1])), None)


def test_a_number_that_only_the_test_has_is_an_error(tmp_path: Path) -> None:
    number = datasets.Value("int64")
    both = datasets.DatasetDict(train=table(4, kind=number), test=table(1, labels=[7], kind=number))
    with pytest.raises(DataError, match="7 is in the test only"):
        load_hugging_face(saved(tmp_path, both), None)


def test_a_row_without_an_image_is_an_error(tmp_path: Path) -> None:
    features = datasets.Features(image=datasets.Image(), label=LABELS)
    cells = [{"bytes": png(1), "path": None}, None, {"bytes": png(2), "path": None}]
    data = datasets.Dataset.from_dict({"image": cells, "label": [0, 1, 0]}, features=features)
    both = datasets.DatasetDict(train=data, test=table(2))
    with pytest.raises(DataError, match="row 1 has none"):
        load_hugging_face(saved(tmp_path, both), None)


def test_a_broken_image_is_an_error_that_gives_its_row(tmp_path: Path) -> None:
    features = datasets.Features(image=datasets.Image(), label=LABELS)
    cells = [{"bytes": png(1), "path": None}, {"bytes": b"broken", "path": None}]
    data = datasets.Dataset.from_dict({"image": cells, "label": [0, 1]}, features=features)
    both = datasets.DatasetDict(train=data, test=table(2))
    with pytest.raises(DataError, match="image 1 can't be decoded"):
        load_hugging_face(saved(tmp_path, both), None)


def test_targets_are_whole_numbers(tmp_path: Path) -> None:
    images = load_hugging_face(saved(tmp_path, table(10)), None)
    assert images.train.targets.dtype == torch.int64


def _write(path: Path, images: list, labels: list, *, nested: bool = True, names=None) -> Path:
    if nested:
        images = [{"bytes": data, "path": None} for data in images]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    else:
        kind = pa.binary()
    table = pa.table({"img": pa.array(images, kind), "label": pa.array(labels)})
    if names is not None:
        described = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(described)})
    pq.write_table(table, path)
    return path


def _encode(image: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0))).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("nested", [True, False], ids=["struct", "binary"])
def test_shards_give_back_what_was_written_in_order(tmp_path, nested):
    images = torch.randint(0, 256, (5, 3, 5, 5), dtype=torch.uint8)
    encoded = [_encode(image) for image in images]
    files = [
        _write(tmp_path / "a.parquet", encoded[:3], [0, 1, 2], nested=nested),
        _write(tmp_path / "b.parquet", encoded[3:], [1, 0], nested=nested),
    ]
    split = read_parquet_images(files, label="label")[0]
    assert torch.equal(split.inputs, images)
    assert split.targets.tolist() == [0, 1, 2, 1, 0]
    assert split.targets.dtype is torch.int64


def test_the_class_names_are_those_of_the_metadata(tmp_path):
    file = _write(tmp_path / "a.parquet", [png(9, side=5)], [0], names=["cat", "dog"])
    split, classes = read_parquet_images([file], label="label")
    assert split.targets.tolist() == [0]
    assert classes == ["cat", "dog"]


@pytest.mark.parametrize(
    "note", [None, b"{", b"[]", b'{"info": null}', b'{"info": {"features": 3}}']
)
def test_classes_are_unknown_without_a_sound_description(tmp_path, note):
    file = _write(tmp_path / "a.parquet", [png(9, side=5)], [0])
    if note is not None:
        pq.write_table(pq.read_table(file).replace_schema_metadata({"huggingface": note}), file)
    assert read_parquet_images([file], label="label")[1] == []


@pytest.mark.parametrize(
    "columns",
    [{"words": ["a"], "label": [0]}, {"img": [b"x"], "fine": [0]}],
    ids=["no images", "no label"],
)
def test_a_file_without_images_or_labels_is_refused(tmp_path, columns):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    message = rf"a\.parquet: expected .* 'label', but its columns are {', '.join(columns)}"
    with pytest.raises(DataError, match=message):
        read_parquet_images([tmp_path / "a.parquet"], label="label")


@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        pytest.param(b"no image", 0, "decoded", id="noise"),
        pytest.param(None, 0, "NoneType", id="no bytes"),
        pytest.param(b"cut", 0, "decoded", id="cut off"),
        pytest.param(b"", 0, "decoded", id="empty"),
        pytest.param(b"ok", None, "None", id="no label"),
        pytest.param(b"ok", 0.5, "0.0", id="no integer"),
        pytest.param(b"other size", 0, "one size", id="other size"),
    ],
)
def test_a_broken_row_is_refused_by_the_name_of_its_file(tmp_path, image, label, message):
    good = png(9, side=5)
    made = {b"ok": good, b"cut": good[:40], b"other size": png(0, side=7)}
    images, labels = [good, made.get(image, image)], [type(label or 0)(0), label]
    file = _write(tmp_path / "a.parquet", images, labels)
    with pytest.raises(DataError, match=rf"a\.parquet.*{message}"):
        read_parquet_images([file], label="label")


def test_an_image_that_would_unpack_to_gigabytes_is_refused(tmp_path):
    """A PNG of some dozens of bytes whose header says 60,000 × 60,000."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 9))
    file = _write(tmp_path / "a.parquet", [bomb], [0])
    with pytest.raises(DataError, match=r"a\.parquet.*pixels"):
        read_parquet_images([file], label="label")


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path, kept):
    file = _write(tmp_path / "a.parquet", [png(9, side=5)], [0])
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"a\.parquet can't be read"):
        read_parquet_images([file], label="label")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(rankwise.MissingExtraError, match="pip install pyarrow"):
        read_parquet_images([tmp_path / "a.parquet"], label="label")
