"""The optimizers of the paper's comparison, and later ones, each built by its name.

Weight decay is the paper's: a penalty whose gradient is added to the loss's ("coupled"). By their
own definition it is decoupled in AdamW, Muon, Prodigy, LAMB and schedule-free AdamW, and in AdamP
and SGDP, which take the radial part out of an update, and so the whole of a coupled decay too.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
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
from rankwise.lab.lamb import LAMB
from rankwise.lab.layer_decay import list_depths
from rankwise.lab.line_search import SLS
from rankwise.optim.controls import Control

_REFERENCE = 0.03  # the first rate of the paper's rule
_BETA2 = 0.999
# Attributes that decide on steps and that an optimizer leaves out of its state_dict: AdaBound's
# bounds are relative to its first rates.
_EXTRA_STATE = ("base_lrs",)
# You et al., 2017, for all batch sizes.
_TRUST = 0.001
# The share of the steps in which schedule-free rates rise (Defazio et al., 2024, appendix G).
_WARM_UP = 0.05
_LAYER_DECAY = 0.75  # for each block (Bao et al., 2022; He et al., 2022)


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


@dataclass(frozen=True, slots=True)
class _Options:
    lr: float
    weight_decay: float
    momentum: float
    beta: float | None
    rule: str | None
    rule_options: dict[str, Any]
    batches_per_epoch: int | None
    epochs: int | None
    mean_over_processes: Callable[[Tensor], Tensor] | None

    @property
    def common(self) -> dict[str, Any]:
        return {"lr": self.lr, "weight_decay": self.weight_decay}

    @property
    def betas(self) -> tuple[float, float]:
        return self.momentum, _BETA2


def _import_library(name: str = "pytorch_optimizer") -> ModuleType:
    """Import a package of optimizers; pytorch_optimizer takes seconds."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise rankwise.MissingExtraError(name, "lab", "This optimizer") from error


def _all_params(network: nn.Module) -> list[dict[str, Any]]:
    return [_group(dict(network.named_parameters()))]


def _choose_groups(network: nn.Module, given: _Options) -> list[dict[str, Any]]:
    """Return one group; with a rule one per layer.

    LLR keeps vectors, such as norms and biases, at the global rate: there they have groups of their
    own.
    """
    if given.rule is None:
        return _all_params(network)
    return _layer_groups(network, (lambda _, p: p.ndim < 2) if given.rule == "llr" else None)


def _layer_groups(
    network: nn.Module, apart: Callable[[str, Tensor], bool] | None
) -> list[dict[str, Any]]:
    """Return groups by layer, with another one for those of its parameters that are `apart`."""
    groups = rankwise.layer_groups(network, no_decay=apart)
    for group in groups:  # the decay is the same with a rule and without one
        group.pop("weight_decay", None)
    return groups


def _group(named: dict[str, nn.Parameter], **options: object) -> dict[str, Any]:
    return {"params": list(named.values()), "param_names": list(named), **options}


def _rmsgd(network: nn.Module, given: _Options) -> Optimizer:
    annealed: dict[str, Any] = {"variant": "annealed", "epochs": given.epochs}
    return rankwise.RMSGD(
        network.named_parameters(),
        momentum=given.momentum,
        beta=given.beta,
        **(annealed if given.rule == "annealed" else {}),
        **given.rule_options,
        **given.common,
    )


def _from_torch(name: str, *options: str) -> Callable[[nn.Module, _Options], Optimizer]:
    """Return the builder of an optimizer of torch's, with the named options beside the common."""

    def build(network: nn.Module, given: _Options) -> Optimizer:
        chosen = {option: getattr(given, option) for option in options}
        return getattr(torch.optim, name)(_choose_groups(network, given), **chosen, **given.common)

    return build


def _from_library(
    name: str, *options: str, **fixed: object
) -> Callable[[nn.Module, _Options], Optimizer]:
    """Return the builder of an optimizer of pytorch_optimizer's."""

    def build(network: nn.Module, given: _Options) -> Optimizer:
        chosen = {option: getattr(given, option) for option in options}
        kind = getattr(_import_library(), name)
        return kind(_all_params(network), **chosen, **fixed, **given.common)

    return build


def _sgd_nesterov(network: nn.Module, given: _Options) -> Optimizer:
    if not given.momentum:
        raise ConfigError("Expected a momentum above 0 for sgd-nesterov, got 0. Use sgd instead.")
    groups = _choose_groups(network, given)
    return torch.optim.SGD(groups, momentum=given.momentum, nesterov=True, **given.common)


def _sam(network: nn.Module, given: _Options) -> Optimizer:
    return _sam_class()(
        _all_params(network),
        base_optimizer=torch.optim.SGD,
        rho=0.05,
        momentum=given.momentum,
        **given.common,
    )


@functools.cache
def _sam_class() -> Callable[..., Optimizer]:
    """Return the library's SAM with the closure's contract of EpochOptimizer."""

    class SAM(_import_library().SAM):  # type: ignore[misc]
        @torch.no_grad()
        def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401
            if closure is None:
                raise ConfigError(
                    "Expected step(closure), since SAM needs two gradients, got none."
                )
            with torch.enable_grad():
                loss = closure()
            self.first_step()
            with torch.enable_grad():
                closure()
            self.second_step()
            return loss

    return SAM


def _sls(network: nn.Module, given: _Options) -> Optimizer:
    if given.batches_per_epoch is None:
        raise ConfigError("Expected batches_per_epoch for sls, whose steps grow by it, got none.")
    return SLS(
        _all_params(network),
        batches_per_epoch=given.batches_per_epoch,
        mean_over_processes=given.mean_over_processes,
        **given.common,
    )


def _muon(network: nn.Module, given: _Options) -> Optimizer:
    """Muon for the hidden matrices, AdamW for the rest.

    Updates are scaled to the size of AdamW's (Liu et al., 2025), so one rate and one decay suit
    both. torch.optim.Muon takes no convolutions.
    """
    named, hidden = dict(network.named_parameters()), _find_hidden(network)
    inner = {name: param for name, param in named.items() if name in hidden}
    outer = {name: param for name, param in named.items() if name not in hidden}
    options = {**given.common, "weight_decouple": True}
    muon = {"use_muon": True, "momentum": given.momentum, "use_adjusted_lr": True}
    adamw = {"use_muon": False, "betas": (0.9, _BETA2), "eps": 1e-8}
    groups = [_group(inner, **muon, **options), _group(outer, **adamw, **options)]
    if given.rule is not None:  # in each layer a group of either kind
        groups = [
            {**group, **(muon if group["param_names"][0] in hidden else adamw), **options}
            for group in _layer_groups(network, lambda name, _: name not in hidden)
        ]
    return _import_library().Muon([group for group in groups if group["params"]])


def _find_hidden(network: nn.Module) -> set[str]:
    """Return the names of weights between a network's first and last one, without embeddings."""
    embeddings = {
        id(param)
        for module in network.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for param in module.parameters()
    }
    weights = [
        (name, param)
        for name, param in network.named_parameters()
        if param.ndim > 1 and "weight" in name.rpartition(".")[2]
    ]
    return {name for name, param in weights[1:-1] if id(param) not in embeddings}


def _schedule_free(kind: str) -> Callable[[nn.Module, _Options], Optimizer]:
    """Return the builder of "SGD" or "AdamW" without a schedule, by their authors' package."""

    def build(network: nn.Module, given: _Options) -> Optimizer:
        if not given.momentum:
            raise ConfigError(
                "Expected a momentum above 0 for a schedule-free optimizer, which takes gradients "
                "between the average and the newest weights, got 0."
            )
        inner: dict[str, Any] = (
            {"momentum": given.momentum} if kind == "SGD" else {"betas": given.betas}
        )
        make = getattr(_import_library("schedulefree"), f"{kind}ScheduleFree")
        warmup = _count_warm_up_steps(given)
        optimizer: Any = make(_all_params(network), warmup_steps=warmup, **inner, **given.common)
        optimizer.train()
        return optimizer

    return build


def _count_warm_up_steps(given: _Options) -> int:
    """Return 5 % of all steps; an epoch where a time decides how many there are."""
    per_epoch = given.batches_per_epoch or 0
    return per_epoch if given.epochs is None else math.ceil(_WARM_UP * given.epochs * per_epoch)


def _prodigy(network: nn.Module, given: _Options) -> Optimizer:
    options = {"lr": given.lr, "betas": given.betas, "decouple": True}
    optimizer = _import_library("prodigyopt").Prodigy(_all_params(network), **options)
    for group in optimizer.param_groups:  # given a decay, the package prints a line
        group["weight_decay"] = given.weight_decay
    return optimizer


def _lamb(network: nn.Module, given: _Options) -> Optimizer:
    return LAMB(_all_params(network), betas=given.betas, **given.common)


def _adamw_layer_decay(network: nn.Module, given: _Options) -> Optimizer:
    """AdamW whose rates fall by a factor for each block towards the input.

    The rate of block i of n is lr·0.75^(n + 1 − i); i = 0 is what comes before the blocks, such as
    embeddings, and i = n + 1 what comes after them.
    """
    named = dict(network.named_parameters())
    depths = list_depths(network)
    last = max(depths.values())
    groups = [
        _group(
            {name: param for name, param in named.items() if depths[name] == depth},
            lr=given.lr * _LAYER_DECAY ** (last - depth),
        )
        for depth in sorted(set(depths.values()))
    ]
    return torch.optim.AdamW(groups, betas=given.betas, **given.common)


_BUILDERS: dict[str, Callable[[nn.Module, _Options], Optimizer]] = {
    "rmsgd": _rmsgd,
    "sgd": _from_torch("SGD", "momentum"),
    "sgd-nesterov": _sgd_nesterov,
    # Asked for coupled decay, SGDP and AdamP 4.1.0 silently have none.
    "sgdp": _from_library("SGDP", "momentum", weight_decouple=True),
    "adam": _from_torch("Adam", "betas"),
    "adamw": _from_torch("AdamW", "betas"),
    "adamp": _from_library("AdamP", "betas", weight_decouple=True),
    # ε as in the AdaBelief paper's Algorithm 2; the library's is 1e-16.
    "adabelief": _from_library("AdaBelief", "betas", eps=1e-8, weight_decouple=False),
    "adabound": _from_library("AdaBound", "betas", weight_decouple=False),
    "adagrad": _from_torch("Adagrad"),
    "rmsprop": _from_torch("RMSprop"),
    "radam": _from_torch("RAdam", "betas"),
    "sam": _sam,
    "sls": _sls,
    "nadam": _from_torch("NAdam", "betas"),
    "muon": _muon,
    "schedulefree-sgd": _schedule_free("SGD"),
    "schedulefree-adamw": _schedule_free("AdamW"),
    "prodigy": _prodigy,
    # Biases and norms take plain steps without decay.
    "lars": _from_library("LARS", "momentum", trust_coefficient=_TRUST),
    "lamb": _lamb,
    "adamw-layer-decay": _adamw_layer_decay,
}
OPTIMIZERS = tuple(_BUILDERS)
_LIKE_SGD = ("sgd", "sgd-nesterov")  # whose rates are of the size of RMSGD's


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
    if name not in _BUILDERS:
        raise make_optimizer_error(name, OPTIMIZERS)
    options = {key: value for key, value in (rule_options or {}).items() if value is not None}
    if beta is not None:
        options["beta"] = beta
    _check(lr=lr, weight_decay=weight_decay, momentum=momentum)
    _check_rule(name, rule, options, control)
    options.pop("beta", None)
    given = _Options(
        *(lr, weight_decay, momentum, beta, rule, options),
        *(batches_per_epoch, epochs, mean_over_processes),
    )
    optimizer = _BUILDERS[name](network, given)
    if name == "rmsgd" or rule is None:
        return EpochOptimizer(optimizer)
    made = _make_rule(name, given)
    return EpochOptimizer(
        optimizer, rankwise.LayerwiseLR(optimizer, made, control=control, seed=seed)
    )


def _make_rule(name: str, given: _Options) -> rankwise.RateRule[Any]:
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
