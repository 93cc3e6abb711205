"""Networks by name: those of the lab, and any of timm's and torchvision's."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from rankwise.errors import ConfigError
from rankwise.lab.networks.densenet import densenet121
from rankwise.lab.networks.efficientnet import efficientnetb0
from rankwise.lab.networks.external import EXTERNAL, similar
from rankwise.lab.networks.mobilenet import mobilenetv2, mobilenetv2_imagenet
from rankwise.lab.networks.resnet import (
    resnet18,
    resnet18_imagenet,
    resnet34,
    resnet34_imagenet,
    resnet50,
    resnet50_imagenet,
    resnet101,
    resnet101_imagenet,
)
from rankwise.lab.networks.resnext import resnext29, resnext50_imagenet
from rankwise.lab.networks.senet import senet18
from rankwise.lab.networks.shapes import Shape
from rankwise.lab.networks.shufflenet import shufflenetv2, shufflenetv2_15
from rankwise.lab.networks.small_resnet import resnet8, resnet20, resnet32, resnet44, resnet56
from rankwise.lab.networks.vgg import vgg16
from rankwise.lab.networks.vit import vit

__all__ = ["EXTERNAL", "IMAGE_NETWORKS", "Shape", "build", "similar", "suited"]

IMAGE_NETWORKS: dict[str, Callable[[Shape], nn.Module]] = {
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet44": resnet44,
    "resnet56": resnet56,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "resnext29": resnext29,
    "mobilenetv2": mobilenetv2,
    "senet18": senet18,
    "efficientnetb0": efficientnetb0,
    "shufflenetv2": shufflenetv2,
    "shufflenetv2-1.5": shufflenetv2_15,
    "vgg16": vgg16,
    "densenet121": densenet121,
    "vit": vit,
    "resnet18-imagenet": resnet18_imagenet,
    "resnet34-imagenet": resnet34_imagenet,
    "resnet50-imagenet": resnet50_imagenet,
    "resnet101-imagenet": resnet101_imagenet,
    "resnext50-imagenet": resnext50_imagenet,
    "mobilenetv2-imagenet": mobilenetv2_imagenet,
}

# From this size on, a network that keeps the size at first costs too much.
_LARGE = 96


def build(name: str, shape: Shape) -> nn.Module:
    """Builds an image network by its name.

    Args:
        name: One of IMAGE_NETWORKS, or `timm:NAME` or `torchvision:NAME`, where these packages
            are installed.
        shape: What it is built for. Foreign networks take images of the size they are made for.

    Raises:
        ConfigError: If there is no such network, or it can't have this shape.
        rankwise.MissingExtraError: If timm or torchvision is needed and missing.
        RunError: If one of these is installed but broken.

    Example:
        >>> network = build("resnet20", Shape(classes=10, channels=1, size=28))
        >>> sum(parameter.numel() for parameter in network.parameters())
        269434
    """
    package, colon, foreign = name.partition(":")
    if colon and package in EXTERNAL:
        return EXTERNAL[package](foreign, shape)
    if name not in IMAGE_NETWORKS:
        raise ConfigError(
            f"There is no image network {name!r}.{similar(name, IMAGE_NETWORKS)} `rankwise train "
            "--list` names all of them."
        )
    return IMAGE_NETWORKS[name](shape)


def suited(name: str, size: int) -> str:
    """The name of the form of a network that suits images of a size.

    Example:
        >>> suited("resnet18", 32), suited("resnet18", 224)
        ('resnet18', 'resnet18-imagenet')
    """
    large = f"{name}-imagenet"
    return large if size >= _LARGE and large in IMAGE_NETWORKS else name
