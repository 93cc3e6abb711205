"""ResNeXt (Xie et al. 2017): ResNets whose 3 × 3 convolutions are split into groups."""

from __future__ import annotations

from functools import partial

from torch import nn

from rankwise.lab.networks.resnet import Bottleneck, imagenet_stem
from rankwise.lab.networks.shapes import ConvNorm, Shape, assembled, stages

__all__ = ["resnext29", "resnext50_imagenet"]


def _resnext(
    shape: Shape, stem: nn.Module, inputs: int, blocks: tuple[int, ...], groups: int
) -> nn.Sequential:
    """128 channels in the first stage's groups together, twice as many in each one after it."""
    widths = [shape.scaled(128 * 2**i, multiple=groups) for i in range(len(blocks))]
    outputs = [2 * width for width in widths]
    strides = [1] + [2] * (len(blocks) - 1)
    block = partial(Bottleneck, expansion=2, groups=groups)
    plan = zip(outputs, blocks, strides, strict=True)
    parts = {"stem": stem, **stages(block, inputs, plan)}
    return assembled(parts, outputs[-1], shape.classes)


def resnext29(shape: Shape) -> nn.Module:
    """ResNeXt29, 2 × 64d, for small images: 9,128,778 parameters with 10 classes.

    Its first convolution is 1 × 1, as in the adaptation to CIFAR whose count is published.
    """
    inputs = shape.scaled(64)
    stem = ConvNorm(shape.channels, inputs, 1)
    return _resnext(shape, stem, inputs, (3, 3, 3), groups=2)


def resnext50_imagenet(shape: Shape) -> nn.Module:
    """ResNeXt50, 32 × 4d, for large images: 25,028,904 parameters with 1000 classes."""
    inputs = shape.scaled(64)
    stem = imagenet_stem(shape.channels, inputs)
    return _resnext(shape, stem, inputs, (3, 4, 6, 3), groups=32)
