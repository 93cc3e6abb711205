"""Options as given → options as run: the paper's settings where nothing was said, all checked."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import rankwise
from rankwise.errors import ConfigError
from rankwise.lab.budget import parse_budget
from rankwise.lab.config import Config
from rankwise.lab.defaults import RANKED, Kind, defaults_for
from rankwise.lab.devices import PRECISIONS, STRATEGIES
from rankwise.lab.loggers import LOGGERS
from rankwise.lab.networks.language import LANGUAGE_NETWORKS
from rankwise.lab.schedules import SCHEDULES
from rankwise.lab.tasks.gan import GAN_NETWORKS

__all__ = ["asked_options", "kind_of", "resolved"]

_EPOCHS: dict[Kind, int] = {"image": 250, "language": 200, "gpt": 200, "gan": 100}
_FOLLOWING: tuple[Kind, ...] = ("image", "gan")  # for which β follows the number of epochs
_RULES = ("beta", "rule", "gain", "zeta", "floor", "p")
_CHOICES = {"precision": PRECISIONS, "strategy": STRATEGIES, "schedule": SCHEDULES}
_RULE_CHOICES = {"rule": ("paper", "annealed", "released"), "gain": ("absolute", "relative")}
_POSITIVE = (
    "epochs",
    "lr",
    "batch_size",
    "width",
    "length",
    "critic_steps",
    "devices",
    "step_size",
    "gamma",
    "image_size",
    "train_size",
    "p",
)
# torch's optimizers work on shards as they do on whole weights; those of others may not.
_SHARDED = ("rmsgd", "sgd", "sgd-nesterov", "adam", "adamw", "nadam", "radam", "rmsprop")
_NOT_NEGATIVE = (
    "weight_decay",
    "momentum",
    "clip",
    "workers",
    "seed",
    "beta",
    "dropout",
    "zeta",
    "floor",
)
_BELOW_1 = ("momentum", "dropout")


def kind_of(network: str) -> Kind:
    """What a network is for, by its name."""
    if network in GAN_NETWORKS:
        return "gan"
    if network == "gpt":
        return "gpt"
    return "language" if network in LANGUAGE_NETWORKS else "image"


def resolved(config: Config) -> Config:
    """The same options with nothing left open.

    Raises:
        ConfigError: If an option is out of its range, or two of them contradict each other.
    """
    kind = kind_of(config.network)
    if config.epochs is not None and config.budget is not None:
        raise ConfigError("Expected epochs or a budget, got both. Leave one of them out.")
    defaults = defaults_for(config.optimizer, kind)
    found: dict[str, Any] = {
        field.name: getattr(defaults, field.name)
        for field in fields(defaults)
        if getattr(config, field.name) is None
    }
    if config.epochs is None and config.budget is None:
        found["epochs"] = _EPOCHS[kind]
    if kind == "gan" and config.image_size is None:
        found["image_size"] = 32
    full = config.with_(**found)
    _check(full)
    return full.with_(**_rule(full, config.beta)) if full.optimizer in RANKED else full


_DERIVED = ("beta", "floor")  # which follow from epochs and rate where they are not given


def asked_options(config: Config) -> dict[str, Any]:
    """What tells a run from others: its options, with None for those that follow from the rest.

    Args:
        config: The options of a run, resolved.

    Example:
        >>> from rankwise.lab import Config
        >>> from rankwise.lab.resolve import asked_options, resolved
        >>> full = resolved(Config(optimizer="rmsgd", epochs=20))
        >>> round(full.beta, 2), asked_options(full)["beta"]
        (0.78, None)
    """
    follows = [
        name
        for name in _DERIVED
        if config.optimizer in RANKED and _resolves_to(config.with_(**{name: None}), config)
    ]
    return {**config.identity(), **dict.fromkeys(follows)}


def _resolves_to(given: Config, config: Config) -> bool:
    try:
        return resolved(given) == config
    except ConfigError:  # what was allowed once
        return False


def _rule(full: Config, beta: float | None) -> dict[str, Any]:
    """What is left open of the rule for rates, as RMSGD has it."""
    released = full.rule == "released"
    own = {
        "rule": "paper",
        "gain": "absolute",
        "zeta": 1.0,
        "floor": 0.0 if released else 0.01 * (full.lr or 0.0),
        "p": 1.0 if released else 2.0,
    }
    found: dict[str, Any] = {name: own[name] for name in own if getattr(full, name) is None}
    follows = full.rule != "annealed" and kind_of(full.network) in _FOLLOWING
    if beta is None and full.epochs is not None and follows:
        found["beta"] = rankwise.beta_for(full.epochs)
    return found


def _check(config: Config) -> None:
    for name, allowed in _CHOICES.items():
        _expect(getattr(config, name) in allowed, config, name, f"one of {', '.join(allowed)}")
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
    known = all(name in LOGGERS for name in config.log.split(",") if name)
    _expect(known, config, "log", f"some of {', '.join(LOGGERS)}")
    _check_rule(config)
    if config.validate and config.train_size is None:
        raise ConfigError("Expected a train_size with validate: what it leaves out is tested on.")
    if config.budget is not None:
        parse_budget(config.budget)
    if config.strategy == "fsdp":
        _check_sharded(config)
    if (config.batch_size or 0) % config.devices:
        raise ConfigError(
            f"Expected batch_size to be a multiple of the {config.devices} devices, "
            f"got {config.batch_size}."
        )
    _check_kind(config)


def _check_rule(config: Config) -> None:
    """See that options of RMSGD's rule are given to it alone, and hang together."""
    given = [name for name in _RULES if getattr(config, name) is not None]
    if given and config.optimizer not in RANKED:
        raise ConfigError(
            f"{config.optimizer} has no option {given[0]}; it belongs to {', '.join(RANKED)}."
        )
    for name, allowed in _RULE_CHOICES.items():
        _expect(getattr(config, name) in (None, *allowed), config, name, " or ".join(allowed))
    if config.rule == "annealed" and config.epochs is None:
        raise ConfigError("Expected epochs for rule annealed, which ends with them, got a budget.")
    if config.rule == "released" and config.optimizer != "rmsgd":
        raise ConfigError(f"Rule released is rmsgd's alone, got it for {config.optimizer}.")


def _expect(right: bool, config: Config, name: str, what: str) -> None:
    if not right:
        raise ConfigError(f"Expected {name} to be {what}, got {getattr(config, name)!r}.")


def _check_kind(config: Config) -> None:
    if config.network not in LANGUAGE_NETWORKS and config.dropout is not None:
        raise ConfigError(f"Only language models have an option dropout, not {config.network}.")
    if config.network in GAN_NETWORKS and config.precision == "64":
        raise ConfigError("Expected precision to be 32 or bf16 for a GAN, got '64'.")


def _check_sharded(config: Config) -> None:
    if kind_of(config.network) != "image":
        raise ConfigError(
            f"{config.network} can't be sharded, only networks for images; leave fsdp out."
        )
    if config.optimizer not in _SHARDED:
        raise ConfigError(
            f"{config.optimizer} can't be sharded; with fsdp use one of {', '.join(_SHARDED)}."
        )
