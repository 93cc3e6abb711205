import sys
from dataclasses import replace

import pytest
import torch

import rankwise
from rankwise.errors import DataError
from rankwise.lab.data import digits
from rankwise.lab.data.memory import channel_statistics, memory_set, resized
from rankwise.lab.data.sets import FileSplit, MemorySplit


def _split(count: int, *, size: int = 4, classes: int = 2) -> MemorySplit:
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    return MemorySplit(images, torch.arange(count) % classes)


def test_statistics_equal_those_of_the_doubles():
    images = torch.randint(0, 200, (1500, 3, 5, 4), dtype=torch.uint8)  # more than one chunk
    mean, std = channel_statistics(images)
    values = images.double() / 255
    assert mean == pytest.approx(values.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert std == pytest.approx(values.std((0, 2, 3), correction=0).tolist(), rel=1e-12)


def test_a_constant_channel_can_be_divided_by():
    assert channel_statistics(torch.zeros(2, 1, 3, 3, dtype=torch.uint8)) == ((0.0,), (1.0,))


def test_a_set_takes_its_statistics_from_the_training_images_only():
    train, test = _split(6), _split(3)
    found = memory_set("x", train, test, ["a", "b"])
    assert (found.mean, found.std) == channel_statistics(train.inputs)
    assert found.shape == (3, 4, 4)


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
        memory_set("x", made(*train), made(*test), ["a", "b"])


def test_resizing_to_half_averages_and_keeps_everything_else():
    inputs = torch.tensor([[0, 0, 200, 200]] * 4, dtype=torch.uint8).expand(3, 1, 4, 4).contiguous()
    split = MemorySplit(inputs, torch.tensor([0, 1, 0]))
    small = resized(memory_set("x", split, split, ["a", "b"], mirrored=False), 2)
    assert small.shape == (1, 2, 2)
    assert small.train.inputs.dtype is torch.uint8
    # Antialiasing weighs 4 pixels by 1 : 3 : 3 : 1, cut off at the border.
    assert small.test.inputs[1, 0].tolist() == [[29, 171], [29, 171]]
    assert torch.equal(small.train.targets, split.targets)
    assert (small.name, small.classes, small.mirrored) == ("x", ("a", "b"), False)
    assert small.mean == pytest.approx([100 / 255])


def test_images_in_files_are_not_resized_in_memory():
    split = _split(2)
    files = FileSplit(split.inputs.__getitem__, split.targets)
    with pytest.raises(TypeError, match="in memory"):
        resized(replace(memory_set("x", split, split, ["a", "b"]), train=files), 2)


def test_digits_are_scaled_to_bytes_and_every_fifth_is_tested():
    from sklearn.datasets import load_digits

    raw, found = load_digits(), digits.read()
    assert found.train.inputs.max() == 255
    assert found.test.inputs[1, 0, 3].tolist() == [round(v * 255 / 16) for v in raw.images[9, 3]]
    assert found.test.targets.tolist() == raw.target[4::5].tolist()
    assert len(found.train) + len(found.test) == 1797
    assert not found.mirrored


def test_digits_without_scikit_learn_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(rankwise.MissingExtraError, match=r"rankwise\[lab\]"):
        digits.read()
