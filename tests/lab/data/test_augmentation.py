import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from rankwise.lab.data.augmentation import (
    Augmentation,
    AugmentationDraws,
    augment,
    choose_augmentation,
    draw_augmentation,
    draw_boxes,
    normalise,
)
from rankwise.lab.data.dataset import ImageDataset, MemorySplit, make_dataset

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
FULL = Augmentation(padding=3, flip=True, cutout=5)


def _images(count: int = 16, height: int = 9, width: int = 7) -> Tensor:
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)


def _drawn(augmentation: Augmentation, images: Tensor, seed: int = 0) -> AugmentationDraws:
    generator = torch.Generator().manual_seed(seed)
    return draw_augmentation(augmentation, len(images), tuple(images.shape[1:]), generator)


def _slowly(images: Tensor, drawn: AugmentationDraws) -> Tensor:
    """Image by image, as the papers describe it."""
    what, padding = drawn.augmentation, drawn.augmentation.padding
    _, channels, height, width = images.shape
    mean, std = torch.tensor(MEAN).view(-1, 1, 1), torch.tensor(STD).view(-1, 1, 1)
    results = []
    for number, image in enumerate(images):
        canvas = torch.zeros(channels, height + 2 * padding, width + 2 * padding)
        canvas[:, padding : padding + height, padding : padding + width] = image / 255
        top, left, tall, wide = drawn.boxes[number].tolist()
        crop = canvas[:, top : top + tall, left : left + wide]
        if drawn.flips[number]:
            crop = crop.flip(2)
        crop = (crop - mean) / std
        row, column = drawn.centres[number].tolist()
        for y in range(row - what.cutout // 2, row - what.cutout // 2 + what.cutout):
            for x in range(column - what.cutout // 2, column - what.cutout // 2 + what.cutout):
                if 0 <= y < height and 0 <= x < width:
                    crop[:, y, x] = 0
        results.append(crop)
    return torch.stack(results)


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(),
        Augmentation(padding=4),
        Augmentation(flip=True),
        Augmentation(cutout=4),
        FULL,
    ],
    ids=["nothing", "crop", "flip", "cutout", "all"],
)
def test_a_batch_equals_the_slow_loop_over_its_images(augmentation):
    images = _images()
    drawn = _drawn(augmentation, images)
    result = augment(images, drawn, MEAN, STD)
    torch.testing.assert_close(result, _slowly(images, drawn), rtol=1e-5, atol=1e-6)


def test_the_result_is_float_and_channels_last_and_the_input_is_kept():
    images = _images()
    before = images.clone()
    for result in (augment(images, _drawn(FULL, images), MEAN, STD), normalise(images, MEAN, STD)):
        assert result.dtype is torch.float32
        assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


def test_normalised_images_have_mean_0_and_deviation_1():
    images = _images(200)
    values = images.double() / 255
    mean = values.mean((0, 2, 3))
    std = values.std((0, 2, 3), correction=0)
    result = normalise(images, mean.tolist(), std.tolist()).double()
    assert result.mean((0, 2, 3)).tolist() == pytest.approx([0] * 3, abs=1e-6)
    assert result.std((0, 2, 3), correction=0).tolist() == pytest.approx([1] * 3, abs=1e-6)


@pytest.mark.parametrize("resized", [False, True], ids=["padded", "resized"])
def test_shares_of_a_batch_are_bit_for_bit_the_whole(resized):
    what = Augmentation(padding=0 if resized else 3, flip=True, cutout=5, random_resize=resized)
    images = _images(12, 33, 31)  # odd, so that vectorised loops have tails
    drawn = _drawn(what, images)
    whole = augment(images, drawn, MEAN, STD)
    parts = [slice(0, 3), slice(3, 8), slice(8, 12)]
    shares = [augment(images[part], drawn.select(part), MEAN, STD) for part in parts]
    assert torch.equal(whole, torch.cat(shares))


def test_draws_follow_from_the_seed_alone():
    images = _images(64)
    first, again, other = (_drawn(FULL, images, seed) for seed in (1, 1, 2))
    assert torch.equal(first.boxes, again.boxes)
    assert torch.equal(first.flips, again.flips)
    assert torch.equal(first.centres, again.centres)
    assert not torch.equal(first.boxes, other.boxes)


def test_switching_cutout_on_changes_no_crop_and_no_flip():
    images = _images(64)
    without, with_hole = (
        _drawn(Augmentation(padding=3, flip=True, cutout=side), images) for side in (0, 5)
    )
    assert torch.equal(without.boxes, with_hole.boxes)
    assert torch.equal(without.flips, with_hole.flips)


def test_draws_cover_their_whole_range_and_nothing_else():
    drawn = _drawn(FULL, _images(1).expand(4000, -1, -1, -1))
    assert drawn.boxes[:, :2].unique().tolist() == list(range(7))
    assert drawn.boxes[:, 2:].unique(dim=0).tolist() == [[9, 7]]
    assert drawn.centres[:, 0].unique().tolist() == list(range(9))
    assert drawn.centres[:, 1].unique().tolist() == list(range(7))
    assert drawn.flips.float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_nothing_is_flipped_where_mirrors_change_the_meaning():
    assert not _drawn(Augmentation(padding=3), _images(100)).flips.any()


@pytest.mark.parametrize("size", [(32, 32), (50, 200), (300, 3)], ids=["square", "wide", "tall"])
def test_random_boxes_lie_within_the_image(size):
    height, width = size
    boxes = draw_boxes(3000, height, width, torch.Generator().manual_seed(0))
    top, left, tall, wide = boxes.unbind(1)
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()
    if width > 3:  # a side of 3 pixels is too coarse for the aspect
        aspect = wide / tall
        assert aspect.min() > 0.75 * 0.9
        assert aspect.max() < 4 / 3 * 1.1


def test_random_boxes_have_the_areas_that_are_asked_for():
    boxes = draw_boxes(5000, 224, 224, torch.Generator().manual_seed(0))
    share = boxes[:, 2] * boxes[:, 3] / 224**2
    assert 0.075 < share.min() < 0.085
    assert share.max() > 0.95
    # A box of the area a fits with the probability min(1, log(1/a) / log(4/3)), else it is drawn
    # again: integrated over 0.08 … 1, the mean is 0.4778.
    assert share.mean().item() == pytest.approx(0.4778, abs=0.01)
    aspect = (boxes[:, 3] / boxes[:, 2]).log()
    assert aspect.mean().item() == pytest.approx(0, abs=0.02)
    assert aspect.abs().max() < math.log(4 / 3) + 0.02


def test_a_resized_crop_is_the_crop_scaled_up():
    what = Augmentation(flip=True, random_resize=True)
    images = _images(8, 24, 20)
    drawn = _drawn(what, images)
    result = augment(images, drawn, (0.0,) * 3, (1.0,) * 3)
    for number, (top, left, tall, wide) in enumerate(drawn.boxes.tolist()):
        crop = images[number : number + 1, :, top : top + tall, left : left + wide] / 255
        wanted = interpolate(crop, (24, 20), mode="bilinear", align_corners=False)[0]
        if drawn.flips[number]:
            wanted = wanted.flip(2)
        torch.testing.assert_close(result[number], wanted, rtol=0, atol=1e-4)


def _set(size: int, *, can_flip: bool = True) -> ImageDataset:
    split = MemorySplit(_images(2, size, size), torch.tensor([0, 1]))
    return make_dataset("x", split, split, ["a", "b"], can_flip=can_flip)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (8, Augmentation(padding=1, flip=True, cutout=4)),
        (28, Augmentation(padding=3, flip=True, cutout=14)),
        (32, Augmentation(padding=4, flip=True, cutout=16)),
        (64, Augmentation(padding=8, flip=True, cutout=32)),
        (96, Augmentation(random_resize=True, flip=True, cutout=48)),
    ],
)
def test_the_default_is_the_papers_and_grows_with_the_image(size, wanted):
    assert choose_augmentation(_set(size), cutout=True) == wanted


def test_the_default_flips_and_cuts_only_where_it_should():
    what = choose_augmentation(_set(8, can_flip=False), cutout=False)
    assert what == Augmentation(padding=1)
