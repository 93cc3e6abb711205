"""Networks by name: those of the lab, and all image classifiers of timm and torchvision."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from rankwise._text import suggest_names
from rankwise.errors import ConfigError, MissingExtraError, RunError
from rankwise.lab.networks.blocks import NetworkSpec
from rankwise.lab.networks.cnn import (
    BasicBlock,
    Bottleneck,
    build_densenet121,
    build_resnet,
    build_resnext,
    build_senet,
    build_small_resnet,
    build_vgg16,
    make_imagenet_stem,
)
from rankwise.lab.networks.mobile import build_efficientnetb0, build_mobilenetv2, build_shufflenetv2
from rankwise.lab.networks.nats import build_nats
from rankwise.lab.networks.transformer import build_vit
from rankwise.lab.size_space import is_in_size_space

__all__ = [
    "EXTERNAL_PACKAGES",
    "IMAGE_NETWORKS",
    "IMAGE_PATTERNS",
    "NetworkSpec",
    "build_network",
    "select_variant",
]

_resnet18 = partial(build_resnet, block=BasicBlock, blocks=(2, 2, 2, 2))
_resnet34 = partial(build_resnet, block=BasicBlock, blocks=(3, 4, 6, 3))
_resnet50 = partial(build_resnet, block=Bottleneck, blocks=(3, 4, 6, 3))
_resnet101 = partial(build_resnet, block=Bottleneck, blocks=(3, 4, 23, 3))

_MLP_LAYERS, _MLP_WIDTH = 3, 256


def _build_mlp(spec: NetworkSpec) -> nn.Module:
    """Build a perceptron of three hidden layers, 256 wide at width 1, with ReLU and no norms."""
    sizes = [spec.channels * spec.size**2, *[spec.scale(_MLP_WIDTH)] * _MLP_LAYERS]
    parts: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        parts[f"hidden{number}"] = nn.Linear(inputs, outputs)
        parts[f"activation{number}"] = nn.ReLU()
    parts["classifier"] = nn.Linear(sizes[-1], spec.classes)
    return nn.Sequential(parts)


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
    "mlp": _build_mlp,
    "resnet18-imagenet": partial(_resnet18, stem=make_imagenet_stem),
    "resnet34-imagenet": partial(_resnet34, stem=make_imagenet_stem),
    "resnet50-imagenet": partial(_resnet50, stem=make_imagenet_stem),
    "resnet101-imagenet": partial(_resnet101, stem=make_imagenet_stem),
    "resnext50-imagenet": partial(
        build_resnext, blocks=(3, 4, 6, 3), groups=32, stem=make_imagenet_stem
    ),
    "mobilenetv2-imagenet": partial(build_mobilenetv2, cifar=False),
}

IMAGE_PATTERNS = (
    "nats:C1:C2:C3:C4:C5",
    "timm:NAME",
    "torchvision:NAME",
)  # and these

_LARGE_SIZE = 96  # from this image size on, the ImageNet variants are used
# These have auxiliary outputs in training, which are switched off.
_WITH_AUXILIARY_OUTPUTS = ("googlenet", "inception_v3")


def build_network(name: str, spec: NetworkSpec) -> nn.Module:
    """Build an image network by name.

    It is one of IMAGE_NETWORKS, one of NATS-Bench's size search space, such as
    "nats:8:16:32:48:64", or `timm:NAME` or `torchvision:NAME` if that package is installed; these
    expect the image size that they were designed for.

    Example:
        >>> network = build_network("resnet20", NetworkSpec(classes=10, channels=1, size=28))
        >>> sum(parameter.numel() for parameter in network.parameters())
        269434
    """
    package, colon, external_name = name.partition(":")
    if colon and package in EXTERNAL_PACKAGES:
        return EXTERNAL_PACKAGES[package](external_name, spec)
    if is_in_size_space(name):
        return build_nats(name, spec)
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


def _build_timm(name: str, spec: NetworkSpec) -> nn.Module:
    timm = _import("timm")
    if not timm.is_model(name):
        raise _unknown_name_error("timm", name, timm.list_models(), "timm.list_models()")
    _check_width("timm", name, spec)
    return timm.create_model(
        name, pretrained=False, num_classes=spec.classes, in_chans=spec.channels
    )


def _build_torchvision(name: str, spec: NetworkSpec) -> nn.Module:
    models = _import("torchvision").models
    known = models.list_models(module=models)  # image classifiers only
    if name not in known:
        raise _unknown_name_error("torchvision", name, known, "torchvision.models.list_models()")
    _check_width("torchvision", name, spec)
    if spec.channels != 3:
        raise ConfigError(
            f"torchvision:{name} takes images of 3 channels, got {spec.channels}: "
            "use one of the lab's own networks or one of timm."
        )
    without_auxiliary = {"aux_logits": False, "init_weights": True}
    options = without_auxiliary if name in _WITH_AUXILIARY_OUTPUTS else {}
    return models.get_model(name, weights=None, num_classes=spec.classes, **options)


def _import(package: str) -> Any:  # noqa: ANN401 - a module without annotations
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise _import_error(package, error) from error
        purpose = f"A network named {package}:…"
        raise MissingExtraError(package, package, purpose) from error
    # torchvision built for another version of torch raises one of these.
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        raise _import_error(package, error) from error


def _import_error(package: str, error: Exception) -> RunError:
    return RunError(
        f"The package '{package}' is installed but can't be imported "
        f"({type(error).__name__}: {error}). Install the version that matches "
        f"torch {torch.__version__}."
    )


def _unknown_name_error(package: str, name: str, known: Iterable[str], listing: str) -> ConfigError:
    return ConfigError(
        f"{package} has no network {name!r} for images.{suggest_names(name, known)} "
        f"{listing} lists all networks."
    )


def _check_width(package: str, name: str, spec: NetworkSpec) -> None:
    if spec.width != 1:
        raise ConfigError(
            f"{package}:{name} has a fixed width, got a width of {spec.width}: leave it at 1, or "
            "use one of the lab's own networks."
        )


EXTERNAL_PACKAGES: dict[str, Callable[[str, NetworkSpec], nn.Module]] = {
    "timm": _build_timm,
    "torchvision": _build_torchvision,
}
