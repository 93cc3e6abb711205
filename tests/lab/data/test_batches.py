import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from rankwise.errors import ConfigError, DataError, RunError
from rankwise.lab.data import batches
from rankwise.lab.data.augmentation import Augmentation, normalise
from rankwise.lab.data.dataset import Batch, FileSplit, ImageDataset, MemorySplit, make_dataset
from rankwise.lab.data.decoding import FileList, ImageReader, load_images

CPU = torch.device("cpu")
WHAT = Augmentation(padding=2, flip=True, cutout=4)


def _set(train: int = 50, test: int = 11) -> ImageDataset:
    """Every image has its own target, which identifies it."""

    def split(count: int) -> MemorySplit:
        images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8)
        return MemorySplit(images, torch.arange(count))

    return make_dataset("x", split(train), split(test), [str(n) for n in range(max(train, test))])


def _training(images: ImageDataset, what: Augmentation = WHAT, **options: int) -> list[Batch]:
    chosen = {"batch_size": 12, "seed": 3, "epoch": 5, **options}
    return list(batches.iter_train_batches(images, what, device=CPU, **chosen))


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


def test_images_keep_their_targets_and_are_normalise():
    images = _set()
    for batch in _training(images, Augmentation()):
        wanted = normalise(images.train.inputs[batch.targets], images.mean, images.std)
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
        batches.iter_train_batches(
            _set(), WHAT, batch_size=size, seed=0, epoch=0, world=world, device=CPU
        )


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_nothing_is_refused_at_once(size):
    with pytest.raises(ConfigError, match="at least 1"):
        batches.count_batches(10, size)
    with pytest.raises(ConfigError, match="at least 1"):
        batches.iter_test_batches(_set(), batch_size=size, rank=0, world=1, device=CPU)


@pytest.mark.parametrize("world", [1, 2, 3, 13])
def test_each_image_is_tested_exactly_once_and_in_order(world):
    images = _set()
    given = [
        batch
        for rank in range(world)
        for batch in batches.iter_test_batches(
            images, batch_size=4, rank=rank, world=world, device=CPU
        )
    ]
    assert torch.equal(torch.cat([batch.targets for batch in given]), images.test.targets)
    wanted = normalise(images.test.inputs, images.mean, images.std)
    assert torch.equal(torch.cat([batch.inputs for batch in given]), wanted)
    assert max(len(batch.targets) for batch in given) <= 4


def test_several_labels_an_image_stay_together():
    images = _set()
    labels = torch.rand(50, 7).round()
    images = replace(images, train=MemorySplit(images.train.inputs, labels), multilabel=True)
    assert all(batch.targets.shape == (12, 7) for batch in _training(images))


def test_moving_a_dataset_to_a_device_moves_the_splits_in_memory_only():
    images = _set()
    files = FileSplit(images.test.inputs.__getitem__, images.test.targets)
    moved = batches.move_to_device(replace(images, test=files), torch.device("meta"))
    assert moved.train.inputs.device.type == "meta"
    assert moved.train.targets.device.type == "meta"
    assert moved.test is files
    assert moved.mean == images.mean


FULL = Augmentation(padding=0, flip=True, cutout=4, random_resize=True)
COUNT = 22


@pytest.fixture
def files(tmp_path: Path) -> FileList:
    """Pictures of noise, of many sizes."""
    generator = np.random.default_rng(0)
    for index in range(COUNT):
        height, width = generator.integers(10, 30, 2)
        pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    return FileList(tmp_path, [f"{index}.png" for index in range(COUNT)])


@pytest.fixture
def images(files: FileList) -> ImageDataset:
    return image_set(FileSplit(ImageReader(files), torch.arange(COUNT)))


def image_set(split: FileSplit | MemorySplit) -> ImageDataset:
    classes = tuple(map(str, range(COUNT)))
    return ImageDataset("x", split, split, classes, (3, 8, 8), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def train(images: ImageDataset, augmentation: Augmentation = FULL, **options: Any) -> list[Batch]:
    given = {"batch_size": 4, "seed": 1, "epoch": 2, "start": 0, "rank": 0, "world": 1}
    return list(
        batches.iter_train_batches(
            images, augmentation, **{**given, "device": CPU, "workers": 0, **options}
        )
    )


def evaluate(images: ImageDataset, **options: Any) -> list[Batch]:
    given = {"batch_size": 4, "rank": 0, "world": 1, "device": CPU, "workers": 0}
    return list(batches.iter_test_batches(images, **{**given, **options}))


def test_an_epoch_of_files_has_every_image_at_most_once(images: ImageDataset) -> None:
    epoch_batches = train(images)
    assert [batch.inputs.shape for batch in epoch_batches] == [(4, 3, 8, 8)] * 5
    assert all(batch.inputs.dtype == torch.float32 for batch in epoch_batches)
    assert len(set(torch.cat([batch.targets for batch in epoch_batches]).tolist())) == 20


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_changes_nothing(images: ImageDataset, workers: int) -> None:
    assert _same(train(images, workers=workers), train(images))
    assert _same(evaluate(images, workers=workers), evaluate(images))


def test_processes_share_every_batch(images: ImageDataset) -> None:
    whole = train(images)
    first, second = train(images, rank=0, world=2), train(images, rank=1, world=2)
    for batch, a, b in zip(whole, first, second, strict=True):
        assert torch.equal(batch.inputs, torch.cat([a.inputs, b.inputs]))
        assert torch.equal(batch.targets, torch.cat([a.targets, b.targets]))


def test_a_start_gives_the_same_batches_without_reading_those_before(files: FileList) -> None:
    asked: list[int] = []
    reader = ImageReader(files)

    def read(index: int) -> Tensor:
        asked.append(index)
        return reader(index)

    images = image_set(FileSplit(read, torch.arange(COUNT)))
    later = train(images, start=3)
    assert len(asked) == 8
    assert _same(later, train(images)[3:])


def test_a_start_at_the_end_gives_nothing(images: ImageDataset) -> None:
    assert train(images, start=5) == []


@pytest.mark.parametrize("change", [{"seed": 2}, {"epoch": 3}], ids=str)
def test_seed_and_epoch_change_the_order(images: ImageDataset, change: dict[str, int]) -> None:
    first, second = train(images), train(images, **change)
    assert [b.targets.tolist() for b in first] != [b.targets.tolist() for b in second]


def test_a_crop_belongs_to_the_image_and_the_epoch_whatever_the_batch_size(
    images: ImageDataset,
) -> None:
    only_crops = Augmentation(random_resize=True)

    def by_image(batch_size: int, epoch: int) -> dict[int, Tensor]:
        epoch_batches = train(images, only_crops, batch_size=batch_size, epoch=epoch)
        return {int(t): x for batch in epoch_batches for x, t in zip(*batch, strict=True)}

    first, second, later = by_image(4, 0), by_image(11, 0), by_image(11, 1)
    assert all(torch.equal(first[image], second[image]) for image in first)
    assert not any(torch.equal(second[image], later[image]) for image in second)


def test_equal_images_are_cropped_differently() -> None:
    noise = torch.randint(256, (3, 20, 20), dtype=torch.uint8)
    images = image_set(FileSplit(lambda _: noise, torch.arange(COUNT)))
    crops = train(images, Augmentation(random_resize=True), batch_size=COUNT)[0].inputs
    assert len({tuple(crop.flatten().tolist()) for crop in crops}) == COUNT


@pytest.mark.parametrize(
    "augmentation",
    [Augmentation(), Augmentation(padding=2, flip=True, cutout=3)],
    ids=["plain", "crop, flip and hole"],
)
def test_files_give_the_same_batches_as_memory(tmp_path: Path, augmentation: Augmentation) -> None:
    generator = np.random.default_rng(0)
    for index in range(COUNT):
        pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    files = FileList(tmp_path, [f"{index}.png" for index in range(COUNT)])
    memory = image_set(load_images(files, torch.arange(COUNT), None))
    streamed = image_set(FileSplit(ImageReader(files), torch.arange(COUNT)))
    wanted = batches.iter_train_batches(
        memory, augmentation, batch_size=4, seed=1, epoch=2, start=1, device=CPU
    )
    assert _same(train(streamed, augmentation, start=1), list(wanted))
    expected = batches.iter_test_batches(memory, batch_size=4, rank=0, world=1, device=CPU)
    assert _same(evaluate(streamed), list(expected))


def test_a_batch_larger_than_the_set_is_the_set(images: ImageDataset) -> None:
    epoch_batches = train(images, batch_size=100)
    assert len(epoch_batches) == 1
    assert sorted(epoch_batches[0].targets.tolist()) == list(range(COUNT))


@pytest.mark.parametrize("world", [1, 2, 3, 30])
def test_processes_test_every_file_exactly_once_and_in_order(
    images: ImageDataset, world: int
) -> None:
    shares = [evaluate(images, rank=rank, world=world) for rank in range(world)]
    targets = [target for share in shares for batch in share for target in batch.targets.tolist()]
    assert targets == list(range(COUNT))


def test_test_images_are_the_middle_and_normalised(images: ImageDataset) -> None:
    gradient = torch.arange(24, dtype=torch.uint8).expand(3, 8, 24)
    one = image_set(FileSplit(lambda _: gradient, torch.zeros(1)))
    pixels = evaluate(one)[0].inputs[0]
    assert pixels[0, 0].tolist() == pytest.approx([(x / 255 - 0.5) / 0.2 for x in range(8, 16)])
    assert pixels[2, 0].tolist() == pytest.approx([(x / 255 - 0.3) / 0.4 for x in range(8, 16)])


def test_the_other_generators_are_left_alone(images: ImageDataset) -> None:
    before = torch.get_rng_state(), random.getstate()
    train(images, workers=1)
    evaluate(images)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_an_error_that_names_it(
    files: FileList, images: ImageDataset, workers: int
) -> None:
    files[7].write_bytes(b"broken")
    with pytest.raises(DataError, match=r"^Expected a readable image.*/7\.png can't be decoded"):
        evaluate(images, workers=workers)


def _killed(index: int) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return torch.zeros(3, 8, 8, dtype=torch.uint8)


# torch leaves the pipes of a killed worker to the garbage collector, which may warn in any test.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_dies_is_a_run_error(images: ImageDataset) -> None:
    dying = image_set(FileSplit(_killed, torch.arange(COUNT)))
    with pytest.raises(RunError, match="workers that read images died"):
        evaluate(dying, workers=1)


def _failing(index: int) -> Tensor:
    raise RuntimeError("a mistake of ours")


@pytest.mark.parametrize("workers", [0, 1])
def test_other_errors_are_not_taken_for_a_dead_worker(workers: int) -> None:
    with pytest.raises(Exception, match="a mistake of ours") as caught:
        evaluate(image_set(FileSplit(_failing, torch.arange(COUNT))), workers=workers)
    assert not isinstance(caught.value, RunError)


def test_a_batch_of_files_that_can_not_be_shared_is_an_error(images: ImageDataset) -> None:
    with pytest.raises(ConfigError, match="multiple of 3"):
        train(images, world=3)
