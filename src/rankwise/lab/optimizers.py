"""The optimizers of the paper's comparison, and later ones, with what sets their layers' rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

import rankwise
from rankwise.errors import ConfigError
from rankwise.lab.defaults import (
    GAIN_RULES,
    LAYER_RULES,
    RULES,
    WITH_RULES,
    follows_gains,
    make_optimizer_error,
)
from rankwise.lab.optimizer_builders import BUILDERS, OptimizerOptions
from rankwise.optim.controls import Control

OPTIMIZERS = tuple(BUILDERS)
_REFERENCE = 0.03  # the first rate of the paper's rule
_LIKE_SGD = ("sgd", "sgd-nesterov")  # whose rates are of the size of RMSGD's
# Attributes that decide on steps and that an optimizer leaves out of its state_dict: AdaBound's
# bounds are relative to its first rates.
_EXTRA_STATE = ("base_lrs",)


@dataclass(frozen=True)
class EpochOptimizer:
    """An optimizer, and what sets its layers' rates, if anything does.

    One whole update is `loss = self.optimizer.step(closure)`. The closure zeroes the gradients,
    computes the loss, backpropagates and returns the loss; where gradients are disabled it only
    computes and returns the loss. SAM calls it twice, SLS up to a hundred times, all others once:
    it must draw the same dropout on each call, and let only the first count in running statistics
    (`update` does both). Gradients are not kept as they were.
    """

    optimizer: Optimizer
    rates: rankwise.LayerwiseLR | None = None  # where there is a rule, but for RMSGD's own

    @property
    def averages(self) -> bool:
        """Whether the network is tested at an average of weights, not where it is trained."""
        return hasattr(self.optimizer, "eval")

    def train(self) -> None:
        """Set the weights to those at which gradients are taken; call it before steps."""
        if self.averages:
            self.optimizer.train()  # type: ignore[attr-defined]

    def eval(self) -> None:
        """Set the weights to those that are tested; the state says which ones they are."""
        if self.averages:
            self.optimizer.eval()  # type: ignore[attr-defined]

    def end_step(self) -> None:
        """Set the rates after a step of the optimizer, for rules that count steps."""
        if self.rates is not None and self.rates.every != "epoch":
            self.rates.step()

    def end_epoch(self) -> None:
        """Measure the layers and set their rates, for methods that do so once per epoch."""
        if isinstance(self.optimizer, rankwise.RMSGD):
            self.optimizer.epoch_step()
        elif self.rates is not None and self.rates.every == "epoch":
            self.rates.step()

    @property
    def has_probe(self) -> bool:
        """Whether the end of an epoch makes a probe of the network."""
        if self.rates is not None:
            return self.rates.rule.measures == "stable_rank"
        return isinstance(self.optimizer, rankwise.RMSGD)

    @property
    def last_probe(self) -> rankwise.Probe | None:
        """The probe at the last epoch's end; None for optimizers that need none."""
        if isinstance(self.optimizer, rankwise.RMSGD):
            return self.optimizer.last_probe
        return None if self.rates is None else self.rates.last_probe

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue; `torch.load(weights_only=True)` reads it."""
        optimizer = self.optimizer
        extra = {
            name: getattr(optimizer, name) for name in _EXTRA_STATE if hasattr(optimizer, name)
        }
        rates = None if self.rates is None else self.rates.state_dict()
        return {"optimizer": optimizer.state_dict(), "extra": extra, "rates": rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of an optimizer of the same name, bit for bit."""
        self.optimizer.load_state_dict(state["optimizer"])
        _keep_dtypes(self.optimizer, state["optimizer"])
        for name, value in state["extra"].items():
            setattr(self.optimizer, name, value)
        if self.rates is not None:
            self.rates.load_state_dict(state["rates"])


def _keep_dtypes(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Undo that torch casts a state to its parameter's type, which NAdam's products are not."""
    for group, saved_group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for param, index in zip(group["params"], saved_group["params"], strict=True):
            for name, value in saved["state"].get(index, {}).items():
                present = optimizer.state[param][name]
                if isinstance(value, Tensor) and present.dtype != value.dtype:
                    optimizer.state[param][name] = value.to(present.device, copy=True)


def build_optimizer(
    name: str,
    network: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.9,
    beta: float | None = None,
    rule: str | None = None,
    rule_options: Mapping[str, Any] | None = None,
    control: Control | None = None,
    seed: int = 0,
    batches_per_epoch: int | None = None,
    epochs: int | None = None,
    mean_over_processes: Callable[[Tensor], Tensor] | None = None,
) -> EpochOptimizer:
    """Build one of OPTIMIZERS for a network.

    `lr` is the first rate; for SLS the longest step. `momentum` is β₁ for optimizers like Adam;
    AdaGrad, RMSProp and SLS have none. `rule` is RMSGD's, or what LayerwiseLR is given for an
    optimizer in WITH_RULES, with `control` and the `seed` of that. `beta` and `rule_options`, which
    are zeta, floor and p, belong to RMSGD and the rules by gains in stable rank. SLS uses
    `batches_per_epoch`, by which its steps grow, and `mean_over_processes`; schedule-free
    optimizers warm up for a share of `epochs` × `batches_per_epoch`, and LLR's number of steps is
    that product.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(2, 1)
        >>> built = build_optimizer("sgd", net, lr=0.1, weight_decay=5e-4)
        >>> def closure():
        ...     built.optimizer.zero_grad()
        ...     loss = net(torch.ones(4, 2)).square().mean()
        ...     if torch.is_grad_enabled():
        ...         loss.backward()
        ...     return loss
        >>> bool(built.optimizer.step(closure) > closure())
        True
    """
    if name not in BUILDERS:
        raise make_optimizer_error(name, OPTIMIZERS)
    options = {key: value for key, value in (rule_options or {}).items() if value is not None}
    if beta is not None:
        options["beta"] = beta
    _check(lr=lr, weight_decay=weight_decay, momentum=momentum)
    _check_rule(name, rule, options, control)
    options.pop("beta", None)
    given = OptimizerOptions(
        *(lr, weight_decay, momentum, beta, rule, options),
        *(batches_per_epoch, epochs, mean_over_processes),
    )
    optimizer = BUILDERS[name](network, given)
    if name == "rmsgd" or rule is None:
        return EpochOptimizer(optimizer)
    made = _make_rule(name, given)
    return EpochOptimizer(
        optimizer, rankwise.LayerwiseLR(optimizer, made, control=control, seed=seed)
    )


def _make_rule(name: str, given: OptimizerOptions) -> rankwise.RateRule[Any]:
    """Return the rule of a name, over an optimizer of a name."""
    if given.rule == "temp-balance":
        return rankwise.TempBalance()
    if given.rule == "relative-update":
        return rankwise.RelativeUpdate()
    if given.rule == "llr":
        if given.epochs is None or given.batches_per_epoch is None:
            raise ConfigError("Expected epochs and batches_per_epoch for rule llr, got none.")
        return rankwise.LLR(given.epochs * given.batches_per_epoch)
    # Over SGD it is the paper's rule at any first rate; for others gains are relative to theirs.
    options = {"reference": given.lr if name in _LIKE_SGD else _REFERENCE, **given.rule_options}
    if given.beta is not None:
        options["beta"] = given.beta
    if "floor" in options:
        options["floor"] /= given.lr  # a share of the first rate there
    if given.rule == "stable-rank":
        return rankwise.StableRank(**options)
    if given.epochs is None:
        raise ConfigError("Expected epochs for rule annealed, which ends with them, got none.")
    return rankwise.AnnealedStableRank(given.epochs, **options)


def _check(*, lr: float, weight_decay: float, momentum: float) -> None:
    if not 0 < lr < math.inf:
        raise ConfigError(f"Expected a learning rate above 0 and finite, got {lr}.")
    if not 0 <= weight_decay < math.inf:
        raise ConfigError(f"Expected a weight decay of 0 or more and finite, got {weight_decay}.")
    if not 0 <= momentum < 1:
        raise ConfigError(f"Expected a momentum from 0 up to but not 1, got {momentum}.")


def _check_rule(
    name: str, rule: str | None, options: Mapping[str, Any], control: Control | None
) -> None:
    known = ("paper", "annealed") if name == "rmsgd" else RULES if name in WITH_RULES else ()
    if rule is not None and rule not in known:
        expected = f"one of {', '.join(known)}" if known else "no rule"
        raise ConfigError(f"Expected {expected} for {name}, got {rule!r}.")
    if options and not follows_gains(name, rule):
        raise ConfigError(
            f"Expected no {', '.join(options)} for {name}, which has no such option. It belongs to "
            f"rmsgd and the rules {' and '.join(GAIN_RULES)}."
        )
    if control is not None and (name == "rmsgd" or rule not in LAYER_RULES):
        raise ConfigError(
            f"Expected no control for {name} with {f'rule {rule}' if rule else 'no rule'}: it "
            f"belongs to the rules {', '.join(LAYER_RULES)}, got {control!r}."
        )
