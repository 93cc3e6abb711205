"""Networks for mobile devices: MobileNetV2, EfficientNet-B0 and ShuffleNetV2.

Sandler et al. 2018, Tan and Le 2019, Ma et al. 2018.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from rankwise.lab.networks.blocks import (
    ConvNorm,
    NetworkSpec,
    SqueezeExcite,
    assemble_network,
    make_stage,
    make_stages,
)

# MobileNetV2, Table 2: expansion t, channels c, blocks n, stride s.
_MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# EfficientNet, Table 1: expansion, channels, blocks, kernel, stride.
_EFFICIENTNET_STAGES = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)
_EFFICIENTNET_DROPOUT = 0.2
# Of the last block; the rate rises linearly from 0 at the first block.
_EFFICIENTNET_DROP_RATE = 0.2


class InvertedResidual(nn.Module):
    """MobileNetV2's block: 1 × 1 to more channels, 3 × 3 depthwise, 1 × 1 without activation.

    With `cifar`, every block has its first convolution, even at expansion 1, and every block of
    stride 1 has a shortcut, projected where needed. The CIFAR adaptation whose parameter count is
    published has both; the paper has neither.
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, *, expansion: int, cifar: bool
    ) -> None:
        super().__init__()
        inner = expansion * inputs
        self.expand: nn.Module = nn.Identity()
        if cifar or expansion > 1:
            self.expand = ConvNorm(inputs, inner, 1, activation=nn.ReLU6)
        self.depthwise = ConvNorm(inner, inner, 3, stride=stride, groups=inner, activation=nn.ReLU6)
        self.project = ConvNorm(inner, outputs, 1, activation=None)
        self.shortcut: nn.Module | None = None
        if stride == 1 and inputs == outputs:
            self.shortcut = nn.Identity()
        elif stride == 1 and cifar:
            self.shortcut = ConvNorm(inputs, outputs, 1, activation=None)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        path = self.project(self.depthwise(self.expand(images)))
        return path if self.shortcut is None else path + self.shortcut(images)


def build_mobilenetv2(spec: NetworkSpec, *, cifar: bool) -> nn.Module:
    """Build MobileNetV2; for CIFAR, the first convolution and the second stage keep the size."""
    inputs = spec.scale(32, multiple=8)
    stem = ConvNorm(spec.channels, inputs, 3, stride=1 if cifar else 2, activation=nn.ReLU6)
    parts: dict[str, nn.Module] = {"stem": stem}
    for number, (expansion, channels, blocks, stride) in enumerate(_MOBILENET_STAGES, start=1):
        block = partial(InvertedResidual, expansion=expansion, cifar=cifar)
        outputs = spec.scale(channels, multiple=8)
        first_stride = 1 if cifar and number == 2 else stride
        parts[f"stage{number}"] = make_stage(block, inputs, outputs, blocks, first_stride)
        inputs = outputs
    # Factors below 1 do not narrow the last convolution (the paper, section 4).
    features = max(1280, spec.scale(1280, multiple=8))
    parts["last"] = ConvNorm(inputs, features, 1, activation=nn.ReLU6)
    return assemble_network(parts, features, spec.classes)


class StochasticDepth(nn.Module):
    """Skip a block for random images in training (Huang et al. 2016)."""

    def __init__(self, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.drop_rate = drop_rate

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C, H, W); images that are not dropped are scaled to keep the mean."""
        if not self.training:
            return images
        keep_rate = 1 - self.drop_rate
        draws = torch.rand(len(images), 1, 1, 1, dtype=images.dtype, device=images.device)
        return images * (draws < keep_rate) / keep_rate


class MBConv(nn.Module):
    """EfficientNet's block: an inverted residual with squeeze and excitation."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, *, kernel: int, expansion: int
    ) -> None:
        super().__init__()
        inner = expansion * inputs
        self.expand = ConvNorm(inputs, inner, 1, activation=nn.SiLU)
        self.depthwise = ConvNorm(
            inner, inner, kernel, stride=stride, groups=inner, activation=nn.SiLU
        )
        self.se = SqueezeExcite(inner, max(1, inputs // 4), nn.SiLU)
        self.project = ConvNorm(inner, outputs, 1, activation=None)
        self.drop = StochasticDepth()
        self.residual = stride == 1 and inputs == outputs

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        path = self.project(self.se(self.depthwise(self.expand(images))))
        return images + self.drop(path) if self.residual else path


def build_efficientnetb0(spec: NetworkSpec) -> nn.Module:
    """Build EfficientNet-B0.

    As in the CIFAR adaptation whose parameter count is published, the first convolution keeps the
    size, every block has its first 1 × 1 convolution, and there is none before the classifier.
    """
    inputs = spec.scale(32, multiple=8)
    parts: dict[str, nn.Module] = {"stem": ConvNorm(spec.channels, inputs, 3, activation=nn.SiLU)}
    for number, stage in enumerate(_EFFICIENTNET_STAGES, start=1):
        expansion, channels, blocks, kernel, stride = stage
        block = partial(MBConv, kernel=kernel, expansion=expansion)
        outputs = spec.scale(channels, multiple=8)
        parts[f"stage{number}"] = make_stage(block, inputs, outputs, blocks, stride)
        inputs = outputs
    network = assemble_network(parts, inputs, spec.classes, dropout=_EFFICIENTNET_DROPOUT)
    drops = [module for module in network.modules() if isinstance(module, StochasticDepth)]
    for index, drop in enumerate(drops):
        drop.drop_rate = _EFFICIENTNET_DROP_RATE * index / (len(drops) - 1)
    return network


class ShuffleUnit(nn.Module):
    """1 × 1, 3 × 3 depthwise and 1 × 1 convolutions on one half of the channels, then a shuffle.

    Where the shape changes, both halves are computed from all channels.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.splits = stride == 1
        self.branch = nn.Sequential(
            ConvNorm(half if self.splits else inputs, half, 1),
            ConvNorm(half, half, 3, stride=stride, groups=half, activation=None),
            ConvNorm(half, half, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if not self.splits:
            self.shortcut = nn.Sequential(
                ConvNorm(inputs, inputs, 3, stride=stride, groups=inputs, activation=None),
                ConvNorm(inputs, half, 1),
            )

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        first, second = images.chunk(2, dim=1) if self.splits else (images, images)
        path = self.branch(second)
        # The shuffle interleaves the channels of the two halves.
        return torch.stack([self.shortcut(first), path], dim=2).flatten(1, 2)


def build_shufflenetv2(spec: NetworkSpec, *, channels: int) -> nn.Module:
    """Build ShuffleNetV2 for small images, with `channels` in the first stage."""
    inputs = spec.scale(24)
    outputs = [spec.scale(channels * 2**i, multiple=2) for i in range(3)]
    features = spec.scale(1024)
    plan = zip(outputs, (4, 8, 4), (2, 2, 2), strict=True)
    parts = {
        "stem": ConvNorm(spec.channels, inputs, 3),
        **make_stages(ShuffleUnit, inputs, plan),
        "last": ConvNorm(outputs[-1], features, 1),
    }
    return assemble_network(parts, features, spec.classes)
