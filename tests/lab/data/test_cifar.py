import io
import pickle
import tarfile
from pathlib import Path

import pytest
import torch

from rankwise.errors import DataError
from rankwise.lab.data import cifar
from tests import SHARED

NAMES10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def _records(count: int, labels: int, classes: int) -> tuple[bytes, torch.Tensor, torch.Tensor]:
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    targets = torch.randint(0, classes, (count, labels), dtype=torch.uint8)
    data = torch.cat([targets, images.flatten(1)], 1).flatten()
    return bytes(data.tolist()), images, targets[:, -1].long()


def _cifar10() -> tuple[dict[str, bytes], torch.Tensor, torch.Tensor]:
    """The files, the training images and the training labels."""
    parts = [_records(2, 1, 10) for _ in range(5)]
    files = {f"data_batch_{number + 1}.bin": part[0] for number, part in enumerate(parts)}
    files["test_batch.bin"] = _records(3, 1, 10)[0]
    files["batches.meta.txt"] = ("\n".join(NAMES10) + "\n\n").encode()
    return files, torch.cat([p[1] for p in parts]), torch.cat([p[2] for p in parts])


def _folder(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _archive(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _inside(files: dict[str, bytes], folder: str = "cifar-10-batches-bin") -> dict[str, bytes]:
    return {f"{folder}/{name}": data for name, data in files.items()}


@pytest.mark.parametrize("home", [".", "cifar10", "cifar-10"])
@pytest.mark.parametrize("form", ["folder", "tar.gz", "tar"])
def test_the_binary_version_gives_back_what_was_written(tmp_path, form, home):
    files, images, targets = _cifar10()
    if form == "folder":
        _folder(tmp_path / home / "cifar-10-batches-bin", files)
    else:
        path = tmp_path / home / f"cifar-10-binary.{form}"
        _archive(path, _inside(files), "w:gz" if form == "tar.gz" else "w")
    dataset = cifar.load_cifar10(tmp_path)
    assert torch.equal(dataset.train.inputs, images)
    assert torch.equal(dataset.train.targets, targets)
    assert len(dataset.test) == 3
    assert dataset.classes == tuple(NAMES10)
    assert dataset.shape == (3, 32, 32)


@pytest.mark.parametrize("form", ["folder", "tar.gz"])
def test_cifar100_takes_the_fine_label(tmp_path, form):
    train, images, fine = _records(4, 2, 100)
    names = [f"kind_{number}" for number in range(100)]
    files = {"train.bin": train, "test.bin": _records(2, 2, 100)[0]}
    files["fine_label_names.txt"] = "\n".join(names).encode()
    if form == "folder":
        _folder(tmp_path / "cifar-100-binary", files)
    else:
        _archive(tmp_path / "cifar-100-binary.tar.gz", _inside(files, "cifar-100-binary"))
    dataset = cifar.load_cifar100(tmp_path)
    assert torch.equal(dataset.train.targets, fine)
    assert torch.equal(dataset.train.inputs, images)
    assert dataset.classes == tuple(names)


def test_without_its_list_of_names_the_classes_are_numbered(tmp_path):
    files, _, _ = _cifar10()
    del files["batches.meta.txt"]
    _folder(tmp_path / "cifar-10-batches-bin", files)
    assert cifar.load_cifar10(tmp_path).classes == tuple("0123456789")


def test_members_with_other_names_are_never_touched(tmp_path):
    files, images, _ = _cifar10()
    wrong = _records(2, 1, 10)[0]
    odd = {
        "../data_batch_1.bin": wrong,
        "/cifar-10-batches-bin/data_batch_1.bin": wrong,
        "cifar-10-batches-bin/../../escaped": b"x",
        "other/cifar-10-batches-bin/data_batch_1.bin": wrong,
    }
    inside = tmp_path / "data"
    _archive(inside / "cifar-10-binary.tar.gz", {**odd, **_inside(files)})
    assert torch.equal(cifar.load_cifar10(inside).train.inputs, images)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [
        "cifar-10-binary.tar.gz"
    ]


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    files, _, _ = _cifar10()
    secret = tmp_path / "secret"
    secret.write_bytes(files.pop("test_batch.bin"))
    path = tmp_path / "cifar-10-binary.tar"
    _archive(path, _inside(files), "w")
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(link)
    with pytest.raises(DataError, match=r"lacks test_batch\.bin"):
        cifar.load_cifar10(tmp_path)


@pytest.mark.parametrize("form", ["folder", "tar.gz"])
@pytest.mark.parametrize("damage", ["cut off", "missing", "empty", "label"])
def test_a_broken_file_is_refused_by_name(tmp_path, form, damage):
    files, _, _ = _cifar10()
    name = "data_batch_3.bin"
    broken = {"cut off": files[name][:-1], "empty": b"", "label": b"\x0a" + files[name][1:]}
    if damage == "missing":
        del files[name]
    else:
        files[name] = broken[damage]
    if form == "folder":
        _folder(tmp_path / "cifar-10-batches-bin", files)
    else:
        _archive(tmp_path / "cifar-10-binary.tar.gz", _inside(files))
    wanted = "labels from 0 to 9" if damage == "label" else name
    with pytest.raises(DataError, match=wanted):
        cifar.load_cifar10(tmp_path)


@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.99])
@pytest.mark.parametrize("form", ["tar.gz", "tar"])
def test_an_archive_that_is_cut_off_is_refused_by_name(tmp_path, form, kept):
    files, _, _ = _cifar10()
    del files["batches.meta.txt"]  # else a cut at the end is harmless
    path = tmp_path / f"cifar-10-binary.{form}"
    _archive(path, _inside(files), "w:gz" if form == "tar.gz" else "w")
    whole = path.read_bytes()
    # A tar archive ends with kilobytes of zeros that nobody misses.
    path.write_bytes(whole[: int(kept * len(whole.rstrip(b"\0")))])
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar"):
        cifar.load_cifar10(tmp_path)


def test_noise_in_the_place_of_the_archive_is_refused(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"\x1f\x8b" + bytes(range(256)) * 8)
    with pytest.raises(DataError, match="damaged"):
        cifar.load_cifar10(tmp_path)


@pytest.mark.parametrize("size", [10**6, 2**40], ids=["large", "absurd"])
def test_an_archive_is_not_unpacked_past_a_limit(tmp_path, monkeypatch, size):
    monkeypatch.setattr(cifar, "_MAX_BYTES", 500_000)
    header = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    header.size = size
    import gzip

    packed = gzip.compress(header.tobuf() + bytes(2_000_000))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(packed)
    with pytest.raises(DataError, match="larger than"):
        cifar.load_cifar10(tmp_path)


class _Bomb:
    def __reduce__(self):
        return (pytest.fail, ("the pickle was read",))


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_the_pickled_version_is_refused_unread(tmp_path, form):
    if form == "folder":
        _folder(tmp_path / "cifar-10-batches-py", {"data_batch_1": pickle.dumps(_Bomb())})
    else:
        members = {"cifar-10-batches-py/data_batch_1": pickle.dumps(_Bomb())}
        _archive(tmp_path / "cifar-10-python.tar.gz", members)
    with pytest.raises(DataError, match=r"pickled.*cifar-10-binary\.tar\.gz"):
        cifar.load_cifar10(tmp_path)


def test_a_missing_set_says_what_to_put_where(tmp_path):
    with pytest.raises(DataError) as caught:
        cifar.load_cifar100(tmp_path)
    for part in ("cifar-100-binary.tar.gz", str(tmp_path / "cifar100"), "digits"):
        assert part in str(caught.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_the_real_images_are_read_from_parquet(name, classes, monkeypatch):
    if not (SHARED / name).is_dir():
        pytest.skip("needs the shared data folder beside the project: real images")
    # The training shard takes seconds; the test shard has the same layout.
    test = sorted((SHARED / name).glob("test*.parquet"))
    monkeypatch.setattr(cifar, "_list_shards", lambda folder, split: test)
    dataset = {"cifar10": cifar.load_cifar10, "cifar100": cifar.load_cifar100}[name](SHARED)
    assert len(dataset.train) == 2000
    assert dataset.test.targets.bincount().tolist() == [2000 // classes] * classes
    assert (len(dataset.classes), dataset.classes[0]) == (
        classes,
        ["airplane", "apple"][classes > 10],
    )
    # As published for the whole sets, to the sampling error.
    published = {"cifar10": [0.4914, 0.4822, 0.4465], "cifar100": [0.5071, 0.4865, 0.4409]}
    assert dataset.mean == pytest.approx(published[name], abs=0.01)


def test_parquet_files_without_the_test_images_are_refused(tmp_path):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "train-0.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"lacks test\*\.parquet"):
        cifar.load_cifar10(tmp_path)
