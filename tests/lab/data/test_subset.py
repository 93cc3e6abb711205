"""A part of a data set."""

import pickle
from dataclasses import replace

import pytest
import torch

from rankwise.lab import ConfigError
from rankwise.lab.data.memory import memory_set
from rankwise.lab.data.sets import FileSplit, MemorySplit, TextSet
from rankwise.lab.data.subset import subset


def split(counts):
    targets = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    number = torch.arange(len(targets), dtype=torch.uint8)
    return MemorySplit(number.view(-1, 1, 1, 1).expand(-1, 3, 2, 2).contiguous(), targets)


@pytest.fixture
def images():
    return memory_set("some", split([40, 20, 40]), split([10, 5, 10]), ("a", "b", "c"))


def numbers(part):
    return part.inputs[:, 0, 0, 0].tolist()


def test_each_class_keeps_its_share(images):
    part = subset(images, 50, validate=False)
    assert part.train.targets.bincount().tolist() == [20, 10, 20]
    assert numbers(part.test) == numbers(images.test)


def test_a_smaller_part_is_in_a_larger_one(images):
    small, large = (set(numbers(subset(images, n, validate=False).train)) for n in (30, 60))
    assert small < large


def test_what_is_held_out_is_none_of_what_is_trained_on_and_has_each_class_too(images):
    part = subset(images, 60, validate=True)
    assert len(part.test) == len(images.test) == 25
    assert set(numbers(part.test)).isdisjoint(numbers(part.train))
    assert part.test.targets.bincount().tolist() == [10, 5, 10]


def test_what_is_left_may_be_less_than_a_test(images):
    assert len(subset(images, 95, validate=True).test) == 5


def test_labels_stay_with_their_images(images):
    part = subset(images, 30, validate=True)
    for some in (part.train, part.test):
        assert some.targets.tolist() == [int(images.train.targets[i]) for i in numbers(some)]


def test_several_labels_an_image(images):
    labels = torch.zeros(100, 3).scatter_(1, images.train.targets[:, None], 1.0)
    several = replace(images, train=MemorySplit(images.train.inputs, labels), multilabel=True)
    part = subset(several, 30, validate=True)
    assert part.train.targets.shape == (30, 3)
    assert numbers(part.train) == numbers(subset(several, 30, validate=False).train)
    assert numbers(part.train) != list(range(30))  # not the first ones, whatever their order


def read(index):
    return torch.full((3, 2, 2), index, dtype=torch.uint8)


def test_images_in_files_are_read_by_their_new_numbers(images):
    files = replace(images, train=FileSplit(read, images.train.targets))
    expected = subset(images, 30, validate=False).train
    train = pickle.loads(pickle.dumps(subset(files, 30, validate=False).train))  # noqa: S301
    assert [int(train.read(i)[0, 0, 0]) for i in range(30)] == numbers(expected)
    assert train.targets.tolist() == expected.targets.tolist()


def test_the_first_words_are_trained_on_and_the_next_held_out():
    text = TextSet("some", torch.arange(100), torch.arange(20), tuple("ab"))
    part = subset(text, 60, validate=True)
    assert part.train.tolist() == list(range(60))
    assert part.test.tolist() == list(range(60, 80))
    assert subset(text, 60, validate=False).test.tolist() == list(range(20))


@pytest.mark.parametrize(("size", "validate"), [(101, False), (100, True)])
def test_more_than_there_are_is_refused(images, size, validate):
    with pytest.raises(ConfigError, match=f"at most the 100 training images.*got {size}"):
        subset(images, size, validate=validate)
