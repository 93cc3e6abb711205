from pathlib import Path

import pytest
import torch

from rankwise.errors import ConfigError, DataError
from rankwise.lab import data
from rankwise.lab.data import find, text
from rankwise.lab.data.places import Source, homes, read_all
from rankwise.lab.data.sets import FileSplit, ImageSet, MemorySplit, TextSet


def test_digits_need_no_folder(tmp_path):
    found = find("digits", tmp_path / "nowhere")
    assert isinstance(found, ImageSet)
    assert (found.name, found.shape) == ("digits", (1, 8, 8))


def test_names_and_prefixes_are_sorted_and_unique():
    for names in (data.NAMES, data.PREFIXES):
        assert list(names) == sorted(set(names))


@pytest.mark.parametrize("name", sorted(set(data.NAMES) - {"digits"}))
def test_every_named_set_that_is_missing_says_where_it_belongs(name, tmp_path, monkeypatch):
    from rankwise.lab.data import mnist

    monkeypatch.setattr(mnist, "_DEBIAN", tmp_path / "debian")
    with pytest.raises(DataError, match=str(tmp_path)):
        find(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cifra10", "did you mean cifar10"),
        ("Digits", "did you mean digits"),
        ("fashion_mnist", "did you mean fashion-mnist"),
        ("folder:", "folder:PATH"),
        ("zip:data", "got 'zip:data'"),
        ("", "got ''"),
    ],
)
def test_an_unknown_name_is_met_with_the_nearest_ones(name, hint, tmp_path):
    with pytest.raises(ConfigError, match=hint):
        find(name, tmp_path)


def test_images_in_memory_are_scaled_to_the_size():
    found = find("digits", Path("data"), image_size=12)
    assert found.shape == (1, 12, 12)
    assert found.train.inputs.shape == (1438, 1, 12, 12)
    assert found.test.inputs.shape == (359, 1, 12, 12)


def test_images_in_files_are_left_to_be_scaled_as_they_are_read(monkeypatch):
    images = torch.zeros(2, 3, 9, 9, dtype=torch.uint8)
    files = FileSplit(images.__getitem__, torch.tensor([0, 1]))
    made = ImageSet("x", files, files, ("a", "b"), (3, 9, 9), (0.0,) * 3, (1.0,) * 3)
    monkeypatch.setitem(data._NAMED, "digits", lambda root: made)
    found = find("digits", Path("data"), image_size=5)
    assert (found.shape, found.train) == ((3, 5, 5), files)


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_that_makes_no_sense_is_refused(size):
    with pytest.raises(ConfigError, match=f"got {size}"):
        find("digits", Path("data"), image_size=size)


def test_text_has_no_image_size(monkeypatch):
    words = TextSet("ptb", torch.zeros(3).long(), torch.zeros(2).long(), ("a",))
    monkeypatch.setitem(data._NAMED, "ptb", lambda root: words)
    assert find("ptb", Path("data")) is words
    with pytest.raises(ConfigError, match="is text"):
        find("ptb", Path("data"), image_size=8)


def test_what_follows_a_prefix_goes_to_its_reader(monkeypatch):
    from rankwise.lab.data import folder

    made = MemorySplit(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), torch.tensor([0]))
    asked = []

    def reader(what: object, size: int | None = None) -> ImageSet:
        asked.append((what, size))
        return ImageSet("x", made, made, ("a",), (3, 2, 2), (0.0,) * 3, (1.0,) * 3)

    monkeypatch.setattr(folder, "read", reader)
    monkeypatch.setitem(data._PREFIXED, "hf:", reader)
    monkeypatch.setattr(text, "read_text", reader)
    find("folder:a/b:c", Path("data"), image_size=7)
    find("hf:owner/name", Path("data"))
    find("text:words", Path("data"))
    assert asked == [(Path("a/b:c"), 7), ("owner/name", None), (Path("words"), None)]


def test_the_root_is_a_sets_own_folder_if_it_is_so_named(tmp_path):
    names = ("mnist", "MNIST/raw")
    assert homes(tmp_path, names) == [tmp_path / "mnist", tmp_path / "MNIST" / "raw"]
    assert homes(tmp_path / "mnist", names)[-1] == tmp_path / "mnist"
    assert homes(tmp_path / "MNIST" / "raw", names)[-1] == tmp_path / "MNIST" / "raw"
    assert (tmp_path / "raw") not in homes(tmp_path / "raw", names)


def test_a_source_gives_all_up_to_its_limit_and_refuses_more(tmp_path):
    (tmp_path / "file").write_bytes(b"abcde")
    with Source(tmp_path / "file", 5) as source:
        assert read_all(source) == b"abcde"
    with Source(tmp_path / "file", 4) as source, pytest.raises(DataError, match="holds more"):
        read_all(source)


def test_a_source_that_can_not_be_opened_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing can't be read: No such file"):
        Source(tmp_path / "nothing", 5)


def test_a_path_is_also_looked_for_below_the_root(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "own.txt").write_text("one two\n" * 20)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert find("text:own.txt", tmp_path / "data").words[:2] == ("one", "two")
    (tmp_path / "here" / "own.txt").write_text("three four\n" * 20)
    assert find("text:own.txt", tmp_path / "data").words[:2] == ("three", "four")
    with pytest.raises(DataError, match=r"none\.txt"):
        find("text:none.txt", tmp_path / "data")


def test_sets_are_read_once_while_they_are_remembered(tmp_path):
    with data.remembering():
        first = find("digits", tmp_path)
        assert find("digits", tmp_path) is first
        find("digits", tmp_path, image_size=4)
        find("digits", tmp_path, image_size=5)  # a third one: the first is given up
        assert find("digits", tmp_path) is not first
    assert find("digits", tmp_path) is not find("digits", tmp_path)
