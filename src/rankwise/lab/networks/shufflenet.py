"""ShuffleNetV2 (Ma et al. 2018): half of the channels pass by, then all are shuffled."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankwise.lab.networks.shapes import ConvNorm, Shape, assembled, stages

__all__ = ["shufflenetv2", "shufflenetv2_15"]


class ShuffleUnit(nn.Module):
    """1 × 1, 3 × 3 depthwise and 1 × 1 convolutions on one half of the channels.

    Where the shape changes, both halves come from all channels, through convolutions.
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
        self.beside: nn.Module = nn.Identity()
        if not self.splits:
            self.beside = nn.Sequential(
                ConvNorm(inputs, inputs, 3, stride=stride, groups=inputs, activation=None),
                ConvNorm(inputs, half, 1),
            )

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        kept, changed = images.chunk(2, dim=1) if self.splits else (images, images)
        path = self.branch(changed)
        # The shuffle: a channel of one half, then one of the other.
        return torch.stack([self.beside(kept), path], dim=2).flatten(1, 2)


def _shufflenetv2(shape: Shape, first: int) -> nn.Sequential:
    inputs = shape.scaled(24)
    outputs = [shape.scaled(first * 2**i, multiple=2) for i in range(3)]
    features = shape.scaled(1024)
    plan = zip(outputs, (4, 8, 4), (2, 2, 2), strict=True)
    parts = {
        "stem": ConvNorm(shape.channels, inputs, 3),
        **stages(ShuffleUnit, inputs, plan),
        "last": ConvNorm(outputs[-1], features, 1),
    }
    return assembled(parts, features, shape.classes)


def shufflenetv2(shape: Shape) -> nn.Module:
    """ShuffleNetV2 ×1 for small images: 1,263,854 parameters with 10 classes."""
    return _shufflenetv2(shape, 116)


def shufflenetv2_15(shape: Shape) -> nn.Module:
    """ShuffleNetV2 ×1.5 for small images: 2,488,874 parameters with 10 classes."""
    return _shufflenetv2(shape, 176)
