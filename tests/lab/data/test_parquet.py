import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import rankwise
from rankwise.errors import DataError
from rankwise.lab.data.parquet import find_columns, read_split

pa = pytest.importorskip("pyarrow")
Image = pytest.importorskip("PIL.Image")
pq = pytest.importorskip("pyarrow.parquet")


def _png(image: torch.Tensor) -> bytes:
    """An image (3, H, W), or (H, W) if it is grey."""
    array = image.numpy() if image.dim() == 2 else image.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(buffer, "PNG")
    return buffer.getvalue()


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


def _images(count: int, size: int = 5) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)


@pytest.mark.parametrize("nested", [True, False], ids=["struct", "binary"])
def test_shards_give_back_what_was_written_in_order(tmp_path, nested):
    images = _images(5)
    encoded = [_png(image) for image in images]
    files = [
        _write(tmp_path / "a.parquet", encoded[:3], [0, 1, 2], nested=nested),
        _write(tmp_path / "b.parquet", encoded[3:], [1, 0], nested=nested),
    ]
    split = read_split(files, "img", "label")
    assert torch.equal(split.inputs, images)
    assert split.targets.tolist() == [0, 1, 2, 1, 0]
    assert split.targets.dtype is torch.int64


def test_columns_are_found_by_content_and_classes_by_metadata(tmp_path):
    file = _write(tmp_path / "a.parquet", [_png(_images(1)[0])], [0], names=["cat", "dog"])
    columns = find_columns(file)
    assert (columns.image, columns.label, columns.classes) == ("img", "label", ("cat", "dog"))


@pytest.mark.parametrize(
    "note", [None, b"{", b"[]", b'{"info": null}', b'{"info": {"features": 3}}']
)
def test_classes_are_unknown_without_a_sound_description(tmp_path, note):
    file = _write(tmp_path / "a.parquet", [_png(_images(1)[0])], [0])
    if note is not None:
        pq.write_table(pq.read_table(file).replace_schema_metadata({"huggingface": note}), file)
    assert find_columns(file).classes is None


def test_two_columns_of_numbers_leave_it_open_which_is_the_label(tmp_path):
    table = pa.table({"img": pa.array([b"x"]), "fine": [0], "coarse": [0]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="found fine, coarse"):
        find_columns(tmp_path / "a.parquet")
    assert find_columns(tmp_path / "a.parquet", label="fine").label == "fine"
    with pytest.raises(DataError, match="expected a column 'other'"):
        find_columns(tmp_path / "a.parquet", label="other")


def test_a_file_without_images_is_refused(tmp_path):
    pq.write_table(pa.table({"words": ["a"], "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: expected one column of encoded images"):
        find_columns(tmp_path / "a.parquet")


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
    good = _png(_images(1)[0])
    made = {b"ok": good, b"cut": good[:60], b"other size": _png(_images(1, size=6)[0])}
    images, labels = [good, made.get(image, image)], [type(label or 0)(0), label]
    file = _write(tmp_path / "a.parquet", images, labels)
    with pytest.raises(DataError, match=rf"a\.parquet.*{message}"):
        read_split([file], "img", "label")


def test_a_picture_that_would_unpack_to_gigabytes_is_refused(tmp_path):
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
        read_split([file], "img", "label")


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path, kept):
    file = _write(tmp_path / "a.parquet", [_png(_images(1)[0])], [0])
    file.write_bytes(file.read_bytes()[:kept])
    for call in (lambda: find_columns(file), lambda: read_split([file], "img", "label")):
        with pytest.raises(DataError, match=r"a\.parquet can't be read"):
            call()


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(rankwise.MissingExtraError, match=r"rankwise\[parquet\]"):
        find_columns(tmp_path / "a.parquet")
