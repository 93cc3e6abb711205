import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from rankwise.errors import ConfigError, DataError, RunError
from rankwise.lab.data import batches, streaming
from rankwise.lab.data.augment import Augmentation
from rankwise.lab.data.pictures import FileList, Pictures, load_all
from rankwise.lab.data.sets import Batch, FileSplit, ImageSet, MemorySplit

CPU = torch.device("cpu")
FULL = Augmentation(padding=0, flip=True, cutout=4, resized=True)
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
def images(files: FileList) -> ImageSet:
    return image_set(FileSplit(Pictures(files), torch.arange(COUNT)))


def image_set(split: FileSplit | MemorySplit) -> ImageSet:
    classes = tuple(map(str, range(COUNT)))
    return ImageSet("x", split, split, classes, (3, 8, 8), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def train(images: ImageSet, augmentation: Augmentation = FULL, **options: Any) -> list[Batch]:
    given = {"batch_size": 4, "seed": 1, "epoch": 2, "start": 0, "rank": 0, "world": 1}
    return list(
        streaming.training_batches(
            images, augmentation, **{**given, "device": CPU, "workers": 0, **options}
        )
    )


def evaluate(images: ImageSet, **options: Any) -> list[Batch]:
    given = {"batch_size": 4, "rank": 0, "world": 1, "device": CPU, "workers": 0}
    return list(streaming.test_batches(images, "test", **{**given, **options}))


def equal(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)
        for a, b in zip(first, second, strict=True)
    )


def test_an_epoch_has_every_image_at_most_once_and_leaves_the_rest_out(images: ImageSet) -> None:
    found = train(images)
    assert [batch.inputs.shape for batch in found] == [(4, 3, 8, 8)] * 5
    assert all(batch.inputs.dtype == torch.float32 for batch in found)
    assert len(set(torch.cat([batch.targets for batch in found]).tolist())) == 20


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_changes_nothing(images: ImageSet, workers: int) -> None:
    assert equal(train(images, workers=workers), train(images))
    assert equal(evaluate(images, workers=workers), evaluate(images))


def test_processes_share_every_batch(images: ImageSet) -> None:
    whole = train(images)
    first, second = train(images, rank=0, world=2), train(images, rank=1, world=2)
    for batch, a, b in zip(whole, first, second, strict=True):
        assert torch.equal(batch.inputs, torch.cat([a.inputs, b.inputs]))
        assert torch.equal(batch.targets, torch.cat([a.targets, b.targets]))


def test_a_start_gives_the_same_batches_without_reading_those_before(files: FileList) -> None:
    asked: list[int] = []
    pictures = Pictures(files)

    def read(index: int) -> Tensor:
        asked.append(index)
        return pictures(index)

    images = image_set(FileSplit(read, torch.arange(COUNT)))
    later = train(images, start=3)
    assert len(asked) == 8
    assert equal(later, train(images)[3:])


def test_a_start_at_the_end_gives_nothing(images: ImageSet) -> None:
    assert train(images, start=5) == []


@pytest.mark.parametrize("change", [{"seed": 2}, {"epoch": 3}], ids=str)
def test_seed_and_epoch_change_the_order(images: ImageSet, change: dict[str, int]) -> None:
    first, second = train(images), train(images, **change)
    assert [b.targets.tolist() for b in first] != [b.targets.tolist() for b in second]


def test_a_crop_belongs_to_the_image_and_the_epoch_whatever_the_batch_size(
    images: ImageSet,
) -> None:
    only_crops = Augmentation(resized=True)

    def by_image(batch_size: int, epoch: int) -> dict[int, Tensor]:
        found = train(images, only_crops, batch_size=batch_size, epoch=epoch)
        return {int(t): x for batch in found for x, t in zip(*batch, strict=True)}

    first, second, later = by_image(4, 0), by_image(11, 0), by_image(11, 1)
    assert all(torch.equal(first[image], second[image]) for image in first)
    assert not any(torch.equal(second[image], later[image]) for image in second)


def test_equal_images_are_cropped_differently() -> None:
    noise = torch.randint(256, (3, 20, 20), dtype=torch.uint8)
    images = image_set(FileSplit(lambda _: noise, torch.arange(COUNT)))
    crops = train(images, Augmentation(resized=True), batch_size=COUNT)[0].inputs
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
    memory = image_set(load_all(files, torch.arange(COUNT), None))
    streamed = image_set(FileSplit(Pictures(files), torch.arange(COUNT)))
    wanted = batches.training_batches(
        memory, augmentation, batch_size=4, seed=1, epoch=2, start=1, device=CPU
    )
    assert equal(train(streamed, augmentation, start=1), list(wanted))
    expected = batches.test_batches(memory, "test", batch_size=4, rank=0, world=1, device=CPU)
    assert equal(evaluate(streamed), list(expected))


def test_the_common_entry_streams_what_is_in_files(images: ImageSet) -> None:
    given = batches.training_batches(images, FULL, batch_size=4, seed=1, epoch=2, device=CPU)
    assert equal(list(given), train(images))
    expected = batches.test_batches(images, "train", batch_size=4, rank=0, world=1, device=CPU)
    assert equal(list(expected), evaluate(images))


def test_a_batch_larger_than_the_set_is_the_set(images: ImageSet) -> None:
    found = train(images, batch_size=100)
    assert len(found) == 1
    assert sorted(found[0].targets.tolist()) == list(range(COUNT))


@pytest.mark.parametrize("world", [1, 2, 3, 30])
def test_processes_test_every_image_exactly_once_and_in_order(images: ImageSet, world: int) -> None:
    shares = [evaluate(images, rank=rank, world=world) for rank in range(world)]
    targets = [target for share in shares for batch in share for target in batch.targets.tolist()]
    assert targets == list(range(COUNT))


def test_test_images_are_the_middle_and_normalised(images: ImageSet) -> None:
    gradient = torch.arange(24, dtype=torch.uint8).expand(3, 8, 24)
    one = image_set(FileSplit(lambda _: gradient, torch.zeros(1)))
    pixels = evaluate(one)[0].inputs[0]
    assert pixels[0, 0].tolist() == pytest.approx([(x / 255 - 0.5) / 0.2 for x in range(8, 16)])
    assert pixels[2, 0].tolist() == pytest.approx([(x / 255 - 0.3) / 0.4 for x in range(8, 16)])


def test_the_other_generators_are_left_alone(images: ImageSet) -> None:
    before = torch.get_rng_state(), random.getstate()
    train(images, workers=1)
    evaluate(images)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_is_a_sentence_that_names_it(
    files: FileList, images: ImageSet, workers: int
) -> None:
    files[7].write_bytes(b"broken")
    with pytest.raises(DataError, match=r"^Expected a picture .*/7\.png can't be decoded"):
        evaluate(images, workers=workers)


def _killed(index: int) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return torch.zeros(3, 8, 8, dtype=torch.uint8)


def test_a_worker_that_dies_is_a_run_error(images: ImageSet) -> None:
    dying = image_set(FileSplit(_killed, torch.arange(COUNT)))
    with pytest.raises(RunError, match="Expected 1 workers to read images, but one of them ended"):
        evaluate(dying, workers=1)


def _failing(index: int) -> Tensor:
    raise RuntimeError("a mistake of ours")


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        evaluate(image_set(FileSplit(_failing, torch.arange(COUNT))))


def test_a_batch_that_can_not_be_shared_is_an_error(images: ImageSet) -> None:
    with pytest.raises(ConfigError, match="multiple of 3"):
        train(images, world=3)


def test_images_in_memory_are_refused() -> None:
    memory = MemorySplit(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2))
    with pytest.raises(TypeError, match="in files"):
        train(image_set(memory))
