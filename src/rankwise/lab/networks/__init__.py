"""Networks by name: those of the lab, and all image classifiers of timm and torchvision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from rankwise._text import suggest_names
from rankwise.errors import ConfigError
from rankwise.lab.networks.blocks import NetworkSpec
from rankwise.lab.networks.external import EXTERNAL_PACKAGES
from rankwise.lab.networks.mobile import (
    build_efficientnetb0,
    build_mobilenetv2,
    build_shufflenetv2,
)
from rankwise.lab.networks.resnet import (
    BasicBlock,
    Bottleneck,
    build_resnet,
    build_resnext,
    build_senet,
    build_small_resnet,
    make_imagenet_stem,
)
from rankwise.lab.networks.transformer import build_vit
from rankwise.lab.networks.vgg_densenet import build_densenet121, build_vgg16

__all__ = [
    "EXTERNAL_PACKAGES",
    "IMAGE_NETWORKS",
    "NetworkSpec",
    "build_network",
    "select_variant",
]

_resnet18 = partial(build_resnet, block=BasicBlock, blocks=(2, 2, 2, 2))
_resnet34 = partial(build_resnet, block=BasicBlock, blocks=(3, 4, 6, 3))
_resnet50 = partial(build_resnet, block=Bottleneck, blocks=(3, 4, 6, 3))
_resnet101 = partial(build_resnet, block=Bottleneck, blocks=(3, 4, 23, 3))

IMAGE_NETWORKS: dict[str, Callable[[NetworkSpec], nn.Module]] = {
    "resnet8": partial(build_small_resnet, n=1),
    "resnet20": partial(build_small_resnet, n=3),
    "resnet32": partial(build_small_resnet, n=5),
    "resnet44": partial(build_small_resnet, n=7),
    "resnet56": partial(build_small_resnet, n=9),
    "resnet18": _resnet18,
    "resnet34": _resnet34,
    "resnet50": _resnet50,
    "resnet101": _resnet101,
    "resnext29": partial(build_resnext, blocks=(3, 3, 3), groups=2),
    "mobilenetv2": partial(build_mobilenetv2, cifar=True),
    "senet18": build_senet,
    "efficientnetb0": build_efficientnetb0,
    "shufflenetv2": partial(build_shufflenetv2, channels=116),
    "shufflenetv2-1.5": partial(build_shufflenetv2, channels=176),
    "vgg16": build_vgg16,
    "densenet121": build_densenet121,
    "vit": build_vit,
    "resnet18-imagenet": partial(_resnet18, stem=make_imagenet_stem),
    "resnet34-imagenet": partial(_resnet34, stem=make_imagenet_stem),
    "resnet50-imagenet": partial(_resnet50, stem=make_imagenet_stem),
    "resnet101-imagenet": partial(_resnet101, stem=make_imagenet_stem),
    "resnext50-imagenet": partial(
        build_resnext, blocks=(3, 4, 6, 3), groups=32, stem=make_imagenet_stem
    ),
    "mobilenetv2-imagenet": partial(build_mobilenetv2, cifar=False),
}

_LARGE_SIZE = 96  # from this image size on, the ImageNet variants are used


def build_network(name: str, spec: NetworkSpec) -> nn.Module:
    """Build an image network by name.

    Args:
        name: One of IMAGE_NETWORKS, or `timm:NAME` or `torchvision:NAME` if that package is
            installed.
        spec: The images and classes it is built for. Networks of other packages expect the image
            size that they were designed for.

    Raises:
        ConfigError: If there is no such network, or it can't be built for this spec.
        rankwise.MissingExtraError: If timm or torchvision is needed and not installed.
        RunError: If that package is installed but can't be imported.

    Example:
        >>> network = build_network("resnet20", NetworkSpec(classes=10, channels=1, size=28))
        >>> sum(parameter.numel() for parameter in network.parameters())
        269434
    """
    package, colon, external_name = name.partition(":")
    if colon and package in EXTERNAL_PACKAGES:
        return EXTERNAL_PACKAGES[package](external_name, spec)
    if name not in IMAGE_NETWORKS:
        raise ConfigError(
            f"There is no image network {name!r}.{suggest_names(name, IMAGE_NETWORKS)} "
            "`rankwise train --list` lists all networks."
        )
    return IMAGE_NETWORKS[name](spec)


def select_variant(name: str, size: int) -> str:
    """Return the name of the variant of a network that suits images of a size.

    Example:
        >>> select_variant("resnet18", 32), select_variant("resnet18", 224)
        ('resnet18', 'resnet18-imagenet')
    """
    large = f"{name}-imagenet"
    return large if size >= _LARGE_SIZE and large in IMAGE_NETWORKS else name
