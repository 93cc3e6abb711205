from pathlib import Path

import pytest
import torch

from rankwise.errors import ConfigError, DataError
from rankwise.lab import data
from rankwise.lab.data import load_dataset
from rankwise.lab.data.dataset import FileSplit, ImageDataset, MemorySplit, TextDataset


def test_digits_need_no_folder(tmp_path):
    dataset = load_dataset("digits", tmp_path / "nowhere")
    assert isinstance(dataset, ImageDataset)
    assert (dataset.name, dataset.shape) == ("digits", (1, 8, 8))


def test_names_and_prefixes_are_sorted_and_unique():
    for names in (data.DATASETS, data.PREFIXES):
        assert list(names) == sorted(set(names))


@pytest.mark.parametrize("name", sorted(set(data.DATASETS) - {"digits"}))
def test_every_named_dataset_that_is_missing_says_where_it_belongs(name, tmp_path):
    with pytest.raises(DataError, match=str(tmp_path)):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cifra10", "Did you mean cifar10"),
        ("Digits", "Did you mean digits"),
        ("fashion_mnist", "Did you mean fashion-mnist"),
        ("folder:", "folder:PATH"),
        ("zip:data", "no data set 'zip:data'"),
        ("", "no data set ''"),
    ],
)
def test_an_unknown_name_is_met_with_the_nearest_ones(name, hint, tmp_path):
    with pytest.raises(ConfigError, match=hint):
        load_dataset(name, tmp_path)


def test_images_in_memory_are_scaled_to_the_size():
    dataset = load_dataset("digits", Path("data"), image_size=12)
    assert dataset.shape == (1, 12, 12)
    assert dataset.train.inputs.shape == (1438, 1, 12, 12)
    assert dataset.test.inputs.shape == (359, 1, 12, 12)


def test_images_in_files_are_left_to_be_scaled_as_they_are_read(monkeypatch):
    images = torch.zeros(2, 3, 9, 9, dtype=torch.uint8)
    files = FileSplit(images.__getitem__, torch.tensor([0, 1]))
    made = ImageDataset("x", files, files, ("a", "b"), (3, 9, 9), (0.0,) * 3, (1.0,) * 3)
    monkeypatch.setitem(data.DATASETS, "digits", lambda root: made)
    dataset = load_dataset("digits", Path("data"), image_size=5)
    assert (dataset.shape, dataset.train) == ((3, 5, 5), files)


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_that_makes_no_sense_is_refused(size):
    with pytest.raises(ConfigError, match=f"got {size}"):
        load_dataset("digits", Path("data"), image_size=size)


def test_text_has_no_image_size(monkeypatch):
    words = TextDataset("ptb", torch.zeros(3).long(), torch.zeros(2).long(), ("a",))
    monkeypatch.setitem(data.DATASETS, "ptb", lambda root: words)
    assert load_dataset("ptb", Path("data")) is words
    with pytest.raises(ConfigError, match="is text"):
        load_dataset("ptb", Path("data"), image_size=8)


def test_what_follows_a_prefix_goes_to_its_loader(monkeypatch):
    made = MemorySplit(torch.zeros(1, 3, 7, 7, dtype=torch.uint8), torch.tensor([0]))
    asked = []

    def load(what: object, size: int | None = None) -> ImageDataset:
        asked.append((what, size))
        return ImageDataset("x", made, made, ("a",), (3, 7, 7), (0.0,) * 3, (1.0,) * 3)

    monkeypatch.setattr(data, "load_folder", load)
    monkeypatch.setitem(data.PREFIXES, "hf:", load)
    monkeypatch.setattr(data, "load_text", load)
    load_dataset("folder:a/b:c", Path("data"), image_size=7)
    load_dataset("hf:owner/name", Path("data"))
    load_dataset("text:words", Path("data"))
    assert asked == [(Path("a/b:c"), 7), ("owner/name", None), (Path("words"), None)]


def test_a_path_is_also_looked_for_below_the_root(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "own.txt").write_text("one two\n" * 20)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert load_dataset("text:own.txt", tmp_path / "data").words[:2] == ("one", "two")
    (tmp_path / "here" / "own.txt").write_text("three four\n" * 20)
    assert load_dataset("text:own.txt", tmp_path / "data").words[:2] == ("three", "four")
    with pytest.raises(DataError, match=r"none\.txt"):
        load_dataset("text:none.txt", tmp_path / "data")


def test_datasets_are_loaded_once_while_they_are_cached(tmp_path):
    with data.cache_datasets():
        first = load_dataset("digits", tmp_path)
        assert load_dataset("digits", tmp_path) is first
        load_dataset("digits", tmp_path, image_size=4)
        load_dataset("digits", tmp_path, image_size=5)  # a third one: the first is given up
        assert load_dataset("digits", tmp_path) is not first
    assert load_dataset("digits", tmp_path) is not load_dataset("digits", tmp_path)
