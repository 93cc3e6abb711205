import gzip
import struct
import sys
from pathlib import Path

import pytest
import torch

import rankwise
from rankwise.errors import DataError
from rankwise.lab.data import files, mnist


def _idx(*sizes: int, body: bytes, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + body


def _write(folder: Path, *, packed: bool, counts: tuple[int, int] = (7, 3)) -> dict[str, bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for stem, count in zip(("train", "t10k"), counts, strict=True):
        pixels = bytes(torch.randint(0, 256, (count * 784,)).tolist())
        files[f"{stem}-images-idx3-ubyte"] = _idx(count, 28, 28, body=pixels)
        files[f"{stem}-labels-idx1-ubyte"] = _idx(count, body=bytes(range(count)))
    for name, data in files.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)
    return files


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
@pytest.mark.parametrize("home", ["mnist", "MNIST/raw"])
def test_idx_files_give_back_what_was_written(tmp_path, packed, home):
    files = _write(tmp_path / home, packed=packed)
    dataset = mnist.load_mnist(tmp_path)
    assert dataset.train.inputs.shape == (7, 1, 28, 28)
    assert bytes(dataset.train.inputs.flatten().tolist()) == files["train-images-idx3-ubyte"][16:]
    assert bytes(dataset.test.inputs.flatten().tolist()) == files["t10k-images-idx3-ubyte"][16:]
    assert dataset.test.targets.tolist() == [0, 1, 2]
    assert dataset.test.targets.dtype is torch.int64
    assert (dataset.name, dataset.can_flip) == ("mnist", False)


def test_names_with_a_dot_are_read_too(tmp_path):
    _write(tmp_path / "mnist", packed=False)
    for path in (tmp_path / "mnist").iterdir():
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(mnist.load_mnist(tmp_path).train) == 7


def test_the_root_itself_counts_only_if_its_name_tells_the_set(tmp_path):
    for name in ("fashion-mnist", "anything"):
        _write(tmp_path / name, packed=True)
    dataset = mnist.load_fashion_mnist(tmp_path / "fashion-mnist")
    assert (dataset.name, dataset.can_flip, dataset.classes[-1]) == (
        "fashion-mnist",
        True,
        "Ankle boot",
    )
    with pytest.raises(DataError, match="not found"):
        mnist.load_mnist(tmp_path / "fashion-mnist")
    with pytest.raises(DataError, match="not found"):
        mnist.load_fashion_mnist(tmp_path / "anything")


def test_the_debian_package_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SYSTEM_FOLDER", tmp_path / "system")
    _write(tmp_path / "system" / "fashion-mnist", packed=True)
    assert len(mnist.load_fashion_mnist(tmp_path / "nowhere").test) == 3


def test_a_missing_set_says_what_to_put_where(tmp_path):
    with pytest.raises(DataError) as caught:
        mnist.load_mnist(tmp_path)
    for part in ("train-images-idx3-ubyte.gz", str(tmp_path / "MNIST" / "raw"), "digits"):
        assert part in str(caught.value)


def test_a_set_with_one_file_missing_names_the_file(tmp_path):
    _write(tmp_path / "mnist", packed=True)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"lacks t10k-labels-idx1-ubyte\.gz"):
        mnist.load_mnist(tmp_path)


HOSTILE = {
    "empty": b"",
    "header cut off": _idx(3, 28, 28, body=b"")[:9],
    "wrong type": _idx(3, 28, 28, body=bytes(3 * 784), kind=13),
    "wrong dimensions": _idx(3 * 784, body=bytes(3 * 784)),
    "wrong size": _idx(3, 32, 32, body=bytes(3 * 1024)),
    "other shape": _idx(3, 14, 56, body=bytes(3 * 784)),
    "no image": _idx(0, 28, 28, body=b""),
    "huge count": _idx(2**32 - 1, 28, 28, body=bytes(784)),
    "body cut off": _idx(3, 28, 28, body=bytes(3 * 784 - 1)),
    "body too long": _idx(3, 28, 28, body=bytes(3 * 784 + 1)),
    "other count than labels": _idx(2, 28, 28, body=bytes(2 * 784)),
}


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_broken_file_is_refused_by_name(tmp_path, name, packed):
    _write(tmp_path / "mnist", packed=packed)
    file = tmp_path / "mnist" / ("t10k-images-idx3-ubyte" + ".gz" * packed)
    file.write_bytes(gzip.compress(HOSTILE[name]) if packed else HOSTILE[name])
    wanted = "mnist: expected as many" if name == "other count than labels" else file.name
    with pytest.raises(DataError, match=wanted):
        mnist.load_mnist(tmp_path)


def test_a_cut_off_gzip_file_is_refused_by_name(tmp_path):
    _write(tmp_path / "mnist", packed=True)
    file = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged"):
        mnist.load_mnist(tmp_path)


def test_a_label_that_is_no_class_is_refused(tmp_path):
    _write(tmp_path / "mnist", packed=False)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(_idx(3, body=b"\x00\x0a\x01"))
    with pytest.raises(DataError, match="from 0 to 9"):
        mnist.load_mnist(tmp_path)


def test_no_more_is_unpacked_than_the_header_says(tmp_path):
    """A packed file of 20 kB that would unpack to 20 MB."""
    _write(tmp_path / "mnist", packed=True)
    bomb = gzip.compress(_idx(3, 28, 28, body=bytes(20_000_000)))
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    import tracemalloc

    tracemalloc.start()
    with pytest.raises(DataError, match="larger than"):
        mnist.load_mnist(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_digits_are_scaled_to_bytes_and_every_fifth_is_tested():
    from sklearn import datasets

    raw, dataset = datasets.load_digits(), mnist.load_digits()
    assert dataset.train.inputs.max() == 255
    assert dataset.test.inputs[1, 0, 3].tolist() == [round(v * 255 / 16) for v in raw.images[9, 3]]
    assert dataset.test.targets.tolist() == raw.target[4::5].tolist()
    assert len(dataset.train) + len(dataset.test) == 1797
    assert not dataset.can_flip


def test_digits_without_scikit_learn_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(rankwise.MissingExtraError, match="pip install scikit-learn"):
        mnist.load_digits()
