"""A layer's state as its parameter group holds it: plain entries that any checkpoint keeps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from rankwise.layers import Group
from rankwise.rates import State

__all__ = ["add_state", "keep", "outside_factor", "set_rate", "state_of", "warn_if_overwritten"]

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
    rate = float(group["lr"])
    if group["floor"] is None:
        group["floor"] = 0.0 if group["variant"] == "released" else _FLOOR * rate
    group.setdefault("base_rate", rate)
    for name, value in zip(_ENTRIES, _numbers(State(rate, rate)), strict=True):
        group.setdefault(name, torch.tensor(value, dtype=torch.float64))
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


def outside_factor(group: Group) -> float:
    """What others, as a warm-up, have made of the layer's rate since it was set."""
    lr, rate = group["lr"], float(group["rate"])
    if isinstance(lr, Tensor):
        rate = float(torch.tensor(rate, dtype=lr.dtype))  # as the tensor can hold it
    return float(lr) / rate if rate and float(lr) != rate else 1.0


def set_rate(group: Group, rate: float) -> None:
    """Sets a rate; in place where it is a tensor, which a compiled step holds on to."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def warn_if_overwritten(groups: Sequence[Group]) -> None:
    """Warns of a scheduler that puts all layers at one rate, whatever theirs was."""
    live = [group for group in groups if group["base_rate"] and group["epoch"] > 0]
    now = [float(group["lr"]) / group["base_rate"] for group in live]
    own = [float(group["rate"]) / group["base_rate"] for group in live]
    if own and max(own) > 1.001 * min(own) and max(now) <= (1 + 1e-9) * min(now):
        warnings.warn(
            "All layers have the same rate though theirs differ: a scheduler computes rates from "
            "the first ones and so undoes RMSGD's. Use one that multiplies the present rates, as "
            "LinearLR, ExponentialLR or MultiplicativeLR.",
            UserWarning,
            stacklevel=3,
        )
