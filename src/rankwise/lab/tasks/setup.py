"""Between a plain network and one that trains on its devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankwise.lab.config import Config
from rankwise.lab.seeds import seed_for
from rankwise.lab.tasks.task import Place
from rankwise.lab.update import update

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch.optim import Optimizer

__all__ = ["DTYPES", "in_full", "learn", "prepared", "wrapped"]

# What a network is given; with bf16, autocast takes care of the rest.
DTYPES = {"32": torch.float32, "bf16": torch.float32, "64": torch.float64}


def prepared(network: nn.Module, config: Config, fabric: Fabric) -> nn.Module:
    """The network in the layout that convolutions are fastest in, one batch for all processes."""
    network = network.to(DTYPES[config.precision])
    has_images = any(isinstance(module, nn.Conv2d) for module in network.modules())
    # SGDP and AdamP view weights in no other layout than torch's first.
    plain = config.optimizer in ("sgdp", "adamp")
    if has_images and not plain:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if fabric.world_size > 1 and fabric.device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    return network


def wrapped(network: nn.Module, config: Config, fabric: Fabric) -> Any:  # noqa: ANN401
    """What to call in training; `network` itself holds the same parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Fabric's advice on loaders not used here
        compiled: Any = torch.compile(network) if config.compile else network
        return fabric.setup_module(compiled)


def learn(
    config: Config,
    fabric: Fabric,
    optimizer: Optimizer,
    network: nn.Module,
    loss_of: Callable[[], Tensor],
    *,
    place: Place,
    purpose: str = "step",
    after_backward: Callable[[], None] | None = None,
) -> Tensor:
    """One update as the options say, with random numbers of its place's and process's own."""
    return update(
        fabric,
        optimizer,
        network,
        loss_of,
        seed=seed_for(config.seed, purpose, *place, fabric.global_rank),
        clip=config.clip or 0.0,
        after_backward=after_backward,
    )


def in_full(logits: Tensor) -> Tensor:
    """Logits in a precision that a loss can be trusted in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
