"""VGG16 (Simonyan and Zisserman 2015) with batch norms: 3 × 3 convolutions and pools."""

from __future__ import annotations

from torch import nn

from rankwise.lab.networks.shapes import ConvNorm, Shape, assembled

__all__ = ["vgg16"]

# The paper's column D: channels and convolutions of each stage.
_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg16(shape: Shape) -> nn.Module:
    """VGG16 for small images: 14,728,266 parameters with 10 classes.

    One linear layer in place of the paper's three. Its convolutions have biases.
    """
    parts: dict[str, nn.Module] = {}
    inputs = shape.channels
    for number, (channels, convolutions) in enumerate(_STAGES, start=1):
        outputs = shape.scaled(channels)
        sides = [inputs, *[outputs] * (convolutions - 1)]
        parts[f"stage{number}"] = nn.Sequential(
            *(ConvNorm(side, outputs, 3, bias=True) for side in sides)
        )
        # Rounding up keeps a single pixel: small images are down to one before the last pool.
        parts[f"pool{number}"] = nn.MaxPool2d(2, ceil_mode=True)
        inputs = outputs
    return assembled(parts, inputs, shape.classes)
