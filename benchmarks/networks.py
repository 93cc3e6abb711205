"""ResNets of the lab: as modules, as parameters, as random weights of their shapes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankwise.lab.networks import NetworkSpec, build_network

NETWORKS = ("ResNet18", "ResNet50", "ResNet101")


def build_resnet(network: str) -> nn.Module:
    """Build a ResNet for images of 32 × 32 and 10 classes."""
    return build_network(network.lower(), NetworkSpec(classes=10))


def make_parameters(network: str) -> list[nn.Parameter]:
    """Return all parameters of a ResNet for images of 224 × 224 and 1000 classes."""
    return list(_build_large(network).parameters())


def make_weights(network: str) -> dict[str, Tensor]:
    """Return random weights of unit scale with a low-rank part.

    They have the shapes of the convolutions of a ResNet for images of 224 × 224.
    """
    with torch.device("meta"):
        convolutions = [
            m.weight for m in _build_large(network).modules() if isinstance(m, nn.Conv2d)
        ]
    torch.manual_seed(0)
    return {f"conv{i}.weight": _make_weight(w.shape) for i, w in enumerate(convolutions)}


def _build_large(network: str) -> nn.Module:
    return build_network(f"{network.lower()}-imagenet", NetworkSpec(classes=1000, size=224))


def _make_weight(shape: torch.Size) -> Tensor:
    rank = max(1, min(shape[:2]) // 8)
    out, into, space = (torch.randn(side, rank) for side in (*shape[:2], shape[2] * shape[3]))
    structure = torch.einsum("or,ir,kr->oik", out, into, space).reshape(shape)
    return torch.randn(shape) + structure
