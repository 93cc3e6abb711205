"""Schedules: what all rates are multiplied by as a run goes on."""

from __future__ import annotations

import math

from torch import Tensor
from torch.optim import Optimizer

from rankwise.errors import ConfigError

__all__ = ["SCHEDULES", "apply", "factor"]

SCHEDULES = ("none", "step", "cosine", "one-cycle")
# A factor is divided by later on, so it is never 0.
_LEAST = 1e-8
# One-cycle (Smith, 2018): up from a 25th over 30 % of the run, then down to a 10,000th of that.
_WARM_UP = 0.3
_FIRST = 1 / 25
_LAST = _FIRST / 1e4


def factor(
    schedule: str, *, epoch: int, progress: float, step_size: int = 25, gamma: float = 0.5
) -> float:
    """What a schedule makes of a rate of 1.

    Args:
        schedule: One of SCHEDULES.
        epoch: How many epochs are over.
        progress: The share of the budget, epochs or seconds, that is spent: 0 … 1.
        step_size: For "step": after how many epochs the rate falls.
        gamma: For "step": what it is then multiplied by.

    Raises:
        ConfigError: If there is no such schedule, or if an option is out of its range.

    Example:
        >>> factor("step", epoch=50, progress=0.2), factor("cosine", epoch=0, progress=0.5)
        (0.25, 0.5)
    """
    if not (step_size >= 1 and 0 < gamma < math.inf):
        raise ConfigError(
            f"Expected a step_size of 1 or more and a gamma above 0, got {step_size} and {gamma}."
        )
    spent = min(max(progress, 0.0), 1.0)  # seconds may run a little over their budget
    if schedule == "none":
        return 1.0
    if schedule == "step":
        return max(gamma ** (epoch // step_size), _LEAST)
    if schedule == "cosine":
        return max(_cosine(1.0, 0.0, spent), _LEAST)
    if schedule == "one-cycle":
        if spent < _WARM_UP:
            return _cosine(_FIRST, 1.0, spent / _WARM_UP)
        return _cosine(1.0, _LAST, (spent - _WARM_UP) / (1 - _WARM_UP))
    raise ConfigError(f"Unknown schedule {schedule!r}. Expected one of {', '.join(SCHEDULES)}.")


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


def apply(optimizer: Optimizer, factor: float, previous: float) -> None:
    """Takes all rates from one factor to another.

    It multiplies the rates as they are, so it composes with whatever else sets them: those of
    RMSGD and StableRankLR are their rule's rate times the factor.

    Args:
        optimizer: Whose rates are set.
        factor: The new factor.
        previous: The one that the rates have now; 1 at the start.
    """
    ratio = factor / previous
    if ratio == 1:
        return
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].mul_(ratio)
        else:
            group["lr"] *= ratio
