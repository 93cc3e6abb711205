"""The builders of the lab's optimizers, by their names.

Weight decay is the paper's: a penalty whose gradient is added to the loss's ("coupled"). By their
own definition it is decoupled in AdamW, Muon, Prodigy, LAMB and schedule-free AdamW, and in AdamP
and SGDP, which take the radial part out of an update, and so the whole of a coupled decay too.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import rankwise
from rankwise.errors import ConfigError
from rankwise.lab.lamb import LAMB
from rankwise.lab.layer_decay import list_depths
from rankwise.lab.line_search import SLS

_BETA2 = 0.999
# You et al., 2017, for all batch sizes.
_TRUST = 0.001
# The share of the steps in which schedule-free rates rise (Defazio et al., 2024, appendix G).
_WARM_UP = 0.05
_LAYER_DECAY = 0.75  # for each block (Bao et al., 2022; He et al., 2022)


@dataclass(frozen=True, slots=True)
class OptimizerOptions:
    """What a builder is given; the options of a rule are those of its gains."""

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
        """Rate and weight decay, which every optimizer has."""
        return {"lr": self.lr, "weight_decay": self.weight_decay}

    @property
    def betas(self) -> tuple[float, float]:
        """β₁ and β₂ of optimizers like Adam."""
        return self.momentum, _BETA2


def _import_library(name: str = "pytorch_optimizer") -> ModuleType:
    """Import a package of optimizers; pytorch_optimizer takes seconds."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise rankwise.MissingExtraError(name, "lab", "This optimizer") from error


def _all_params(network: nn.Module) -> list[dict[str, Any]]:
    return [_group(dict(network.named_parameters()))]


def _choose_groups(network: nn.Module, given: OptimizerOptions) -> list[dict[str, Any]]:
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


def _rmsgd(network: nn.Module, given: OptimizerOptions) -> Optimizer:
    annealed: dict[str, Any] = {"variant": "annealed", "epochs": given.epochs}
    return rankwise.RMSGD(
        network.named_parameters(),
        momentum=given.momentum,
        beta=given.beta,
        **(annealed if given.rule == "annealed" else {}),
        **given.rule_options,
        **given.common,
    )


def _from_torch(name: str, *options: str) -> Callable[[nn.Module, OptimizerOptions], Optimizer]:
    """Return the builder of an optimizer of torch's, with the named options and the common ones."""

    def build(network: nn.Module, given: OptimizerOptions) -> Optimizer:
        chosen = {option: getattr(given, option) for option in options}
        return getattr(torch.optim, name)(_choose_groups(network, given), **chosen, **given.common)

    return build


def _from_library(
    name: str, *options: str, **fixed: object
) -> Callable[[nn.Module, OptimizerOptions], Optimizer]:
    """Return the builder of an optimizer of pytorch_optimizer's."""

    def build(network: nn.Module, given: OptimizerOptions) -> Optimizer:
        chosen = {option: getattr(given, option) for option in options}
        kind = getattr(_import_library(), name)
        return kind(_all_params(network), **chosen, **fixed, **given.common)

    return build


def _sgd_nesterov(network: nn.Module, given: OptimizerOptions) -> Optimizer:
    if not given.momentum:
        raise ConfigError("Expected a momentum above 0 for sgd-nesterov, got 0. Use sgd instead.")
    groups = _choose_groups(network, given)
    return torch.optim.SGD(groups, momentum=given.momentum, nesterov=True, **given.common)


def _sam(network: nn.Module, given: OptimizerOptions) -> Optimizer:
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


def _sls(network: nn.Module, given: OptimizerOptions) -> Optimizer:
    if given.batches_per_epoch is None:
        raise ConfigError("Expected batches_per_epoch for sls, whose steps grow by it, got none.")
    return SLS(
        _all_params(network),
        batches_per_epoch=given.batches_per_epoch,
        mean_over_processes=given.mean_over_processes,
        **given.common,
    )


def _muon(network: nn.Module, given: OptimizerOptions) -> Optimizer:
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


def _schedule_free(kind: str) -> Callable[[nn.Module, OptimizerOptions], Optimizer]:
    """Return the builder of "SGD" or "AdamW" without a schedule, by their authors' package."""

    def build(network: nn.Module, given: OptimizerOptions) -> Optimizer:
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


def _count_warm_up_steps(given: OptimizerOptions) -> int:
    """Return 5 % of all steps; an epoch where a time decides how many there are."""
    per_epoch = given.batches_per_epoch or 0
    return per_epoch if given.epochs is None else math.ceil(_WARM_UP * given.epochs * per_epoch)


def _prodigy(network: nn.Module, given: OptimizerOptions) -> Optimizer:
    options = {"lr": given.lr, "betas": given.betas, "decouple": True}
    optimizer = _import_library("prodigyopt").Prodigy(_all_params(network), **options)
    for group in optimizer.param_groups:  # given a decay, the package prints a line
        group["weight_decay"] = given.weight_decay
    return optimizer


def _lamb(network: nn.Module, given: OptimizerOptions) -> Optimizer:
    return LAMB(_all_params(network), betas=given.betas, **given.common)


def _adamw_layer_decay(network: nn.Module, given: OptimizerOptions) -> Optimizer:
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


BUILDERS: dict[str, Callable[[nn.Module, OptimizerOptions], Optimizer]] = {
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
