"""ResNets: as shapes, as weights of those shapes that hold structure, as lists, as modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_BLOCKS = {"ResNet18": (2, 2, 2, 2), "ResNet50": (3, 4, 6, 3), "ResNet101": (3, 4, 23, 3)}
_WIDTHS = (64, 128, 256, 512)
NETWORKS = tuple(_BLOCKS)


def convolutions(network: str) -> list[tuple[int, int, int, int]]:
    """`[out, in, height, width]` of every convolution."""
    expansion = _expansion(network)
    shapes, inputs = [(64, 3, 7, 7)], 64
    for stage, (width, blocks) in enumerate(zip(_WIDTHS, _BLOCKS[network], strict=True)):
        for block in range(blocks):
            outputs = width * expansion
            if expansion == 1:
                shapes += [(width, inputs, 3, 3), (width, width, 3, 3)]
            else:
                shapes += [(width, inputs, 1, 1), (width, width, 3, 3), (outputs, width, 1, 1)]
            if block == 0 and (stage > 0 or expansion > 1):
                shapes.append((outputs, inputs, 1, 1))
            inputs = outputs
    return shapes


def weights(network: str) -> dict[str, Tensor]:
    """Random weights of unit scale with a low-rank part, so that there is something to find."""
    torch.manual_seed(0)
    return {f"conv{i}.weight": _weight(shape) for i, shape in enumerate(convolutions(network))}


def _weight(shape: tuple[int, int, int, int]) -> Tensor:
    rank = max(1, min(shape[:2]) // 8)
    out, into, space = (torch.randn(side, rank) for side in (*shape[:2], shape[2] * shape[3]))
    structure = torch.einsum("or,ir,kr->oik", out, into, space).reshape(shape)
    return torch.randn(shape) + structure


def parameters(network: str, classes: int = 1000) -> list[Tensor]:
    """All parameters: each convolution with its norm, and the classifier."""
    found: list[Tensor] = []
    for shape in convolutions(network):
        found += [0.01 * torch.randn(shape), torch.ones(shape[0]), torch.zeros(shape[0])]
    width = _WIDTHS[-1] * _expansion(network)
    return [*found, 0.01 * torch.randn(classes, width), torch.zeros(classes)]


class _Block(nn.Module):
    """A residual block: two 3 × 3 convolutions, or 1 × 1, 3 × 3, 1 × 1."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        if outputs == width:
            sides = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        else:
            sides = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        parts = [part for side in sides for part in (*_convolution(*side), nn.ReLU())]
        self.path = nn.Sequential(*parts[:-1])
        plain = stride == 1 and inputs == outputs
        shortcut = () if plain else _convolution(inputs, outputs, 1, stride)
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.path(images) + self.shortcut(images))


def _convolution(inputs: int, outputs: int, side: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)


def resnet(network: str, classes: int = 10) -> nn.Sequential:
    """A ResNet for images of 32 × 32: a first convolution of 3 × 3, and no early pooling."""
    parts: list[nn.Module] = [*_convolution(3, 64, 3, 1), nn.ReLU()]
    inputs = 64
    for stage, (width, blocks) in enumerate(zip(_WIDTHS, _BLOCKS[network], strict=True)):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            parts.append(_Block(inputs, width, width * _expansion(network), stride))
            inputs = width * _expansion(network)
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _expansion(network: str) -> int:
    return 1 if network == "ResNet18" else 4
