from dataclasses import replace

import pytest
import torch

from rankwise.errors import ConfigError
from rankwise.lab.data import batches
from rankwise.lab.data.augment import Augmentation, normalised
from rankwise.lab.data.memory import memory_set
from rankwise.lab.data.sets import Batch, FileSplit, ImageSet, MemorySplit

CPU = torch.device("cpu")
WHAT = Augmentation(padding=2, flip=True, cutout=4)


def _set(train: int = 50, test: int = 11) -> ImageSet:
    """Every image has its own target, so that images can be told apart."""

    def split(count: int) -> MemorySplit:
        images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8)
        return MemorySplit(images, torch.arange(count))

    return memory_set("x", split(train), split(test), [str(n) for n in range(max(train, test))])


def _training(images: ImageSet, what: Augmentation = WHAT, **options: int) -> list[Batch]:
    chosen = {"batch_size": 12, "seed": 3, "epoch": 5, **options}
    return list(batches.training_batches(images, what, device=CPU, **chosen))


def _same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)
        for a, b in zip(first, second, strict=True)
    )


def test_an_epoch_shows_each_image_at_most_once_and_leaves_out_the_short_batch():
    given = _training(_set())
    assert [len(batch.targets) for batch in given] == [12] * 4
    assert len(torch.cat([batch.targets for batch in given]).unique()) == 48


def test_a_short_batch_is_kept_if_it_is_the_only_one():
    images = _set()
    (batch,) = _training(images, batch_size=64)
    assert sorted(batch.targets.tolist()) == list(range(50))
    assert batch.inputs.shape == (50, 3, 8, 8)


def test_images_keep_their_targets_and_are_normalised():
    images = _set()
    for batch in _training(images, Augmentation()):
        wanted = normalised(images.train.inputs[batch.targets], images.mean, images.std)
        assert torch.equal(batch.inputs, wanted)


def test_the_same_seed_and_epoch_give_the_same_bits_and_others_do_not():
    images = _set()
    given = _training(images)
    assert _same(given, _training(images))
    assert not _same(given, _training(images, epoch=6))
    assert not _same(given, _training(images, seed=4))


def test_each_batch_and_each_epoch_is_augmented_anew():
    """All images are alike, so that only what was drawn can differ."""
    images = _set()
    alike = images.train.inputs[:1].expand(50, -1, -1, -1).contiguous()
    images = replace(images, train=MemorySplit(alike, images.train.targets))
    first, second = _training(images)[:2]
    (later, *_) = _training(images, epoch=6)
    assert not torch.equal(first.inputs, second.inputs)
    assert not torch.equal(first.inputs, later.inputs)


@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_a_run_that_goes_on_gets_exactly_the_rest(start):
    images = _set()
    assert _same(_training(images)[start:], _training(images, start=start))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_shares_of_all_processes_are_bit_for_bit_the_whole(world):
    images = _set()
    shares = [_training(images, rank=rank, world=world) for rank in range(world)]
    joined = [
        Batch(torch.cat([b.inputs for b in parts]), torch.cat([b.targets for b in parts]))
        for parts in zip(*shares, strict=True)
    ]
    assert {len(batch.targets) for share in shares for batch in share} == {12 // world}
    assert _same(joined, _training(images))


@pytest.mark.parametrize(("size", "world"), [(12, 5), (64, 4)], ids=["batch", "only batch"])
def test_a_batch_that_can_not_be_shared_evenly_is_refused_at_once(size, world):
    with pytest.raises(ConfigError, match=f"multiple of {world}"):
        batches.training_batches(
            _set(), WHAT, batch_size=size, seed=0, epoch=0, world=world, device=CPU
        )


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_nothing_is_refused_at_once(size):
    with pytest.raises(ConfigError, match="at least 1"):
        batches.batches_per_epoch(10, size)
    with pytest.raises(ConfigError, match="at least 1"):
        batches.test_batches(_set(), "test", batch_size=size, rank=0, world=1, device=CPU)


@pytest.mark.parametrize("split", ["test", "train"])
@pytest.mark.parametrize("world", [1, 2, 3, 13])
def test_each_image_is_tested_exactly_once_and_in_order(split, world):
    images = _set()
    source = images.test if split == "test" else images.train
    given = [
        batch
        for rank in range(world)
        for batch in batches.test_batches(
            images, split, batch_size=4, rank=rank, world=world, device=CPU
        )
    ]
    assert torch.equal(torch.cat([batch.targets for batch in given]), source.targets)
    wanted = normalised(source.inputs, images.mean, images.std)
    assert torch.equal(torch.cat([batch.inputs for batch in given]), wanted)
    assert max(len(batch.targets) for batch in given) <= 4


def test_several_labels_an_image_stay_together():
    images = _set()
    labels = torch.rand(50, 7).round()
    images = replace(images, train=MemorySplit(images.train.inputs, labels), multilabel=True)
    assert all(batch.targets.shape == (12, 7) for batch in _training(images))


def test_moving_a_set_to_a_device_moves_the_splits_in_memory_only():
    images = _set()
    files = FileSplit(images.test.inputs.__getitem__, images.test.targets)
    moved = batches.on_device(replace(images, test=files), torch.device("meta"))
    assert moved.train.inputs.device.type == "meta"
    assert moved.train.targets.device.type == "meta"
    assert moved.test is files
    assert moved.mean == images.mean


def test_images_in_files_come_through_the_same_two_functions():
    """Without augmentation the streamed batches are those from memory."""
    images = _set()
    files = replace(
        images,
        train=FileSplit(images.train.inputs.__getitem__, images.train.targets),
        test=FileSplit(images.test.inputs.__getitem__, images.test.targets),
    )
    assert _same(
        _training(images, Augmentation(), start=1), _training(files, Augmentation(), start=1)
    )
    for rank in range(3):
        options = {"batch_size": 4, "rank": rank, "world": 3, "device": CPU}
        memory = list(batches.test_batches(images, "test", **options))
        assert _same(memory, list(batches.test_batches(files, "test", **options)))
