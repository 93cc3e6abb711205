"""Warnings about uses of optimizers and schedulers that would otherwise quietly go wrong."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

_INSIDE = ("rankwise", "torch")

# Steps of an optimizer in one epoch that are more likely many epochs whose ends nobody told it.
# ImageNet in batches of 64 has 20,018.
LONGEST_EPOCH = 25_000
# Steps after which an optimizer was used to train something, not just tried.
SHORTEST_TRAINING = 200
# Calls of step() in a row that saw one step of the optimizer each: batches, not epochs.
CALLS_IN_A_ROW = 20
# Calls after each step, none of which saw a step; a gradient scaler skips a few at the start.
CALLS_WITHOUT_STEP = 100

_BATCHES = (
    f"The last {CALLS_IN_A_ROW} calls of step() each came after one step of the optimizer, and "
    "each counted as an epoch. Call step() once per epoch, or pass the number of steps of the "
    "optimizer in an epoch, as steps_per_epoch=len(loader). If an epoch is one step, pass "
    "steps_per_epoch=1."
)
_UNSEEN_STEPS = (
    "step() was called, but the optimizer was never seen to take a step, so no rate changes. Some "
    "optimizers wrap another one and step it themselves, as SAM does: pass that one, as in "
    "LayerwiseLR(sam.base_optimizer, rule), or call the wrapper's own step(closure)."
)
_OVERWRITTEN = (
    "All layers have the same rate although this scheduler gave them different ones: something "
    "overwrites them. A scheduler that computes rates from the first ones, such as LambdaLR, "
    "OneCycleLR or those of transformers, is to be passed as LayerwiseLR(…, schedule=scheduler), "
    "and no longer stepped by itself. Those that multiply the present rates, such as LinearLR or "
    "ExponentialLR, compose without that."
)
_TWO_RULES = (
    "Both RMSGD.epoch_step() and this scheduler set the layers' rates, which multiplies the two "
    "rules. Call only one of them: RMSGD without a scheduler by layer, or the scheduler over "
    "another optimizer, such as torch.optim.SGD(rankwise.layer_groups(model))."
)


def warn_caller(message: str) -> None:
    """Warn, at the line of the user's that called into rankwise."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def _is_inside(module: str) -> bool:
    return module.partition(".")[0] in _INSIDE


def is_overwritten(now: Sequence[float], own: Sequence[float]) -> bool:
    """Return whether all rates are alike now although the layers' own ones differ.

    Both are shares of the first rates. Where the own ones are all equal, or a schedule has come to
    0, it can't be told.
    """
    if not own or max(own) <= 1.001 * min(own):
        return False
    return 0.0 < max(now) <= (1 + 1e-9) * min(now)


def warn_of_one_group(names: Sequence[str]) -> None:
    """Warn that groups hold several layers each."""
    warn_caller(
        f"Parameter groups with several layers in one: {', '.join(names)}. Such a group has one "
        "rate, by the mean of its layers. For a rate of each layer build the optimizer on "
        "rankwise.layer_groups(model), as in AdamW(rankwise.layer_groups(model), lr=1e-3)."
    )


class Watch:
    """Warns once each of uses of a scheduler that can't be meant."""

    def __init__(self) -> None:
        self.has_seen_steps = False  # of the optimizer
        self._single = 0  # calls in a row that took one step for an epoch
        self._calls = 0  # before the first step
        self._told: set[str] = set()

    def see_call(self, steps: int, *, by_epoch: bool) -> None:
        """See a call of step(), after some steps since the last update."""
        if by_epoch and steps:
            self._single = self._single + 1 if steps == 1 else 0
            if self._single == CALLS_IN_A_ROW:
                self._tell(_BATCHES)
        if not self.has_seen_steps:
            self._calls += 1
            if self._calls == (1 if by_epoch else CALLS_WITHOUT_STEP):
                self._tell(_UNSEEN_STEPS)

    def see_rates(self, now: Sequence[float], own: Sequence[float], *, has_rule: bool) -> None:
        """See the present rates and the multipliers, and whether the optimizer sets rates too."""
        if is_overwritten(now, own):
            self._tell(_OVERWRITTEN)
        if has_rule:
            self._tell(_TWO_RULES)

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            warn_caller(message)


class FirstEpoch:
    """Counts the steps of RMSGD before its first `epoch_step()`, and warns once if it never comes.

    That is after more steps than an epoch has, or when the optimizer is no longer used.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._steps = 0

    def see_step(self) -> None:
        """Count a step."""
        self._steps += 1
        if self._steps == LONGEST_EPOCH and not self.is_over:
            self._warn("If your epochs are longer, ignore this.")

    def see_end_of_training(self) -> None:
        """Warn of a training that ended without the end of an epoch."""
        if self._steps >= SHORTEST_TRAINING and not self.is_over:
            self._warn("If training stopped in its first epoch, ignore this.")

    def _warn(self, exception: str) -> None:
        self.is_over = True
        warn_caller(
            f"RMSGD took {self._steps} steps without epoch_step(), so its rates are still the "
            "first ones. Call optimizer.epoch_step() at the end of each epoch; in a trainer, add "
            f"the callback EpochStep() of rankwise.integrations. ({exception})"
        )


def warn_of_default_beta(beta: float) -> None:
    """Warn that β was neither given nor chosen by the number of epochs."""
    warn_caller(
        f"RMSGD was given neither epochs nor beta, so β = {beta:g}, which is for about 250 epochs; "
        "in a short training rates then hardly fall. Pass the number of epochs that you train, as "
        f"epochs=30, or beta={beta:g} to keep it."
    )
