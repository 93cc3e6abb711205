"""SENet (Hu et al. 2018): residual blocks that weigh their channels by what the image holds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rankwise.lab.networks.shapes import ConvNorm, Shape, assembled, stages

__all__ = ["SqueezeExcite", "senet18"]

# The paper's r: a block's channels for each channel of its squeeze.
_REDUCTION = 16


class SqueezeExcite(nn.Module):
    """Scales each channel by a factor in 0 … 1 that depends on the means of all channels."""

    def __init__(
        self, channels: int, squeezed: int, activation: Callable[[], nn.Module] = nn.ReLU
    ) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.activation = activation()
        self.excite = nn.Conv2d(squeezed, channels, 1)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C, H, W)."""
        squeezed = self.activation(self.squeeze(self.pool(images)))  # (B, squeezed, 1, 1)
        return images * torch.sigmoid(self.excite(squeezed))


class PreActivationBlock(nn.Module):
    """Norms and activations before the convolutions (He et al. 2016, "Identity mappings")."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.se = SqueezeExcite(outputs, max(1, outputs // _REDUCTION))
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        active = torch.relu(self.norm1(images))
        path = self.se(self.conv2(torch.relu(self.norm2(self.conv1(active)))))
        return path + (images if self.shortcut is None else self.shortcut(active))


def senet18(shape: Shape) -> nn.Module:
    """SENet18 for small images: 11,260,354 parameters with 10 classes.

    The adaptation to CIFAR whose count is published: blocks with pre-activation, without the
    norm that other such networks have before their classifier.
    """
    widths = [shape.scaled(channels) for channels in (64, 128, 256, 512)]
    plan = zip(widths, (2, 2, 2, 2), (1, 2, 2, 2), strict=True)
    stem = ConvNorm(shape.channels, widths[0], 3)
    parts = {"stem": stem, **stages(PreActivationBlock, widths[0], plan)}
    return assembled(parts, widths[-1], shape.classes)
