"""VGG16 (Simonyan and Zisserman 2015) and DenseNet121 (Huang et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankwise.lab.networks.blocks import ConvNorm, NetworkSpec, assemble_network

__all__ = ["DenseLayer", "build_densenet121", "build_vgg16"]

# VGG paper, column D: channels and number of convolutions of each stage.
_VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_DENSENET121_LAYERS = (6, 12, 24, 16)


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
