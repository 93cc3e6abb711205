"""One update of one network, whatever the optimizer: `optimizer.step(closure)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch.optim import Optimizer

__all__ = ["update"]


def update(
    fabric: Fabric,
    optimizer: Optimizer,
    network: nn.Module,
    loss_of: Callable[[], Tensor],
    *,
    seed: int,
    clip: float = 0.0,
    after_backward: Callable[[], None] | None = None,
) -> Tensor:
    """Take one step; the loss before it.

    The optimizer may look at the loss several times (SAM twice, a line search as often as it
    needs). Every look sees the same dropout, and only the first moves the running statistics of
    batch normalisation; those without gradients return the loss alone.

    Args:
        fabric: Backpropagates in its precision.
        optimizer: Whose step it is.
        network: Whose parameters it moves.
        loss_of: Computes the loss.
        seed: Of the random numbers inside the network.
        clip: The largest norm of the gradient; 0 for no limit.
        after_backward: Called when the gradients are there.
    """
    looks = 0

    def closure() -> Tensor:
        nonlocal looks
        if fabric.device.type == "cpu":  # torch.manual_seed asks every other device too
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        with _kept_statistics(network) if looks else nullcontext():
            loss = loss_of()
        looks += 1
        if torch.is_grad_enabled():
            optimizer.zero_grad()
            fabric.backward(loss)
            if after_backward is not None:
                after_backward()
            if clip:
                nn.utils.clip_grad_norm_(network.parameters(), clip)
        return loss.detach()

    return optimizer.step(closure)  # type: ignore[arg-type, return-value]


@contextmanager
def _kept_statistics(network: nn.Module) -> Iterator[None]:
    """Batch normalisation goes on by the batch, but its running statistics stay as they are."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
