"""Accelerate: `epoch_step` for the optimizer that `Accelerator.prepare` returns."""

from __future__ import annotations

from rankwise.errors import MissingExtraError, TargetError
from rankwise.integrations.monitoring import find_source
from rankwise.optim.rmsgd import RMSGD

try:
    from accelerate.optimizer import AcceleratedOptimizer
except ImportError as error:
    raise MissingExtraError("accelerate", "accelerate", "Training with Accelerate") from error

__all__ = ["epoch_step"]


def epoch_step(optimizer: AcceleratedOptimizer | RMSGD) -> None:
    """Call `epoch_step()` of the RMSGD inside an optimizer that Accelerate has prepared.

    Call it on all processes, at the end of each epoch, before `save_state`.

    Args:
        optimizer: What `accelerator.prepare` returned for an RMSGD.

    Raises:
        TargetError: If there is no RMSGD inside.

    Example:
        >>> import torch, rankwise
        >>> from accelerate import Accelerator
        >>> from rankwise.integrations.accelerate import epoch_step
        >>> accelerator = Accelerator(cpu=True)
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
        >>> optimizer = rankwise.RMSGD(net.named_parameters(), beta=0.98)
        >>> net, optimizer = accelerator.prepare(net, optimizer)
        >>> accelerator.backward(net(torch.randn(8, 20)).square().mean())
        >>> optimizer.step()
        >>> epoch_step(optimizer)
        >>> optimizer.optimizer.rates()
        {'0': 0.0294, '1': 0.0294}
    """
    inner = find_source(optimizer)
    if not isinstance(inner, RMSGD):
        raise TargetError(
            f"Expected an RMSGD, or a wrapper around one, got {type(optimizer).__name__}."
        )
    inner.epoch_step()
