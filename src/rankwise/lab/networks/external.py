"""Networks of timm and torchvision, if these packages are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from rankwise._text import suggest_names
from rankwise.errors import ConfigError, MissingExtraError, RunError
from rankwise.lab.networks.blocks import NetworkSpec

__all__ = ["EXTERNAL_PACKAGES"]

# These have auxiliary outputs in training, which are switched off.
_WITH_AUXILIARY_OUTPUTS = ("googlenet", "inception_v3")


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


EXTERNAL_PACKAGES: dict[str, Callable[[str, NetworkSpec], nn.Module]] = {
    "timm": _build_timm,
    "torchvision": _build_torchvision,
}


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
