"""EfficientNet-B0 (Tan and Le 2019): inverted residuals that weigh their channels."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from rankwise.lab.networks.senet import SqueezeExcite
from rankwise.lab.networks.shapes import ConvNorm, Shape, assembled, stage

__all__ = ["efficientnetb0"]

# The paper's Table 1: expansion, channels, blocks, kernel, stride.
_STAGES = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)
_DROPOUT = 0.2
# Of the last block; the blocks before it drop out less often, the first never.
_DROPPED_PATHS = 0.2


class StochasticDepth(nn.Module):
    """Leaves out a block for random images in training (Huang et al. 2016).

    Args:
        dropped: How often.
    """

    def __init__(self, dropped: float = 0.0) -> None:
        super().__init__()
        self.dropped = dropped

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C, H, W), the images that are kept scaled up to the same mean."""
        if not self.training:
            return images
        kept = 1 - self.dropped
        mask = torch.rand(len(images), 1, 1, 1, dtype=images.dtype, device=images.device) < kept
        return images * mask / kept


class MBConv(nn.Module):
    """1 × 1 to more channels, a depthwise convolution, squeeze and excitation, 1 × 1 to few.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        stride: Of the depthwise convolution.
        kernel: Its height and width.
        expansion: How many times more channels it has than come in.
    """

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


def efficientnetb0(shape: Shape) -> nn.Module:
    """EfficientNet-B0 for small images: 3,599,686 parameters with 10 classes.

    As in the adaptation to CIFAR whose count is published, the first convolution keeps the size,
    every block has its first 1 × 1 convolution, and there is none before the classifier.
    """
    inputs = shape.scaled(32, multiple=8)
    parts: dict[str, nn.Module] = {"stem": ConvNorm(shape.channels, inputs, 3, activation=nn.SiLU)}
    for number, (expansion, channels, blocks, kernel, stride) in enumerate(_STAGES, start=1):
        block = partial(MBConv, kernel=kernel, expansion=expansion)
        outputs = shape.scaled(channels, multiple=8)
        parts[f"stage{number}"] = stage(block, inputs, outputs, blocks, stride)
        inputs = outputs
    network = assembled(parts, inputs, shape.classes, dropout=_DROPOUT)
    drops = [module for module in network.modules() if isinstance(module, StochasticDepth)]
    for index, drop in enumerate(drops):
        drop.dropped = _DROPPED_PATHS * index / (len(drops) - 1)
    return network
