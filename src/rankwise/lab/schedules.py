"""How long a run lasts, in epochs or in time, and the schedule that multiplies all rates meanwhile.

A time may be given as that of so many epochs of SGD, as the paper does: it is then measured with
the same network, data, batch size and machine, by the same steps, before the run starts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from rankwise._text import explain_unknown
from rankwise.errors import ConfigError

SCHEDULES = ("none", "step", "cosine", "one-cycle")
# A factor is divided by later on, so it is never 0.
_LEAST = 1e-8
# One-cycle (Smith, 2018): up from a 25th over 30 % of the run, then down to a 10,000th of that.
_WARM_UP = 0.3
_FIRST = 1 / 25
_LAST = _FIRST / 1e4


def compute_factor(
    schedule: str, *, epoch: int, progress: float, step_size: int = 25, gamma: float = 0.5
) -> float:
    """Return the factor by which a schedule multiplies the first rate.

    `progress` is the share of the budget, epochs or seconds, that is spent. Schedule "step"
    multiplies the rate by `gamma` after every `step_size` epochs.

    Example:
        >>> compute_factor("step", epoch=50, progress=0.2)
        0.25
        >>> compute_factor("cosine", epoch=0, progress=0.5)
        0.5
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
    raise ConfigError(explain_unknown("schedule", schedule, SCHEDULES))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


def apply_factor(optimizer: Optimizer, factor: float, previous: float) -> None:
    """Take all rates from the factor that they have now, 1 at the start, to another.

    It multiplies the rates as they are, so it composes with whatever else sets them: the rates of
    RMSGD and StableRankLR are their rule's rate times the factor.
    """
    ratio = factor / previous
    if ratio == 1:
        return
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].mul_(ratio)
        else:
            group["lr"] *= ratio


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# "10 months" and "10 ms" begin like minutes, but are none.
_TIME = re.compile(
    r"(\d+(?:\.\d+)?)\s*"
    r"(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"
)
_EPOCHS_OF_SGD = re.compile(r"(?:wall[ -]?clock of )?(\d+)\s+sgd epochs?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """A time: so many seconds, or that of so many epochs of SGD."""

    seconds: float | None = None
    sgd_epochs: int | None = None


def parse_budget(text: str) -> TimeBudget:
    """Return the time that a budget states.

    Example:
        >>> parse_budget("1h 30m")
        TimeBudget(seconds=5400.0, sgd_epochs=None)
        >>> parse_budget("wall clock of 250 SGD epochs")
        TimeBudget(seconds=None, sgd_epochs=250)
    """
    epochs = _EPOCHS_OF_SGD.fullmatch(text.strip())
    if epochs and int(epochs[1]):
        return TimeBudget(sgd_epochs=int(epochs[1]))
    parts = _TIME.findall(text)
    if parts and not _TIME.sub("", text).strip():
        seconds = sum(float(number) * _UNITS[unit[0]] for number, unit in parts)
        if seconds > 0:
            return TimeBudget(seconds=seconds)
    raise ConfigError(
        f"Expected a budget such as 90s, 10m, 1h 30m or 'wall clock of 250 SGD epochs', "
        f"got {text!r}."
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend: epochs, or seconds of training.

    Seconds count steps and what the optimizer itself measures at an epoch's end; tests, records,
    and probes that the optimizer does not need are free.
    """

    epochs: int | None
    seconds: float | None

    def compute_progress(self, epoch: int, part: float, spent: float) -> float:
        """Return the share spent after some epochs, a part of the next, and some seconds."""
        if self.epochs is not None:
            return (epoch + part) / self.epochs
        return spent / (self.seconds or 1.0)
