"""A small Vision Transformer (Dosovitskiy et al., 2021), for images of 8 pixels and more."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankwise.lab.networks.shapes import Shape
from rankwise.lab.networks.transformer import Block, initialise

__all__ = ["VisionTransformer", "vit"]

_HEADS = 3
_LAYERS = 6
_WIDTH = 192


class VisionTransformer(nn.Module):
    """Cuts an image into patches, and lets every patch attend to every other.

    The classifier sees the mean over the patches; there is no class token.

    Args:
        shape: Classes, channels and size; `shape.width` is not looked at.
        width: The size of a token.
        layers: How many blocks.
        heads: How many attention heads a block has.
    """

    def __init__(self, shape: Shape, *, width: int, layers: int, heads: int) -> None:
        super().__init__()
        patch = _patch_size(shape.size)
        self.patches = nn.Conv2d(shape.channels, width, kernel_size=patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(1, (shape.size // patch) ** 2, width))
        self.blocks = nn.Sequential(
            *(Block(width, heads=heads, causal=False) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, shape.classes)
        initialise(self)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to logits (B, classes)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)  # (B, patches, width)
        tokens = self.norm(self.blocks(tokens + self.positions))
        return self.classifier(tokens.mean(dim=1))


def vit(shape: Shape) -> nn.Module:
    """Six blocks of three heads, 192 wide at width 1: 8×8 patches of a 32×32 image.

    Example:
        >>> import torch
        >>> from rankwise.lab.networks.shapes import Shape
        >>> from rankwise.lab.networks.vit import vit
        >>> vit(Shape(10, channels=1, size=8, width=0.25))(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    # Heads of a multiple of 8 are what fast attention kernels want.
    width = shape.scaled(_WIDTH, multiple=8 * _HEADS)
    return VisionTransformer(shape, width=width, layers=_LAYERS, heads=_HEADS)


def _patch_size(size: int) -> int:
    """The divisor nearest to an eighth of the image, but more than a single pixel."""
    divisors = [side for side in range(2, size + 1) if size % side == 0]
    return min(divisors, key=lambda side: abs(side - size / 8))
