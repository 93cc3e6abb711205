"""The state of a layer in its parameter group: plain entries that any checkpoint keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from rankwise.optim.misuse import is_overwritten, warn_caller
from rankwise.optim.param_groups import Group
from rankwise.optim.readings import Tracked
from rankwise.optim.rules.stable_rank import FLOOR, LayerRate

_OVERWRITTEN = (
    "All layers have the same rate although epoch_step() gave them different ones: something "
    "overwrites them. Use a scheduler that multiplies the present rates, such as "
    "LinearLR, ExponentialLR or MultiplicativeLR, not one that computes them from the "
    "initial ones; give a ZeroRedundancyOptimizer, which keeps copies of rates, a tensor."
)


class State(NamedTuple):
    """A parameter group between epochs."""

    initial: float  # η(0)
    rate: float  # η(t), without what others, such as a warm-up, multiply it by
    stable_rank: float | None = None  # s(t) of its layer; None until it is measured
    epoch: int = 0  # t
    started: bool = False  # whether s(0) was measured, before its first step
    stepped: bool = False  # since the last epoch ended

    @property
    def tracked(self) -> Tracked:
        """What measuring needs to know."""
        return Tracked(self.stable_rank, self.started, self.stepped)

    @property
    def layer_rate(self) -> LayerRate:
        """What the rule needs to know."""
        return LayerRate(self.initial, self.rate, self.epoch)


def add_state(group: Group) -> None:
    """Add the entries of a layer's state to a group.

    What changes from epoch to epoch is kept in tensors: torch.compile compiles anew for every new
    number in a group, and gives up after a few, but not for a tensor's value.
    """
    if not isinstance(group["lr"], Tensor):
        group["lr"] = float(group["lr"])
    rate = get_rate(group)
    if group["floor"] is None:
        group["floor"] = FLOOR * rate
    group.setdefault("base_rate", rate)
    for name, value in (("rate", rate), ("stable_rank", math.nan), ("epoch", 0.0)):
        group.setdefault(name, torch.tensor(value, dtype=torch.float64, device="cpu"))
    group.setdefault("started", False)
    group.setdefault("stepped", False)


def read_state(group: Group) -> State:
    """Return the state in a group."""
    rate, stable_rank, epoch = (float(group[name]) for name in ("rate", "stable_rank", "epoch"))
    known = None if math.isnan(stable_rank) else stable_rank
    flags = bool(group["started"]), bool(group["stepped"])
    return State(group["base_rate"], rate, known, int(epoch), *flags)


def write_state(group: Group, state: State) -> None:
    """Write a state into a group."""
    group["rate"].fill_(state.rate)
    group["stable_rank"].fill_(math.nan if state.stable_rank is None else state.stable_rank)
    group["epoch"].fill_(state.epoch)
    group["started"], group["stepped"] = state.started, state.stepped


def has_gradient(group: Group) -> bool:
    """Return whether any parameter of a group has a gradient."""
    return any(param.grad is not None for param in group["params"])


def is_moving(group: Group, state: State) -> bool:
    """Return whether a group takes a step.

    A rate of 0 that is not the layer's own is how a distributed checkpoint asks for empty buffers,
    and no step; at a rate of its own that fell to 0 a layer still moves by its momentum.
    """
    if not has_gradient(group):
        return False
    return bool(group["lr"] != 0 or (state.started and state.rate == 0))


def get_rate(group: Group) -> float:
    """Return the present rate of a group as a number, also where autograd tracks it."""
    lr = group["lr"]
    return float(lr.item() if isinstance(lr, Tensor) else lr)


def external_factor(group: Group) -> float:
    """Return what others, such as a warm-up, have multiplied the layer's rate by."""
    lr, rate = group["lr"], float(group["rate"])
    if isinstance(lr, Tensor):
        rate = float(torch.tensor(rate, dtype=lr.dtype, device="cpu"))  # rounded like the tensor
    now = get_rate(group)
    return now / rate if rate and now != rate else 1.0


def set_rate(group: Group, rate: float) -> None:
    """Set the rate of a group; a tensor in place, since a compiled step refers to it."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def separate_rates(optimizer: Optimizer) -> None:
    """Give every group, and what later ones begin with, a tensor of its own as its rate.

    Torch puts the one that an optimizer was given into all of its groups.
    """
    used: set[int] = set()
    for holder in (*optimizer.param_groups, optimizer.defaults):
        lr = holder.get("lr")
        if isinstance(lr, Tensor) and id(lr) in used:
            holder["lr"] = lr.clone()
        used.add(id(lr))


def warn_if_overwritten(groups: Sequence[Group]) -> None:
    """Warn if something gave all layers one rate although their own rates differ."""
    active = [group for group in groups if group["base_rate"] and group["epoch"] > 0]
    now = [get_rate(group) / group["base_rate"] for group in active]
    own = [float(group["rate"]) / group["base_rate"] for group in active]
    if is_overwritten(now, own):
        warn_caller(_OVERWRITTEN)
