"""Networks of timm and torchvision, where the user has these packages."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import rankwise
from rankwise.errors import ConfigError, RunError
from rankwise.lab.networks.shapes import Shape

__all__ = ["EXTERNAL", "similar"]

# These have more outputs in training, for losses inside the network; one loss is enough here.
_WITH_AUXILIARY_OUTPUTS = ("googlenet", "inception_v3")


def similar(name: str, known: Iterable[str]) -> str:
    """A sentence with the known names that are most like a given one; empty if none is."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _timm(name: str, shape: Shape) -> nn.Module:
    timm = _imported("timm")
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models(), "timm.list_models()")
    _check_width("timm", name, shape)
    return timm.create_model(
        name, pretrained=False, num_classes=shape.classes, in_chans=shape.channels
    )


def _torchvision(name: str, shape: Shape) -> nn.Module:
    models = _imported("torchvision").models
    known = models.list_models(module=models)  # those that classify images
    if name not in known:
        raise _unknown("torchvision", name, known, "torchvision.models.list_models()")
    _check_width("torchvision", name, shape)
    if shape.channels != 3:
        raise ConfigError(
            f"torchvision:{name} takes images of 3 channels, got {shape.channels}: "
            "use a network of the lab or of timm."
        )
    single = {"aux_logits": False, "init_weights": True}
    options = single if name in _WITH_AUXILIARY_OUTPUTS else {}
    return models.get_model(name, weights=None, num_classes=shape.classes, **options)


# What stands before the colon of a name → who builds it.
EXTERNAL: dict[str, Callable[[str, Shape], nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
}


def _imported(package: str) -> Any:  # noqa: ANN401 - a module without annotations
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise _broken(package, error) from error
        purpose = f"A network named {package}:…"
        raise rankwise.MissingExtraError(package, package, purpose) from error
    # A torchvision that was built for another torch fails in one of these ways.
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        raise _broken(package, error) from error


def _broken(package: str, error: Exception) -> RunError:
    return RunError(
        f"The package '{package}' is installed but can't be imported "
        f"({type(error).__name__}: {error}). Install the version of it that goes with "
        f"torch {torch.__version__}."
    )


def _unknown(package: str, name: str, known: Iterable[str], listing: str) -> ConfigError:
    return ConfigError(
        f"{package} has no network {name!r} for images.{similar(name, known)} "
        f"{listing} names all of them."
    )


def _check_width(package: str, name: str, shape: Shape) -> None:
    if shape.width != 1:
        raise ConfigError(
            f"{package}:{name} has a fixed width, got a width of {shape.width}: leave it at 1, or "
            "use a network of the lab."
        )
