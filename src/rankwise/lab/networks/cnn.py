"""Convolutional networks: ResNet, ResNeXt, SENet, VGG16 and DenseNet121.

He et al. 2016, Xie et al. 2017, Hu et al. 2018, Simonyan and Zisserman 2015, Huang et al. 2017.

Images of CIFAR's size get a first convolution that keeps their size; those of ImageNet's size get
one of 7 × 7 and a pool. Strides are in the 3 × 3 convolutions of bottlenecks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwise.lab.networks.blocks import (
    BlockFactory,
    ConvNorm,
    NetworkSpec,
    SqueezeExcite,
    assemble_network,
    make_stages,
)

_SQUEEZE_RATIO = 16  # SENet's r: channels of a block for each channel of its squeeze
# VGG paper, column D: channels and number of convolutions of each stage.
_VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_DENSENET121_LAYERS = (6, 12, 24, 16)


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions and a shortcut; by default one that fits the shapes."""

    expansion = 1

    def __init__(
        self, inputs: int, outputs: int, stride: int, shortcut: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut or _make_shortcut(inputs, outputs, stride)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        path = torch.relu(self.norm1(self.conv1(images)))
        path = self.norm2(self.conv2(path))
        return torch.relu(path + self.shortcut(images))


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions, `outputs` / `expansion` wide inside, and a shortcut."""

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
        self.shortcut = _make_shortcut(inputs, outputs, stride)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        path = torch.relu(self.norm1(self.conv1(images)))
        path = torch.relu(self.norm2(self.conv2(path)))
        path = self.norm3(self.conv3(path))
        return torch.relu(path + self.shortcut(images))


class PreActivationBlock(nn.Module):
    """Norm and activation before each convolution (He et al. 2016, "Identity mappings")."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.se = SqueezeExcite(outputs, max(1, outputs // _SQUEEZE_RATIO))
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        active = torch.relu(self.norm1(images))
        path = self.se(self.conv2(torch.relu(self.norm2(self.conv1(active)))))
        return path + (images if self.shortcut is None else self.shortcut(active))


class PaddedShortcut(nn.Module):
    """Skip pixels and add channels of zeros: a shortcut without parameters (option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.zeros = outputs - inputs

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        if self.stride == 1 and self.zeros == 0:
            return images
        pixels = images[:, :, :: self.stride, :: self.stride]
        return functional.pad(pixels, (0, 0, 0, 0, 0, self.zeros))


def _make_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Make an identity, or a projection where the shape changes (option B)."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return ConvNorm(inputs, outputs, 1, stride=stride, activation=None)


Stem = Callable[[int, int], nn.Module]  # image channels, output channels


def make_cifar_stem(channels: int, outputs: int) -> nn.Module:
    """Make a 3 × 3 convolution that keeps the size."""
    return ConvNorm(channels, outputs, 3)


def make_imagenet_stem(channels: int, outputs: int) -> nn.Module:
    """Make a 7 × 7 convolution and a pool, each of stride 2."""
    stem = ConvNorm(channels, outputs, 7, stride=2)
    stem.pool = nn.MaxPool2d(3, stride=2, padding=1)
    return stem


def build_resnet(
    spec: NetworkSpec,
    *,
    block: type[BasicBlock | Bottleneck],
    blocks: Sequence[int],
    stem: Stem = make_cifar_stem,
) -> nn.Module:
    """Build a ResNet with `blocks` blocks at 64, 128, 256 and 512 channels × expansion."""
    widths = [spec.scale(channels) for channels in (64, 128, 256, 512)]
    outputs = [block.expansion * width for width in widths]
    return _build(spec, block, stem, inputs=widths[0], outputs=outputs, blocks=blocks)


def build_small_resnet(spec: NetworkSpec, *, n: int) -> nn.Module:
    """Build the ResNet of 6 n + 2 layers for CIFAR: three stages at 16, 32 and 64 channels.

    The paper starts at n = 3; n = 1, ResNet8, is for tests and demos.
    """

    def make_block(inputs: int, outputs: int, stride: int) -> nn.Module:
        return BasicBlock(inputs, outputs, stride, PaddedShortcut(inputs, outputs, stride))

    widths = [spec.scale(channels) for channels in (16, 32, 64)]
    return _build(
        spec, make_block, make_cifar_stem, inputs=widths[0], outputs=widths, blocks=(n, n, n)
    )


def build_resnext(
    spec: NetworkSpec, *, blocks: Sequence[int], groups: int, stem: Stem | None = None
) -> nn.Module:
    """Build a ResNeXt, whose 3 × 3 convolutions are split into groups.

    The groups of the first stage have 128 channels in total, those of each next stage twice as
    many. Without a stem, the first convolution is 1 × 1, as in the CIFAR adaptation whose
    parameter count is published.
    """
    stem = stem or partial(ConvNorm, kernel=1)
    outputs = [2 * spec.scale(128 * 2**i, multiple=groups) for i in range(len(blocks))]
    block = partial(Bottleneck, expansion=2, groups=groups)
    return _build(spec, block, stem, inputs=spec.scale(64), outputs=outputs, blocks=blocks)


def build_senet(spec: NetworkSpec) -> nn.Module:
    """Build SENet18.

    As in the CIFAR adaptation whose parameter count is published, blocks use pre-activation and
    there is no norm before the classifier.
    """
    widths = [spec.scale(channels) for channels in (64, 128, 256, 512)]
    return _build(
        spec,
        PreActivationBlock,
        make_cifar_stem,
        inputs=widths[0],
        outputs=widths,
        blocks=(2, 2, 2, 2),
    )


def _build(
    spec: NetworkSpec,
    block: BlockFactory,
    stem: Stem,
    *,
    inputs: int,
    outputs: Sequence[int],
    blocks: Sequence[int],
) -> nn.Module:
    """Assemble stem and stages; every stage but the first halves the size."""
    strides = [1] + [2] * (len(blocks) - 1)
    plan = zip(outputs, blocks, strides, strict=True)
    parts = {"stem": stem(spec.channels, inputs), **make_stages(block, inputs, plan)}
    return assemble_network(parts, outputs[-1], spec.classes)


def build_vgg16(spec: NetworkSpec) -> nn.Module:
    """Build VGG16 with batch norms, biases and one linear layer instead of the paper's three."""
    parts: dict[str, nn.Module] = {}
    inputs = spec.channels
    for number, (channels, convolutions) in enumerate(_VGG16_STAGES, start=1):
        outputs = spec.scale(channels)
        widths = [inputs, *[outputs] * (convolutions - 1)]
        parts[f"stage{number}"] = nn.Sequential(
            *(ConvNorm(width, outputs, 3, bias=True) for width in widths)
        )
        # Rounding up keeps a single pixel: small images shrink to one before the last pool.
        parts[f"pool{number}"] = nn.MaxPool2d(2, ceil_mode=True)
        inputs = outputs
    return assemble_network(parts, inputs, spec.classes)


class DenseLayer(nn.Module):
    """Add `growth` channels: a 1 × 1 convolution to 4 × `growth` (DenseNet-B), then a 3 × 3."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, inputs + growth, H, W)."""
        new = self.conv1(torch.relu(self.norm1(images)))
        new = self.conv2(torch.relu(self.norm2(new)))
        return torch.cat([images, new], dim=1)


class Transition(nn.Sequential):
    """Halve the channels (DenseNet-C) and the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.activation = nn.ReLU()
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.pool = nn.AvgPool2d(2)


def build_densenet121(spec: NetworkSpec) -> nn.Module:
    """Build DenseNet121 for small images: the first convolution is 3 × 3 and keeps the size.

    Every layer sees the outputs of all layers before it. The growth is 32 × width.
    """
    growth = spec.scale(32)
    inputs = 2 * growth
    stem = nn.Sequential()
    stem.conv = nn.Conv2d(spec.channels, inputs, 3, padding=1, bias=False)
    parts: dict[str, nn.Module] = {"stem": stem}
    for number, layers in enumerate(_DENSENET121_LAYERS, start=1):
        if number > 1:
            parts[f"transition{number - 1}"] = Transition(inputs, inputs // 2)
            inputs //= 2
        widths = range(inputs, inputs + layers * growth, growth)
        parts[f"stage{number}"] = nn.Sequential(*(DenseLayer(width, growth) for width in widths))
        inputs += layers * growth
    parts |= {"norm": nn.BatchNorm2d(inputs), "activation": nn.ReLU()}
    return assemble_network(parts, inputs, spec.classes)
