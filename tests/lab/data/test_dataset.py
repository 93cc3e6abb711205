import pickle
from dataclasses import replace

import pytest
import torch

from rankwise.errors import ConfigError, DataError
from rankwise.lab.data.dataset import (
    FileSplit,
    MemorySplit,
    TextDataset,
    crop_to_size,
    make_dataset,
    measure_channels,
    resize_dataset,
    split_indices,
    take_subset,
)


def _split(count: int, *, size: int = 4, classes: int = 2) -> MemorySplit:
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    return MemorySplit(images, torch.arange(count) % classes)


def test_statistics_equal_those_of_the_doubles():
    images = torch.randint(0, 200, (1500, 3, 5, 4), dtype=torch.uint8)  # more than one chunk
    mean, std = measure_channels(images)
    values = images.double() / 255
    assert mean == pytest.approx(values.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert std == pytest.approx(values.std((0, 2, 3), correction=0).tolist(), rel=1e-12)


def test_a_constant_channel_can_be_divided_by():
    assert measure_channels(torch.zeros(2, 1, 3, 3, dtype=torch.uint8)) == ((0.0,), (1.0,))


def test_a_set_takes_its_statistics_from_the_training_images_only():
    train, test = _split(6), _split(3)
    dataset = make_dataset("x", train, test, ["a", "b"])
    assert (dataset.mean, dataset.std) == measure_channels(train.inputs)
    assert dataset.shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        pytest.param((0, 4, 2), (2, 4, 2), "0 images", id="empty"),
        pytest.param((2, 4, 2), (2, 5, 2), "one shape", id="shapes"),
        pytest.param((4, 4, 3), (2, 4, 2), "from 0 to 1", id="label"),
    ],
)
def test_splits_that_do_not_fit_are_refused(train, test, message):
    def made(count: int, size: int, classes: int) -> MemorySplit:
        return _split(count, size=size, classes=classes)

    with pytest.raises(DataError, match=message):
        make_dataset("x", made(*train), made(*test), ["a", "b"])


def test_resizing_to_half_averages_and_keeps_everything_else():
    inputs = torch.tensor([[0, 0, 200, 200]] * 4, dtype=torch.uint8).expand(3, 1, 4, 4).contiguous()
    split = MemorySplit(inputs, torch.tensor([0, 1, 0]))
    small = resize_dataset(make_dataset("x", split, split, ["a", "b"], can_flip=False), 2)
    assert small.shape == (1, 2, 2)
    assert small.train.inputs.dtype is torch.uint8
    # Antialiasing weighs 4 pixels by 1 : 3 : 3 : 1, cut off at the border.
    assert small.test.inputs[1, 0].tolist() == [[29, 171], [29, 171]]
    assert torch.equal(small.train.targets, split.targets)
    assert (small.name, small.classes, small.can_flip) == ("x", ("a", "b"), False)
    assert small.mean == pytest.approx([100 / 255])


def test_images_in_files_are_resized_when_they_are_read():
    split = _split(2)
    files = FileSplit(split.inputs.__getitem__, split.targets)
    dataset = replace(make_dataset("x", split, split, ["a", "b"]), train=files)
    assert resize_dataset(dataset, 2) == replace(dataset, shape=(3, 2, 2))


def test_images_in_files_need_a_shape():
    split = _split(2)
    files = FileSplit(split.inputs.__getitem__, split.targets)
    with pytest.raises(TypeError, match="shape"):
        make_dataset("x", files, files, ["a", "b"])


@pytest.mark.parametrize("shape", [(20, 10), (10, 20), (7, 31)], ids=str)
def test_cropping_gives_the_wanted_shape_and_keeps_the_middle(shape: tuple[int, int]) -> None:
    image = torch.zeros(3, *shape, dtype=torch.uint8)
    image[:, shape[0] // 2, shape[1] // 2] = 255
    cropped = crop_to_size(image, 8, 8)
    assert cropped.shape == (3, 8, 8)
    assert cropped.dtype == torch.uint8
    assert int(cropped[0].argmax()) in {27, 28, 35, 36}


def test_cropping_averages_instead_of_picking_pixels() -> None:
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    image[:, ::8] = 255
    assert int((crop_to_size(image, 8, 8).int() - 255 // 8).abs().max()) <= 16


def test_every_fifth_image_is_for_testing():
    assert split_indices(11) == ([0, 1, 2, 3, 5, 6, 7, 8, 10], [4, 9])
    assert split_indices(4) == ([0, 1, 2, 3], [])


def split(counts):
    targets = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    number = torch.arange(len(targets), dtype=torch.uint8)
    return MemorySplit(number.view(-1, 1, 1, 1).expand(-1, 3, 2, 2).contiguous(), targets)


@pytest.fixture
def images():
    return make_dataset("some", split([40, 20, 40]), split([10, 5, 10]), ("a", "b", "c"))


def numbers(part):
    return part.inputs[:, 0, 0, 0].tolist()


def test_each_class_keeps_its_share(images):
    part = take_subset(images, 50, validate=False)
    assert part.train.targets.bincount().tolist() == [20, 10, 20]
    assert numbers(part.test) == numbers(images.test)


def test_a_smaller_part_is_in_a_larger_one(images):
    small, large = (set(numbers(take_subset(images, n, validate=False).train)) for n in (30, 60))
    assert small < large


def test_what_is_held_out_is_none_of_what_is_trained_on_and_has_each_class_too(images):
    part = take_subset(images, 60, validate=True)
    assert len(part.test) == len(images.test) == 25
    assert set(numbers(part.test)).isdisjoint(numbers(part.train))
    assert part.test.targets.bincount().tolist() == [10, 5, 10]


def test_what_is_left_may_be_less_than_a_test(images):
    assert len(take_subset(images, 95, validate=True).test) == 5


def test_labels_stay_with_their_images(images):
    part = take_subset(images, 30, validate=True)
    for some in (part.train, part.test):
        assert some.targets.tolist() == [int(images.train.targets[i]) for i in numbers(some)]


def test_several_labels_an_image(images):
    labels = torch.zeros(100, 3).scatter_(1, images.train.targets[:, None], 1.0)
    several = replace(images, train=MemorySplit(images.train.inputs, labels), multilabel=True)
    part = take_subset(several, 30, validate=True)
    assert part.train.targets.shape == (30, 3)
    assert numbers(part.train) == numbers(take_subset(several, 30, validate=False).train)
    assert numbers(part.train) != list(range(30))  # not the first ones, whatever their order


def read(index):
    return torch.full((3, 2, 2), index, dtype=torch.uint8)


def test_images_in_files_are_read_by_their_new_numbers(images):
    files = replace(images, train=FileSplit(read, images.train.targets))
    expected = take_subset(images, 30, validate=False).train
    train = pickle.loads(pickle.dumps(take_subset(files, 30, validate=False).train))  # noqa: S301
    assert [int(train.read(i)[0, 0, 0]) for i in range(30)] == numbers(expected)
    assert train.targets.tolist() == expected.targets.tolist()


def test_the_first_words_are_trained_on_and_the_next_held_out():
    text = TextDataset("some", torch.arange(100), torch.arange(20), tuple("ab"))
    part = take_subset(text, 60, validate=True)
    assert part.train.tolist() == list(range(60))
    assert part.test.tolist() == list(range(60, 80))
    assert take_subset(text, 60, validate=False).test.tolist() == list(range(20))


@pytest.mark.parametrize(("size", "validate"), [(101, False), (100, True)])
def test_more_than_there_are_is_refused(images, size, validate):
    with pytest.raises(ConfigError, match=f"at most the 100 training images.*got {size}"):
        take_subset(images, size, validate=validate)
