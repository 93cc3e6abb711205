"""DenseNet (Huang et al. 2017): every layer sees the outputs of all layers before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankwise.lab.networks.shapes import Shape, assembled

__all__ = ["densenet121"]


class DenseLayer(nn.Module):
    """Adds `growth` channels: a 1 × 1 convolution to 4 × `growth` (DenseNet-B), then a 3 × 3."""

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
    """Halves the channels (DenseNet-C) and the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.activation = nn.ReLU()
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.pool = nn.AvgPool2d(2)


def densenet121(shape: Shape) -> nn.Module:
    """DenseNet121 for small images: 6,956,298 parameters with 10 classes.

    The first convolution is 3 × 3 and keeps the size. Growth is 32 × width.
    """
    growth = shape.scaled(32)
    inputs = 2 * growth
    stem = nn.Sequential()
    stem.conv = nn.Conv2d(shape.channels, inputs, 3, padding=1, bias=False)
    parts: dict[str, nn.Module] = {"stem": stem}
    for number, layers in enumerate((6, 12, 24, 16), start=1):
        if number > 1:
            parts[f"transition{number - 1}"] = Transition(inputs, inputs // 2)
            inputs //= 2
        sides = range(inputs, inputs + layers * growth, growth)
        parts[f"stage{number}"] = nn.Sequential(*(DenseLayer(side, growth) for side in sides))
        inputs += layers * growth
    parts |= {"norm": nn.BatchNorm2d(inputs), "activation": nn.ReLU()}
    return assembled(parts, inputs, shape.classes)
