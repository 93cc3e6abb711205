"""MobileNetV2 (Sandler et al. 2018): thin layers between blocks that widen, filter and narrow."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from rankwise.lab.networks.shapes import ConvNorm, Shape, assembled, stage

__all__ = ["mobilenetv2", "mobilenetv2_imagenet"]

# The paper's Table 2: expansion t, channels c, blocks n, stride s.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """1 × 1 to more channels, 3 × 3 on each by itself, 1 × 1 to few without activation.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        stride: Of the 3 × 3 convolution.
        expansion: How many times more channels the 3 × 3 convolution has than come in.
        cifar: Whether every block has its first convolution, even at expansion 1, and every
            block of stride 1 has a shortcut, projected where needed. So does the adaptation to
            CIFAR whose count is published; the paper has neither.
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


def _mobilenetv2(shape: Shape, *, cifar: bool) -> nn.Sequential:
    inputs = shape.scaled(32, multiple=8)
    stem = ConvNorm(shape.channels, inputs, 3, stride=1 if cifar else 2, activation=nn.ReLU6)
    parts: dict[str, nn.Module] = {"stem": stem}
    for number, (expansion, channels, blocks, stride) in enumerate(_STAGES, start=1):
        block = partial(InvertedResidual, expansion=expansion, cifar=cifar)
        outputs = shape.scaled(channels, multiple=8)
        small = 1 if cifar and number == 2 else stride
        parts[f"stage{number}"] = stage(block, inputs, outputs, blocks, small)
        inputs = outputs
    # Factors below 1 spare the last convolution (the paper, section 4).
    features = max(1280, shape.scaled(1280, multiple=8))
    parts["last"] = ConvNorm(inputs, features, 1, activation=nn.ReLU6)
    return assembled(parts, features, shape.classes)


def mobilenetv2(shape: Shape) -> nn.Module:
    """MobileNetV2 for small images: 2,296,922 parameters with 10 classes.

    The first convolution and the second stage keep the size.
    """
    return _mobilenetv2(shape, cifar=True)


def mobilenetv2_imagenet(shape: Shape) -> nn.Module:
    """MobileNetV2 for large images: 3,504,872 parameters with 1000 classes."""
    return _mobilenetv2(shape, cifar=False)
