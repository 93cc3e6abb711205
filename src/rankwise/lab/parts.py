"""A network and its optimizer → what is saved of them, and back; whole, however it is sharded."""

from __future__ import annotations

from typing import Any

from torch import nn

from rankwise.errors import RunError
from rankwise.lab.optimizers import Method

__all__ = ["load_part", "save_part", "whole_weights"]


def save_part(network: nn.Module, method: Method, *, sharded: bool) -> dict[str, Any]:
    """What a part of a run needs to go on; where it is sharded, all processes must ask together."""
    if not sharded:
        return {"network": network.state_dict(), "method": method.state_dict()}
    from torch.distributed.checkpoint import state_dict as distributed  # noqa: PLC0415

    options = distributed.StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, state = distributed.get_state_dict(network, method.optimizer, options=options)
    return {"network": weights, "method": state}


def whole_weights(network: nn.Module) -> dict[str, Any]:
    """The weights of a sharded network, on every process; all must ask for them together."""
    from torch.distributed.checkpoint import state_dict as distributed  # noqa: PLC0415

    options = distributed.StateDictOptions(full_state_dict=True)
    return distributed.get_model_state_dict(network, options=options)


def load_part(network: nn.Module, method: Method, saved: dict[str, Any], *, sharded: bool) -> None:
    """Go on from what `save_part` gave.

    Raises:
        RunError: If one of the two is sharded and the other is not.
    """
    if sharded == ("optimizer" in saved["method"]):
        here, there = ("with", "without") if sharded else ("without", "with")
        raise RunError(
            f"The run was begun {there} --strategy fsdp and can't go on {here} it. Give the same "
            "command as before, on several processes again, or start anew with another --out."
        )
    if not sharded:
        network.load_state_dict(saved["network"])
        method.load_state_dict(saved["method"])
        return
    from torch.distributed.checkpoint import state_dict as distributed  # noqa: PLC0415

    options = distributed.StateDictOptions(full_state_dict=True)
    distributed.set_state_dict(
        network,
        method.optimizer,
        model_state_dict=saved["network"],
        optim_state_dict=saved["method"],
        options=options,
    )
