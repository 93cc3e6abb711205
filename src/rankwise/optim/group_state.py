"""A layer's state as its parameter group holds it: plain entries that any checkpoint keeps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rankwise.optim.param_groups import Group
from rankwise.optim.rates import State

__all__ = [
    "add_state",
    "is_moving",
    "keep",
    "outside_factor",
    "rate_of",
    "set_rate",
    "state_of",
    "warn_if_overwritten",
]

# A layer's rate falls to this share of its first one and no further.
_FLOOR = 0.01
# Where the fields of State that change are kept.
_ENTRIES = ("rate", "stable_rank", "epoch", "asleep")


def add_state(group: Group) -> None:
    """Gives a group the entries that a layer's state is kept in.

    What changes from epoch to epoch is kept in tensors: torch.compile compiles anew for every new
    number in a group, and gives up after a few, but not for what a tensor holds.
    """
    if not isinstance(group["lr"], Tensor):
        group["lr"] = float(group["lr"])
    rate = rate_of(group)
    if group["floor"] is None:
        group["floor"] = 0.0 if group["variant"] == "released" else _FLOOR * rate
    group.setdefault("base_rate", rate)
    for name, value in zip(_ENTRIES, _numbers(State(rate, rate)), strict=True):
        group.setdefault(name, torch.tensor(value, dtype=torch.float64, device="cpu"))
    group.setdefault("started", False)
    group.setdefault("stepped", False)


def state_of(group: Group) -> State:
    """A layer's state, out of its group."""
    rate, stable_rank, epoch, asleep = (float(group[name]) for name in _ENTRIES)
    known = None if math.isnan(stable_rank) else stable_rank
    return State(group["base_rate"], rate, known, int(epoch), bool(asleep))


def keep(group: Group, state: State) -> None:
    """Puts a layer's state into its group."""
    for name, value in zip(_ENTRIES, _numbers(state), strict=True):
        group[name].fill_(value)


def _numbers(state: State) -> tuple[float, ...]:
    known = math.nan if state.stable_rank is None else state.stable_rank
    return state.rate, known, float(state.epoch), float(state.asleep)


def is_moving(group: Group, kept: Mapping[str, Any]) -> bool:
    """Whether a group takes a step, given what is kept of its layer: "started" and "rate".

    A rate of 0 that is not the layer's own is how a distributed checkpoint asks for empty buffers,
    and no step; at a rate of its own that fell to 0 a layer still coasts.
    """
    if all(param.grad is None for param in group["params"]):
        return False
    return bool(group["lr"] != 0 or (kept["started"] and kept["rate"] == 0))


def rate_of(group: Group) -> float:
    """The rate that a group has now; also where it is a tensor that autograd follows."""
    lr = group["lr"]
    return float(lr.item() if isinstance(lr, Tensor) else lr)


def outside_factor(group: Group) -> float:
    """What others, as a warm-up, have made of the layer's rate since it was set."""
    lr, rate = group["lr"], float(group["rate"])
    if isinstance(lr, Tensor):
        rate = float(torch.tensor(rate, dtype=lr.dtype, device="cpu"))  # as the tensor can hold it
    now = rate_of(group)
    return now / rate if rate and now != rate else 1.0


def set_rate(group: Group, rate: float) -> None:
    """Sets a rate; in place where it is a tensor, which a compiled step holds on to."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def warn_if_overwritten(groups: Sequence[Group]) -> None:
    """Warns where all layers were put at one rate, whatever theirs was."""
    live = [group for group in groups if group["base_rate"] and group["epoch"] > 0]
    now = [rate_of(group) / group["base_rate"] for group in live]
    own = [float(group["rate"]) / group["base_rate"] for group in live]
    if own and max(own) > 1.001 * min(own) and max(now) <= (1 + 1e-9) * min(now):
        warnings.warn(
            "All layers have the same rate though theirs differ: something undoes what "
            "epoch_step() sets. Of schedulers use one that multiplies the present rates, as "
            "LinearLR, ExponentialLR or MultiplicativeLR, not one that computes them from the "
            "first ones; give a ZeroRedundancyOptimizer, which keeps copies of rates, a tensor.",
            UserWarning,
            stacklevel=3,
        )
