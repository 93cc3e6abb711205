"""ResNet (He et al. 2016): stages of residual blocks at 64, 128, 256 and 512 channels.

Images of CIFAR's size get a first convolution of 3 × 3 that keeps their size; those of ImageNet's
get one of 7 × 7 and a pool. Strides are in the 3 × 3 convolutions of bottlenecks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rankwise.lab.networks.shapes import ConvNorm, Shape, assembled, stages

__all__ = [
    "BasicBlock",
    "Bottleneck",
    "imagenet_stem",
    "resnet18",
    "resnet18_imagenet",
    "resnet34",
    "resnet34_imagenet",
    "resnet50",
    "resnet50_imagenet",
    "resnet101",
    "resnet101_imagenet",
]


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        stride: Of the first convolution.
        shortcut: What stands beside them; None for a 1 × 1 convolution where it is needed.
    """

    expansion = 1

    def __init__(
        self, inputs: int, outputs: int, stride: int, shortcut: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut or _shortcut(inputs, outputs, stride)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        path = torch.relu(self.norm1(self.conv1(images)))
        path = self.norm2(self.conv2(path))
        return torch.relu(path + self.shortcut(images))


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions beside a shortcut.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        stride: Of the 3 × 3 convolution.
        expansion: The 3 × 3 convolution has `outputs` / `expansion` channels.
        groups: Of the 3 × 3 convolution.
    """

    expansion = 4

    def __init__(
        self, inputs: int, outputs: int, stride: int, *, expansion: int = 4, groups: int = 1
    ) -> None:
        super().__init__()
        width = outputs // expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        path = torch.relu(self.norm1(self.conv1(images)))
        path = torch.relu(self.norm2(self.conv2(path)))
        path = self.norm3(self.conv3(path))
        return torch.relu(path + self.shortcut(images))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The identity, or a projection where the shape changes (the paper's option B)."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return ConvNorm(inputs, outputs, 1, stride=stride, activation=None)


def cifar_stem(channels: int, outputs: int) -> nn.Module:
    """A 3 × 3 convolution that keeps the size."""
    return ConvNorm(channels, outputs, 3)


def imagenet_stem(channels: int, outputs: int) -> nn.Module:
    """A 7 × 7 convolution and a pool, each of stride 2."""
    stem = ConvNorm(channels, outputs, 7, stride=2)
    stem.pool = nn.MaxPool2d(3, stride=2, padding=1)
    return stem


def _resnet(
    shape: Shape,
    block: type[BasicBlock | Bottleneck],
    blocks: tuple[int, int, int, int],
    stem: Callable[[int, int], nn.Module] = cifar_stem,
) -> nn.Sequential:
    widths = [shape.scaled(channels) for channels in (64, 128, 256, 512)]
    outputs = [block.expansion * width for width in widths]
    plan = zip(outputs, blocks, (1, 2, 2, 2), strict=True)
    parts = {"stem": stem(shape.channels, widths[0]), **stages(block, widths[0], plan)}
    return assembled(parts, outputs[-1], shape.classes)


def resnet18(shape: Shape) -> nn.Module:
    """ResNet18 for small images: 11,173,962 parameters with 10 classes."""
    return _resnet(shape, BasicBlock, (2, 2, 2, 2))


def resnet34(shape: Shape) -> nn.Module:
    """ResNet34 for small images: 21,282,122 parameters with 10 classes."""
    return _resnet(shape, BasicBlock, (3, 4, 6, 3))


def resnet50(shape: Shape) -> nn.Module:
    """ResNet50 for small images: 23,520,842 parameters with 10 classes."""
    return _resnet(shape, Bottleneck, (3, 4, 6, 3))


def resnet101(shape: Shape) -> nn.Module:
    """ResNet101 for small images: 42,512,970 parameters with 10 classes."""
    return _resnet(shape, Bottleneck, (3, 4, 23, 3))


def resnet18_imagenet(shape: Shape) -> nn.Module:
    """ResNet18 for large images: 11,689,512 parameters with 1000 classes."""
    return _resnet(shape, BasicBlock, (2, 2, 2, 2), imagenet_stem)


def resnet34_imagenet(shape: Shape) -> nn.Module:
    """ResNet34 for large images: 21,797,672 parameters with 1000 classes."""
    return _resnet(shape, BasicBlock, (3, 4, 6, 3), imagenet_stem)


def resnet50_imagenet(shape: Shape) -> nn.Module:
    """ResNet50 for large images: 25,557,032 parameters with 1000 classes."""
    return _resnet(shape, Bottleneck, (3, 4, 6, 3), imagenet_stem)


def resnet101_imagenet(shape: Shape) -> nn.Module:
    """ResNet101 for large images: 44,549,160 parameters with 1000 classes."""
    return _resnet(shape, Bottleneck, (3, 4, 23, 3), imagenet_stem)
