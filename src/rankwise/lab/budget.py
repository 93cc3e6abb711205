"""How long a run goes on: a number of epochs, or a time.

A time may be given as that of so many epochs of SGD, as the paper does: it is then measured with
the same network, data, batch size and machine, by the same steps, before the run begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankwise.errors import ConfigError

__all__ = ["Budget", "Seconds", "parse_budget"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# "10 months" and "10 ms" begin like minutes, but are none.
_TIME = re.compile(
    r"(\d+(?:\.\d+)?)\s*"
    r"(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"
)
_EPOCHS_OF_SGD = re.compile(r"(?:wall[ -]?clock of )?(\d+)\s+sgd epochs?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time: so many seconds, or that of so many epochs of SGD."""

    seconds: float | None = None
    sgd_epochs: int | None = None


def parse_budget(text: str) -> Seconds:
    """What a budget says.

    Args:
        text: "90s", "10m", "1h 30m", or "wall clock of 250 SGD epochs".

    Raises:
        ConfigError: If it says something else.

    Example:
        >>> parse_budget("1h 30m")
        Seconds(seconds=5400.0, sgd_epochs=None)
        >>> parse_budget("wall clock of 250 SGD epochs")
        Seconds(seconds=None, sgd_epochs=250)
    """
    epochs = _EPOCHS_OF_SGD.fullmatch(text.strip())
    if epochs and int(epochs[1]):
        return Seconds(sgd_epochs=int(epochs[1]))
    parts = _TIME.findall(text)
    if parts and not _TIME.sub("", text).strip():
        seconds = sum(float(number) * _UNITS[unit[0]] for number, unit in parts)
        if seconds > 0:
            return Seconds(seconds=seconds)
    raise ConfigError(
        f"Expected a budget such as 90s, 10m, 1h 30m or 'wall clock of 250 SGD epochs', "
        f"got {text!r}."
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend: epochs, or seconds of training.

    Seconds count steps and what the optimizer itself measures at an epoch's end; tests, records
    and the looks at optimizers that need none are free.
    """

    epochs: int | None
    seconds: float | None

    def progress(self, epoch: int, part: float, spent: float) -> float:
        """The share that is spent after some epochs, a part of the next, and some seconds."""
        if self.epochs is not None:
            return (epoch + part) / self.epochs
        return spent / (self.seconds or 1.0)
