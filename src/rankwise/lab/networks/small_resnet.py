"""He et al.'s small ResNets for CIFAR: three stages of n blocks at 16, 32 and 64 channels.

6 n + 2 layers with weights. Shortcuts have no parameters (the paper's option A).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from rankwise.lab.networks.resnet import BasicBlock
from rankwise.lab.networks.shapes import ConvNorm, Shape, assembled, stages

__all__ = ["resnet8", "resnet20", "resnet32", "resnet44", "resnet56"]


class PaddedShortcut(nn.Module):
    """Skips pixels and adds channels of zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.zeros = outputs - inputs

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        if self.stride == 1 and self.zeros == 0:
            return images
        kept = images[:, :, :: self.stride, :: self.stride]
        return functional.pad(kept, (0, 0, 0, 0, 0, self.zeros))


def _block(inputs: int, outputs: int, stride: int) -> nn.Module:
    return BasicBlock(inputs, outputs, stride, PaddedShortcut(inputs, outputs, stride))


def _small_resnet(shape: Shape, n: int) -> nn.Sequential:
    widths = [shape.scaled(channels) for channels in (16, 32, 64)]
    plan = zip(widths, (n, n, n), (1, 2, 2), strict=True)
    stem = ConvNorm(shape.channels, widths[0], 3)
    parts = {"stem": stem, **stages(_block, widths[0], plan)}
    return assembled(parts, widths[-1], shape.classes)


def resnet8(shape: Shape) -> nn.Module:
    """The smallest of the family (n = 1), which the paper lacks: for tests and demos."""
    return _small_resnet(shape, 1)


def resnet20(shape: Shape) -> nn.Module:
    """20 layers: 0.27 million parameters with 10 classes."""
    return _small_resnet(shape, 3)


def resnet32(shape: Shape) -> nn.Module:
    """32 layers: 0.46 million parameters with 10 classes."""
    return _small_resnet(shape, 5)


def resnet44(shape: Shape) -> nn.Module:
    """44 layers: 0.66 million parameters with 10 classes."""
    return _small_resnet(shape, 7)


def resnet56(shape: Shape) -> nn.Module:
    """56 layers: 0.85 million parameters with 10 classes."""
    return _small_resnet(shape, 9)
