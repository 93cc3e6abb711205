"""The convolutions of ResNets, as shapes, and weights of those shapes that hold structure."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCKS = {"ResNet18": (2, 2, 2, 2), "ResNet50": (3, 4, 6, 3), "ResNet101": (3, 4, 23, 3)}
_WIDTHS = (64, 128, 256, 512)


def convolutions(network: str) -> list[tuple[int, int, int, int]]:
    """`[out, in, height, width]` of every convolution."""
    expansion = 1 if network == "ResNet18" else 4
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
