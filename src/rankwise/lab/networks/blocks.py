"""The size an image network is built for, and the building blocks that the families share."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankwise.errors import ConfigError

BlockFactory = Callable[[int, int, int], nn.Module]  # input channels, output channels, stride


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Describe the images and classes that a network is built for, and its width.

    The width is a factor for the channels inside the network; 1 is the published network.

    Example:
        >>> NetworkSpec(classes=10, width=0.5).scale(64)
        32
    """

    classes: int
    channels: int = 3
    size: int = 32
    width: float = 1.0

    def __post_init__(self) -> None:
        for what, value, minimum in (
            ("1 class", self.classes, 1),
            ("1 channel", self.channels, 1),
            ("8 pixels of height and width", self.size, 8),
        ):
            if value < minimum:
                raise ConfigError(f"An image network needs at least {what}, got {value}.")
        if not 0 < self.width < math.inf:
            raise ConfigError(
                "Expected a width above 0, such as 0.5 for half the channels or 1 for the "
                f"published network, got {self.width}."
            )

    def scale(self, channels: int, multiple: int = 1) -> int:
        """Return `channels` × width, rounded to a positive multiple; unchanged at width 1."""
        if self.width == 1:
            return channels
        return max(1, round(channels * self.width / multiple)) * multiple


class ConvNorm(nn.Sequential):
    """A convolution that keeps the size (or divides it by `stride`), batch norm, an activation."""

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


class SqueezeExcite(nn.Module):
    """Scale each channel by a factor in 0 … 1 from the means of all channels (Hu et al. 2018)."""

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


def make_stage(
    block: BlockFactory, inputs: int, outputs: int, blocks: int, stride: int
) -> nn.Sequential:
    """Chain blocks; only the first changes the channels and the size."""
    rest = (block(outputs, outputs, 1) for _ in range(blocks - 1))
    return nn.Sequential(block(inputs, outputs, stride), *rest)


def make_stages(
    block: BlockFactory, inputs: int, plan: Iterable[tuple[int, int, int]]
) -> dict[str, nn.Module]:
    """Make the stages of a plan of (outputs, blocks, stride), named "stage1" and so on."""
    stages: dict[str, nn.Module] = {}
    for number, (outputs, blocks, stride) in enumerate(plan, start=1):
        stages[f"stage{number}"] = make_stage(block, inputs, outputs, blocks, stride)
        inputs = outputs
    return stages


def assemble_network(
    parts: Mapping[str, nn.Module], features: int, classes: int, *, dropout: float = 0.0
) -> nn.Sequential:
    """Chain the parts, global average pooling and a linear classifier; initialise the weights.

    The pooling adapts to the remaining size, so that small images work too.
    """
    network = nn.Sequential(OrderedDict(parts))
    network.pool = nn.AdaptiveAvgPool2d(1)
    network.flatten = nn.Flatten()
    if dropout:
        network.dropout = nn.Dropout(dropout)
    network.classifier = nn.Linear(features, classes)
    network.apply(_initialise_convolution)
    return network


def _initialise_convolution(module: nn.Module) -> None:
    """Draw a convolution's weights with variance 2 / fan-out (He et al. 2015).

    In a grouped convolution, an input reaches only the outputs of its group.
    """
    if isinstance(module, nn.Conv2d):
        fan_out = module.weight[:, 0].numel() // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
