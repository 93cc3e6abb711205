"""SLS: SGD with a line search for the step on the batch's own loss (Vaswani et al., 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rankwise.errors import ConfigError

_C = 0.1  # how much of the decrease that the gradient promises a step must keep
_SHRINK = 0.9  # β_b: what a refused step is multiplied by
_GROWTH = 2.0  # γ: how much longer the steps may get in an epoch
_TRIES = 100
_SMALLEST = 1e-6  # the step where no try was good enough


def search_step(
    change: Callable[[float], float], *, steepness: float, first: float
) -> float | None:
    """Return the first η of 0.9⁰, 0.9¹, … times `first` with f(w − ηd) − f(w) ≤ −c·η·‖d‖².

    `change(η)` is the left side, `steepness` is ‖d‖². None if no step of a hundred has it.

    Example:
        >>> search_step(lambda step: -step + step**2, steepness=1.0, first=0.95)  # f(w) = w² at ½
        0.855
    """
    step = first
    for _ in range(_TRIES):
        if change(step) <= -_C * step * steepness:  # NaN is never less
            return step
        step *= _SHRINK
    return None


class SLS(Optimizer):
    """SGD with a stochastic Armijo line search, without momentum.

    Every step starts from the one before, a little lengthened: η ← min(2^(1/n)·η, lr) with n
    batches an epoch, and is shortened until f(w − ηd) ≤ f(w) − 0.1·η·‖d‖². Here f is the batch's
    loss + ½·weight_decay·‖w‖², and d its gradient. `group["step_size"]` is the last step taken.
    `mean_over_processes` makes the loss the same on all processes, so that they agree on a step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1.0,
        batches_per_epoch: int,
        weight_decay: float = 0.0,
        mean_over_processes: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if batches_per_epoch < 1:
            raise ConfigError(
                f"Expected batches_per_epoch of 1 or more for SLS, got {batches_per_epoch}."
            )
        growth = _GROWTH ** (1 / batches_per_epoch)
        defaults = {"lr": lr, "weight_decay": weight_decay, "step_size": lr, "growth": growth}
        super().__init__(params, defaults)
        if len(self.param_groups) > 1:
            raise ConfigError(
                f"Expected one parameter group, since SLS takes one step for all, got "
                f"{len(self.param_groups)}. Pass the parameters as one list."
            )
        self._mean = mean_over_processes

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401
        """Take one step, unless loss or gradient is not finite; return the loss before it.

        The closure zeroes the gradients, computes the loss and backpropagates; where gradients are
        disabled it only computes the loss. On every call it must draw the same dropout.
        """
        if closure is None:
            raise ConfigError("Expected step(closure), since SLS evaluates the loss, got none.")
        with torch.enable_grad():
            loss = closure()
        group = self.param_groups[0]
        params = [param for param in group["params"] if param.grad is not None]
        directions = [param.grad.add(param, alpha=group["weight_decay"]) for param in params]
        start, steepness = self._value(loss), _dot(directions, directions)
        if params and math.isfinite(start) and math.isfinite(steepness):
            self._search(closure, params, directions, start, steepness)
        return loss

    def _search(
        self,
        closure: Callable[[], Any],
        params: Sequence[Tensor],
        directions: Sequence[Tensor],
        start: float,
        steepness: float,
    ) -> None:
        """Search for a step, and leave the weights at its end."""
        group = self.param_groups[0]
        decay, along = group["weight_decay"], _dot(params, directions)
        before = [param.clone() for param in params]

        def change(step: float) -> float:
            _move(params, before, directions, step)
            # ½(‖w − ηd‖² − ‖w‖²) in closed form: the norms' difference would lose its digits.
            penalty = decay * (step**2 * steepness / 2 - step * along)
            return self._value(closure()) - start + penalty

        first = min(group["step_size"] * group["growth"], float(group["lr"]))
        step = search_step(change, steepness=steepness, first=first)
        if step is None and not math.isfinite(change(_SMALLEST)):
            _move(params, before, directions, 0.0)
        group["step_size"] = _SMALLEST if step is None else step

    def _value(self, loss: Tensor) -> float:
        detached = loss.detach()
        return float(detached if self._mean is None else self._mean(detached))


def _move(
    params: Sequence[Tensor], before: Sequence[Tensor], directions: Sequence[Tensor], step: float
) -> None:
    for param, origin, direction in zip(params, before, directions, strict=True):
        param.copy_(origin)
        if step:  # 0 · ∞ would not be where it was
            param.sub_(direction, alpha=step)


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    products = [(a * b).sum() for a, b in zip(left, right, strict=True)]
    return float(torch.stack(products).sum()) if products else 0.0
