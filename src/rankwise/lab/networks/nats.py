"""The networks of NATS-Bench's size search space (Dong et al., 2021).

Three cells of one topology, and two residual blocks that halve the size:

    conv(3 → C1), norm · cell C1 → C1 · block C1 → C2 · cell C2 → C3 · block C3 → C4 · cell C4 → C5
    · norm, ReLU, mean over the pixels, linear classifier.

The topology is that of the benchmark's best cell on CIFAR-100,
|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_3x3~1|nor_conv_3x3~2|.
Weights start as PyTorch draws them, as in the benchmark.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from rankwise.errors import ConfigError
from rankwise.lab.networks.blocks import NetworkSpec
from rankwise.lab.size_space import parse_channels


class Unit(nn.Sequential):
    """ReLU, a 3 × 3 convolution, batch norm: the benchmark's "nor_conv_3x3"."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.activation = nn.ReLU()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)


class Cell(nn.Module):
    """Four nodes, each the sum of an operation on every node before it; the last is the output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.unit01 = Unit(inputs, outputs)
        self.unit02 = Unit(inputs, outputs)
        self.unit12 = Unit(outputs, outputs)
        self.skip03 = nn.Identity() if inputs == outputs else _make_projection(inputs, outputs)
        self.unit13 = Unit(outputs, outputs)
        self.unit23 = Unit(outputs, outputs)

    def forward(self, node0: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H, W)."""
        node1 = self.unit01(node0)
        node2 = self.unit02(node0) + self.unit12(node1)
        return self.skip03(node0) + self.unit13(node1) + self.unit23(node2)


class ReductionBlock(nn.Module):
    """Two units, the first with stride 2, added to a mean over 2 × 2 and a 1 × 1 convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.unit1 = Unit(inputs, outputs, stride=2)
        self.unit2 = Unit(outputs, outputs)
        self.pool = nn.AvgPool2d(2, ceil_mode=True)  # odd sizes round as with the convolution
        self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / 2, W / 2)."""
        return self.unit2(self.unit1(images)) + self.shortcut(self.pool(images))


def _make_projection(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(conv=nn.Conv2d(inputs, outputs, 1, bias=False), norm=nn.BatchNorm2d(outputs))
    )


def build_nats(name: str, spec: NetworkSpec) -> nn.Module:
    """Build the network of a name such as "nats:8:16:32:48:64".

    Example:
        >>> network = build_nats("nats:8:8:8:8:8", NetworkSpec(classes=10))
        >>> sum(parameter.numel() for parameter in network.parameters())
        11714
    """
    if spec.width != 1:
        raise ConfigError(
            f"{name} names its channels, got a width of {spec.width} as well: leave it at 1."
        )
    c1, c2, c3, c4, c5 = parse_channels(name)
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(spec.channels, c1, 3, padding=1, bias=False),
                    norm=nn.BatchNorm2d(c1),
                )
            ),
            cell1=Cell(c1, c1),
            block1=ReductionBlock(c1, c2),
            cell2=Cell(c2, c3),
            block2=ReductionBlock(c3, c4),
            cell3=Cell(c4, c5),
            norm=nn.BatchNorm2d(c5),
            activation=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            classifier=nn.Linear(c5, spec.classes),
        )
    )
