"""What every image network is built for, and the pieces that all families share."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from rankwise.errors import ConfigError

__all__ = ["ConvNorm", "Shape", "assembled", "stage", "stages"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a network is built for.

    Attributes:
        classes: How many numbers it gives for an image.
        channels: How many an image has.
        size: The height and width of an image.
        width: A factor for the channels inside the network; 1 is the published network.

    Raises:
        ConfigError: If a number is out of its range.

    Example:
        >>> Shape(classes=10, width=0.5).scaled(64)
        32
    """

    classes: int
    channels: int = 3
    size: int = 32
    width: float = 1.0

    def __post_init__(self) -> None:
        for what, given, least in (
            ("1 class", self.classes, 1),
            ("1 channel", self.channels, 1),
            ("8 pixels of height and width", self.size, 8),
        ):
            if given < least:
                raise ConfigError(f"An image network needs at least {what}, got {given}.")
        if not 0 < self.width < math.inf:
            raise ConfigError(
                "Expected a width above 0, as 0.5 for half the channels or 1 for the published "
                f"network, got {self.width}."
            )

    def scaled(self, channels: int, multiple: int = 1) -> int:
        """`channels` × width, rounded to a positive multiple; unchanged at width 1."""
        if self.width == 1:
            return channels
        return max(1, round(channels * self.width / multiple)) * multiple


class ConvNorm(nn.Sequential):
    """A convolution that keeps the size (or divides it by `stride`), its norm, an activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        activation: Callable[[], nn.Module] | None = nn.ReLU,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=bias
        )
        self.norm = nn.BatchNorm2d(outputs)
        if activation is not None:
            self.activation = activation()


def stage(
    block: Callable[[int, int, int], nn.Module], inputs: int, outputs: int, blocks: int, stride: int
) -> nn.Sequential:
    """A chain of `block(inputs, outputs, stride)`, of which the first changes the shape."""
    rest = (block(outputs, outputs, 1) for _ in range(blocks - 1))
    return nn.Sequential(block(inputs, outputs, stride), *rest)


def stages(
    block: Callable[[int, int, int], nn.Module], inputs: int, plan: Iterable[tuple[int, int, int]]
) -> dict[str, nn.Module]:
    """The stages of a plan of (outputs, blocks, stride), as "stage1" and so on."""
    found: dict[str, nn.Module] = {}
    for number, (outputs, blocks, stride) in enumerate(plan, start=1):
        found[f"stage{number}"] = stage(block, inputs, outputs, blocks, stride)
        inputs = outputs
    return found


def assembled(
    parts: Mapping[str, nn.Module], features: int, classes: int, *, dropout: float = 0.0
) -> nn.Sequential:
    """The parts one after the other, the mean over all places, a linear classifier.

    The mean adapts to the size that is left, so that small images work too.
    """
    network = nn.Sequential(OrderedDict(parts))
    network.pool = nn.AdaptiveAvgPool2d(1)
    network.flatten = nn.Flatten()
    if dropout:
        network.dropout = nn.Dropout(dropout)
    network.classifier = nn.Linear(features, classes)
    network.apply(_he_initialised)
    return network


def _he_initialised(module: nn.Module) -> None:
    """He et al. 2015: a convolution's weights have the variance 2 / fan-out.

    An input of a grouped convolution reaches the outputs of its group only.
    """
    if isinstance(module, nn.Conv2d):
        fan_out = module.weight[:, 0].numel() // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
