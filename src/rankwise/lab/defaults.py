"""The paper's settings as tables, and resolving options: what is None takes its value from them.

A rate without a comment is the paper's; "ours" marks what it does not list. Those are published
defaults where there are any, and were not tuned.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

import rankwise
from rankwise._text import explain_unknown, suggest_names
from rankwise.errors import ConfigError
from rankwise.lab.callbacks import LOGGERS
from rankwise.lab.config import Config
from rankwise.lab.devices import PRECISIONS
from rankwise.lab.schedules import SCHEDULES, parse_budget
from rankwise.lab.size_space import is_in_size_space, parse_channels

Kind = Literal["image", "language", "gpt", "gan"]

# Names alone, so that reading options imports no network; a test compares them with the builders.
NETWORKS: dict[Kind, tuple[str, ...]] = {
    "image": (
        *("resnet8", "resnet20", "resnet32", "resnet44", "resnet56"),
        *("resnet18", "resnet34", "resnet50", "resnet101", "resnext29", "mobilenetv2", "senet18"),
        *("efficientnetb0", "shufflenetv2", "shufflenetv2-1.5", "vgg16", "densenet121", "vit"),
        "mlp",
        *("resnet18-imagenet", "resnet34-imagenet", "resnet50-imagenet", "resnet101-imagenet"),
        *("resnext50-imagenet", "mobilenetv2-imagenet"),
    ),
    "language": ("lstm1", "lstm2", "lstm3"),
    "gpt": ("gpt",),
    "gan": ("wgan", "wgan-gp"),
}
EXTERNAL_NETWORKS = ("timm", "torchvision")  # packages, as in timm:NAME
_TRANSFORMERS = ("vit", "gpt")


@dataclass(frozen=True, slots=True)
class Defaults:
    """The settings of an optimizer for a kind of task; the names are those of `Config`.

    For SLS, `lr` is the longest step; for optimizers like Adam, `momentum` is β₁. `step_size` and
    `gamma` define schedule "step" where it is asked for.
    """

    lr: float
    weight_decay: float
    momentum: float
    beta: float | None
    schedule: str
    step_size: int
    gamma: float
    clip: float | None
    batch_size: int


_RATES: dict[Kind, dict[str, float]] = {
    "image": {
        "rmsgd": 0.03,
        "sgd": 0.1,
        "sgd-nesterov": 0.1,  # ours: as sgd
        "sgdp": 0.1,
        "adam": 3e-4,
        "adamw": 1e-3,  # ours: torch's
        "adamp": 0.01,
        "adabelief": 1e-3,  # ours: Zhuang et al., 2020, for CIFAR
        "adabound": 0.01,
        "adagrad": 0.01,
        "rmsprop": 3e-4,  # ours: as adam
        "radam": 1e-3,  # ours: torch's
        # Ours: the paper prints 1, at which a ResNet20 did not learn the digits. Test accuracy in %
        # after 10 epochs (110 steps), mean ± standard deviation over n = 3 seeds: 15 ± 6 at 1,
        # 46 ± 41 at 0.5, 98.1 ± 0.6 at 0.1, 98.4 ± 0.6 at 0.05. A ResNet8 (n = 5): 94.6 ± 4.9,
        # 97.9 ± 1.4, 98.7 ± 0.6, 99.1 ± 0.4. Whether 1 recovers in 250 epochs was not tried.
        "sam": 0.1,
        "sls": 1.0,
        "nadam": 3e-4,  # ours: as adam
        "muon": 1e-3,  # ours: as adamw, to whose size its updates are scaled
        # The package's own; for CIFAR-10 its authors take 10 with a decay of 1e-4.
        "schedulefree-sgd": 1.0,
        "schedulefree-adamw": 2.5e-3,  # the package's own
        "prodigy": 1.0,  # its authors': it finds the step itself
        # You et al., 2017, have 4 for a ResNet-50 with batches of 256 and all tensors scaled. Where
        # biases and norms are left out, as is usual since, these take 4 too. ResNet8 on the digits,
        # test accuracy in % after 10 epochs, n = 3 seeds: 93.8 ± 1.5 at 2, 77.8 ± 12.4 at 4, and
        # 94.2 ± 0.3 at 1, which they name as another base rate.
        "lars": 1.0,
        "lamb": 1e-3,  # its authors', in tensorflow_addons
        "adamw-layer-decay": 1e-3,  # ours: as adamw; that of what follows the blocks
    },
    "language": {
        "rmsgd": 15.0,
        "sgd": 30.0,
        "sgd-nesterov": 3.0,  # ours: as sgd, with the momentum it needs
        "sgdp": 30.0,  # ours: as sgd
        "adam": 0.01,
        "adamw": 1e-3,
        "adamp": 1e-3,  # ours: as adamw
        "adabelief": 0.01,
        "adabound": 0.01,  # ours: Zhuang et al., 2020
        "adagrad": 0.01,  # ours: torch's
        "rmsprop": 1e-3,  # ours: as adamw
        "radam": 1e-3,
        "sam": 30.0,  # ours: as sgd, which it steps with
        "sls": 30.0,  # ours: no longer steps than sgd's
        "nadam": 1e-3,  # ours: as adamw
        "muon": 1e-3,  # ours: as adamw
        "schedulefree-sgd": 30.0,  # ours: as sgd
        "schedulefree-adamw": 2.5e-3,  # the package's own
        "prodigy": 1.0,  # its authors'
        "lars": 1.0,  # ours: as for images
        "lamb": 1e-3,  # its authors'
        "adamw-layer-decay": 1e-3,  # ours: as adamw
    },
    "gan": {
        "rmsgd": 0.5,
        "sgd": 0.1,
        "sgd-nesterov": 0.1,  # ours: as sgd
        "sgdp": 0.1,  # ours: as sgd
        "adam": 3e-4,
        "adamw": 3e-4,  # ours: as adam
        "adamp": 3e-4,  # ours: as adam
        "adabelief": 3e-4,
        "adabound": 3e-4,
        "adagrad": 0.01,  # ours: torch's
        "rmsprop": 3e-4,
        "radam": 3e-4,
        "sam": 0.5,
        "sls": 1.0,  # ours: as for images
        "nadam": 3e-4,  # ours: as adam
        "muon": 3e-4,  # ours: as adam
        "schedulefree-sgd": 1.0,  # the package's own
        "schedulefree-adamw": 2.5e-3,  # the package's own
        "prodigy": 1.0,  # its authors'
        "lars": 1.0,  # ours: as for images
        "lamb": 1e-3,  # its authors'
        "adamw-layer-decay": 3e-4,  # ours: as adam
    },
}

# β: 0.98 for 250 epochs, 0.95 for 100, 0.9 for LSTMs.
_BETAS: dict[Kind, float] = {"image": 0.98, "language": 0.9, "gpt": 0.9, "gan": 0.95}
# The rules for rates that other optimizers than RMSGD take, and the optimizers that take them.
GAIN_RULES = ("stable-rank", "annealed")
LAYER_RULES = (*GAIN_RULES, "temp-balance", "llr")
RULES = (*LAYER_RULES, "relative-update")
WITH_RULES = ("sgd", "sgd-nesterov", "adam", "adamw", "muon")
CONTROLS = ("none", "mean", "shuffled")

# Ours, for language: at a rate of 30 a momentum of 0.9 does not train. A narrow lstm1 (embedding
# 100) on 4,000 lines of PTB, batch 20, training perplexity of three epochs, one run each: 830, 835,
# 1439 with it, 809, 443, 344 without; RMSGD at 15 with it: 729, 456, 400.
_WITHOUT_MOMENTUM = ("sgd", "sgdp", "sam")
# Ours: the momentum that Muon's authors use.
_MUON_MOMENTUM = 0.95
# Ours, for GANs: β₁ of the adaptive ones as in DCGAN (Radford et al., 2016). Schedule-free AdamW
# has none: its β tells where gradients are taken.
_ADAPTIVE = (
    *("adam", "adamw", "adamp", "adabelief", "adabound", "radam", "nadam"),
    *("prodigy", "lamb"),
)
_GAN_BETA1 = 0.5
# Their schedules are part of the method: none at all, and the one that Prodigy's authors advise.
_SCHEDULES = {"schedulefree-sgd": "none", "schedulefree-adamw": "none", "prodigy": "cosine"}


# Names that have become an optimizer and a rule.
_RENAMED = {"stable-rank-sgd": "sgd", "stable-rank-adamw": "adamw"}


def make_optimizer_error(name: str, known: Collection[str]) -> ConfigError:
    """Return the error for an unknown optimizer: the similar names, and all of them."""
    if name in _RENAMED:
        return ConfigError(
            f"There is no optimizer {name!r} any more. Use --optimizer {_RENAMED[name]} --rule "
            "stable-rank."
        )
    return ConfigError(explain_unknown("optimizer", name, sorted(known)))


def follows_gains(optimizer: str, rule: str | None) -> bool:
    """Return whether rates follow gains in stable rank, by the paper's rule or its variant.

    Example:
        >>> follows_gains("rmsgd", None), follows_gains("sgd", None), follows_gains("sgd", "llr")
        (True, False, False)
    """
    return optimizer == "rmsgd" or rule in GAIN_RULES


def get_defaults(optimizer: str, kind: Kind, rule: str | None = None) -> Defaults:
    """Return an optimizer's settings for a kind of task, where `rule` sets its layers' rates.

    SGD with one of the stable-rank rules has RMSGD's settings, as it has RMSGD's rule.

    Example:
        >>> get_defaults("rmsgd", "image").lr, get_defaults("rmsgd", "language").beta
        (0.03, 0.9)
    """
    if kind not in _BETAS:
        raise ConfigError(f"Unknown kind of task {kind!r}. Expected one of {', '.join(_BETAS)}.")
    # Ours: a transformer gets the rates for images. At the LSTM's it does not learn.
    rates = _RATES["image" if kind == "gpt" else kind]
    if optimizer not in rates:
        raise make_optimizer_error(optimizer, rates)
    has_gains = follows_gains(optimizer, rule)
    if optimizer == "sgd" and has_gains:
        optimizer = "rmsgd"
    lr, beta = rates[optimizer], _BETAS[kind] if has_gains else None
    schedule = _SCHEDULES.get(optimizer, "none")
    if kind == "image":
        return Defaults(lr, 5e-4, _momentum(optimizer), beta, schedule, 25, 0.5, None, 128)
    if kind == "gpt":
        return Defaults(lr, 5e-4, _momentum(optimizer), beta, schedule, 25, 0.5, 1.0, 80)
    if kind == "language":
        # Ours: no schedule for what has a rule of its own for its steps.
        if not has_gains and optimizer not in ("sls", *_SCHEDULES):
            schedule = "step"
        momentum = 0.0 if optimizer in _WITHOUT_MOMENTUM else _momentum(optimizer)
        return Defaults(lr, 1e-6, momentum, beta, schedule, 75, 0.1, 0.25, 80)
    # Ours: no weight decay, as in the usual WGAN settings; the paper does not say.
    momentum = _GAN_BETA1 if optimizer in _ADAPTIVE else _momentum(optimizer)
    return Defaults(lr, 0.0, momentum, beta, schedule, 25, 0.5, None, 64)


def _momentum(optimizer: str) -> float:
    return _MUON_MOMENTUM if optimizer == "muon" else 0.9


_EPOCHS: dict[Kind, int] = {"image": 250, "language": 200, "gpt": 200, "gan": 100}
_BETA_BY_EPOCHS: tuple[Kind, ...] = ("image", "gan")
_GAIN_OPTIONS = ("beta", "zeta", "floor", "p")
_RMSGD_RULES = ("paper", "annealed")
_TIMED_RULES = ("annealed", "llr")  # which need the number of epochs
_DERIVED = ("beta", "floor", "control")  # follow from the others where they are not given
_CHOICES = {"precision": PRECISIONS, "schedule": SCHEDULES}
_POSITIVE = (
    *("epochs", "lr", "batch_size", "width", "length", "critic_steps", "devices", "step_size"),
    *("gamma", "image_size", "train_size", "p"),
)
_NOT_NEGATIVE = (
    *("weight_decay", "momentum", "clip", "workers", "seed", "beta", "dropout", "zeta", "floor"),
)
_BELOW_1 = ("momentum", "dropout")


def kind_of(network: str) -> Kind:
    """Return what a network is for, by its name."""
    return next((kind for kind, names in NETWORKS.items() if network in names), "image")


def check_network(network: str) -> None:
    """Check that there is such a network, without importing it."""
    if is_in_size_space(network):
        parse_channels(network)
        return
    known = [name for names in NETWORKS.values() for name in names]
    package, colon, _ = network.partition(":")
    if network not in known and not (colon and package in EXTERNAL_NETWORKS):
        raise ConfigError(
            f"There is no network {network!r}.{suggest_names(network, known)} `rankwise train "
            "--list` lists all of them."
        )


def resolve(config: Config) -> Config:
    """Return the options with the paper's settings in place of None, all checked.

    Example:
        >>> from rankwise.lab import Config
        >>> resolve(Config(optimizer="sgd")).lr
        0.1
    """
    kind = kind_of(config.network)
    if config.epochs is not None and config.budget is not None:
        raise ConfigError("Expected epochs or a budget, got both. Leave one of them out.")
    defaults = get_defaults(config.optimizer, kind, config.rule)
    missing: dict[str, Any] = {
        field.name: getattr(defaults, field.name)
        for field in fields(defaults)
        if getattr(config, field.name) is None
    }
    if config.epochs is None and config.budget is None:
        missing["epochs"] = _EPOCHS[kind]
    if kind == "gan" and config.image_size is None:
        missing["image_size"] = 32
    full = config.with_(**missing)
    _check(full)
    return full.with_(**_fill_rule(full, config.beta))


def omit_derived(config: Config) -> dict[str, Any]:
    """Return the options of a resolved run, with None for those that follow from the others.

    Example:
        >>> from rankwise.lab import Config
        >>> full = resolve(Config(optimizer="rmsgd", epochs=20))
        >>> round(full.beta, 2), omit_derived(full)["beta"]
        (0.78, None)
    """
    derived = [
        name
        for name in _DERIVED
        if getattr(config, name) is not None and _resolves_to(config.with_(**{name: None}), config)
    ]
    return {**config.identity(), **dict.fromkeys(derived)}


def _resolves_to(given: Config, config: Config) -> bool:
    try:
        return resolve(given) == config
    except ConfigError:  # options that were allowed once
        return False


def _fill_rule(full: Config, beta: float | None) -> dict[str, Any]:
    """Return what is still None of the rule for rates, and no control where there is nothing."""
    is_by_layer = full.optimizer != "rmsgd" and full.rule in LAYER_RULES
    control = {"control": full.control or "none" if is_by_layer else None}
    return {**control, **_fill_gains(full, beta)}


def _fill_gains(full: Config, beta: float | None) -> dict[str, Any]:
    """Return what is still None of the paper's rule or its variant, as RMSGD has it."""
    if not follows_gains(full.optimizer, full.rule):
        return {}
    missing: dict[str, Any] = {
        field.name: field.metadata["constant"]
        for field in fields(full)
        if field.name in ("rule", *_GAIN_OPTIONS)
        and field.metadata["constant"] is not None
        and getattr(full, field.name) is None
    }
    if full.floor is None:
        missing["floor"] = 0.01 * (full.lr or 0.0)
    by_epochs = full.rule != "annealed" and kind_of(full.network) in _BETA_BY_EPOCHS
    if beta is None and full.epochs is not None and by_epochs:
        missing["beta"] = rankwise.beta_for(full.epochs)
    return missing


def _check_numbers(config: Config) -> None:
    """Check the range of every number."""
    for name in _POSITIVE:
        value = getattr(config, name)
        _expect(value is None or 0 < value < math.inf, config, name, "above 0 and finite")
    for name in _NOT_NEGATIVE:
        value = getattr(config, name)
        _expect(value is None or 0 <= value < math.inf, config, name, "0 or more and finite")
    for name in _BELOW_1:
        value = getattr(config, name)
        _expect(value is None or value < 1, config, name, "below 1")
    _expect(config.beta is None or config.beta <= 1, config, "beta", "1 at most")


def _check(config: Config) -> None:
    for name, allowed in _CHOICES.items():
        _expect_one_of(allowed, config, name)
    _check_numbers(config)
    for name in filter(None, config.log.split(",")):
        if name not in LOGGERS:
            raise ConfigError(explain_unknown("logger", name, list(LOGGERS)))
    _check_rule(config)
    if config.validate and config.train_size is None:
        raise ConfigError("Expected a train_size with validate: it tests on what that leaves out.")
    if config.budget is not None:
        parse_budget(config.budget)
    if (config.batch_size or 0) % config.devices:
        raise ConfigError(
            f"Expected batch_size to be a multiple of the {config.devices} devices, "
            f"got {config.batch_size}."
        )
    kind = kind_of(config.network)
    if kind not in ("language", "gpt") and config.dropout is not None:
        raise ConfigError(f"Only language models have an option dropout, not {config.network}.")
    if kind == "gan" and config.precision == "64":
        raise ConfigError("Expected precision to be 32 or bf16 for a GAN, got '64'.")
    _check_optimizer(config)


def _check_optimizer(config: Config) -> None:
    """Check that the optimizer suits the network."""
    if config.network == "wgan" and config.optimizer.startswith("schedulefree"):
        raise ConfigError(
            f"{config.optimizer} can't train wgan, whose weights are clipped after every step: the "
            "average that is tested would not be. Use wgan-gp, or another optimizer."
        )
    is_ours = config.network.partition(":")[0] not in EXTERNAL_NETWORKS
    if config.optimizer == "adamw-layer-decay" and is_ours and config.network not in _TRANSFORMERS:
        raise ConfigError(
            f"Expected a transformer, such as {' or '.join(_TRANSFORMERS)}, for adamw-layer-decay, "
            f"whose rates follow the number of a block, got {config.network}. Use adamw instead."
        )


def _check_rule(config: Config) -> None:
    """Check that a rule suits the optimizer, and that its options are given to it alone."""
    rule, optimizer = config.rule, config.optimizer
    if optimizer == "rmsgd":
        if rule is not None:
            _expect_one_of(_RMSGD_RULES, config, "rule", f" for {optimizer}")
    elif rule is not None:
        if optimizer not in WITH_RULES:
            takers = ", ".join(("rmsgd", *WITH_RULES))
            raise ConfigError(f"{optimizer} has no option rule; it belongs to {takers}.")
        _expect_one_of(RULES, config, "rule", f" for {optimizer}")
    given = next((name for name in _GAIN_OPTIONS if getattr(config, name) is not None), None)
    if given is not None and not follows_gains(optimizer, rule):
        raise ConfigError(
            f"{optimizer}{f' with rule {rule}' if rule else ''} has no option {given}; it belongs "
            f"to rmsgd, and to the rules {' and '.join(GAIN_RULES)}."
        )
    if rule in _TIMED_RULES and config.epochs is None:
        raise ConfigError(f"Expected epochs for rule {rule}, which follows them, got a budget.")
    _check_control(config)


def get_control(config: Config) -> Literal["mean", "shuffled"] | None:
    """Return the control as LayerwiseLR takes it."""
    return cast(Literal["mean", "shuffled"], config.control) if _has_control(config) else None


def _has_control(config: Config) -> bool:
    return config.control not in (None, "none")


def _check_control(config: Config) -> None:
    """Check that there is a rule by layer for a control to replace."""
    control = config.control
    if control is not None:
        _expect_one_of(CONTROLS, config, "control")
    if not _has_control(config):
        return
    if config.optimizer == "rmsgd":
        rule = "annealed" if config.rule == "annealed" else "stable-rank"
        raise ConfigError(
            f"Expected no control for rmsgd, got {control!r}. Use --optimizer sgd --rule {rule}, "
            "the same rule with the rate outside of the momentum."
        )
    if config.rule not in LAYER_RULES:
        raise ConfigError(
            f"Expected a rule by layer with control {control!r}: one of {', '.join(LAYER_RULES)}, "
            f"got {config.rule or 'none'}."
        )


def _expect_one_of(allowed: Collection[str], config: Config, name: str, where: str = "") -> None:
    value = getattr(config, name)
    if value not in allowed:
        choices = f"{', '.join(allowed)}{where}"
        raise ConfigError(
            f"Expected {name} to be one of {choices}, got {value!r}.{suggest_names(value, allowed)}"
        )


def _expect(right: bool, config: Config, name: str, what: str) -> None:
    if not right:
        raise ConfigError(f"Expected {name} to be {what}, got {getattr(config, name)!r}.")
