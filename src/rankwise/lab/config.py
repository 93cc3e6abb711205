"""The options of a run: one flat, frozen record that names the run and is saved with it."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, get_args, get_type_hints

import rankwise
from rankwise._text import suggest_names
from rankwise.errors import ConfigError

_HUGE = 1 << 1000  # integers below it can be floats as well
_ALWAYS_HASHED = ("network", "data", "optimizer")


def _option(default: object, text: str, *, constant: object = None, where: bool = False) -> Any:  # noqa: ANN401
    """Define an option.

    `constant` is what None stands for, if that never depends on other options; `where` says that
    the option is about where a run is trained, not about what it is.
    """
    return field(default=default, metadata={"help": text, "constant": constant, "where": where})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every option of a run. None stands for the paper's value, where it has one.

    Example:
        >>> from rankwise.lab import Config
        >>> Config(network="resnet18", data="cifar10", optimizer="sgd", schedule="cosine").epochs
    """

    network: str = _option("resnet20", "A network, such as resnet18, lstm2, wgan, timm:NAME.")
    data: str = _option("digits", "A data set: a name, folder:PATH, hf:NAME_OR_PATH, text:PATH.")
    optimizer: str = _option("rmsgd", "An optimizer, such as rmsgd, sgd, adamw, sam.")
    epochs: int | None = _option(None, "Number of epochs; without it and --budget as in the paper.")
    budget: str | None = _option(
        None, 'Instead of epochs, a time: "10m", or "wall clock of 250 SGD epochs".'
    )
    lr: float | None = _option(None, "The learning rate, or the initial one.")
    beta: float | None = _option(
        None, "β of the stable-rank rules; by default chosen by epochs and rule."
    )
    rule: str | None = _option(
        None,
        "The rule for layers' rates. rmsgd: paper or annealed; sgd, sgd-nesterov, adam, adamw, "
        "muon: stable-rank, annealed, temp-balance, llr or relative-update.",
        constant="paper",
    )
    control: str | None = _option(
        None,
        "Instead of what a rule says by layer: mean or shuffled; none for the rule as it is.",
        constant="none",
    )
    zeta: float | None = _option(
        None, "ζ of the stable-rank rules: the weight of a gain in stable rank.", constant=1.0
    )
    floor: float | None = _option(None, "The smallest rate of the stable-rank rules.")
    p: float | None = _option(
        None, "The power in the stable rank of these rules: 2, or 1.", constant=2.0
    )
    momentum: float | None = _option(None, "Momentum.")
    weight_decay: float | None = _option(None, "Weight decay.")
    schedule: str | None = _option(None, "none, step, cosine or one-cycle.")
    step_size: int | None = _option(None, "Schedule step: epochs between the steps.")
    gamma: float | None = _option(None, "Schedule step: the factor of each step.")
    clip: float | None = _option(None, "The largest norm of a gradient; 0 for no limit.")
    batch_size: int | None = _option(
        None, "Images, or columns of text, per step; over all devices."
    )
    cutout: bool = _option(False, "Cut a hole of half the size out of every training image.")
    augment: bool = _option(True, "Crop and flip training images.")
    train_size: int | None = _option(None, "Train on this many images, classes in proportion.")
    validate: bool = _option(False, "Test on training images that train_size leaves out.")
    width: float = _option(1.0, "A factor for the network's channels.")
    image_size: int | None = _option(None, "Resize images to this size.")
    dropout: float | None = _option(None, "Dropout of a language model.")
    tied: bool = _option(True, "Language models: one matrix for input and output words.")
    length: int = _option(70, "Language models: how many words a step looks back.")
    critic_steps: int = _option(5, "WGAN: critic steps per generator step.")
    seed: int = _option(0, "The seed of the first trial; the others follow.")
    precision: str = _option("32", "32, bf16 (mixed, weights stay float32) or 64.")
    compile: bool = _option(False, "Compile the network with torch.compile.")
    accelerator: str = _option("auto", "auto, cpu, cuda or mps.", where=True)
    devices: int = _option(1, "Number of devices, or of processes on a CPU.", where=True)
    workers: int = _option(2, "Processes that read images which don't fit in memory.", where=True)
    data_root: str = _option("data", "The folder that data sets are looked for in.", where=True)
    out: str = _option("runs", "The folder that runs are written to.", where=True)
    log: str = _option(
        "", "Also log to tensorboard, csv, wandb, mlflow (several: with commas).", where=True
    )

    def __post_init__(self) -> None:
        config: Any = type(self)  # a subclass may have more options
        kinds = _kinds(config)
        for option in fields(self):
            value = _typed(getattr(self, option.name), kinds[option.name], option.name)
            object.__setattr__(self, option.name, value)  # 1 for 1.0 is as good

    def __repr__(self) -> str:
        """Return the options that differ from their defaults."""
        options = ((option, getattr(self, option.name)) for option in fields(self))
        given = [f"{o.name}={value!r}" for o, value in options if value != o.default]
        return f"{type(self).__name__}({', '.join(given)})"

    def identity(self) -> dict[str, Any]:
        """Return the options that make this run this run: all but where it is trained."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.metadata["where"]}

    @property
    def name(self) -> str:
        """The name of the run's folder: readable in front, then a hash, then the seed.

        The hash covers network, data, optimizer, and of the other options, except the seed, those
        whose value is neither None, nor the default, nor the constant that None stands for. So a
        new option that leaves runs as they were changes no name.
        """
        hashed = {
            option.name: value
            for option in fields(self)
            if not option.metadata["where"]
            and option.name != "seed"
            and (
                (value := getattr(self, option.name))
                not in (None, option.default, option.metadata["constant"])
                or option.name in _ALWAYS_HASHED
            )
        }
        digest = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:8]
        words = (self.network, self.data, self.optimizer)
        readable = "-".join(
            re.sub(r"[^A-Za-z0-9.]+", "_", word).strip("_.")[-40:] for word in words
        )
        return f"{readable}-{digest}-seed{self.seed}"

    def with_(self, **changes: object) -> Config:
        """Return a copy with some options changed; the changes are checked."""
        return dataclasses.replace(self, **_checked(changes, "options"))


def from_mapping(options: Mapping[str, object], source: str) -> Config:
    """Return a configuration from names (with "-" or "_") and values; errors name the `source`."""
    return Config(**_checked(options, source))


def read_toml(path: Path) -> dict[str, object]:
    """Read the options in a TOML file."""
    tomllib = _tomllib()
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not valid TOML: it is not text in UTF-8.") from None
    except (ValueError, RecursionError) as error:  # numbers of 5,000 digits, too many brackets
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None


def _tomllib() -> ModuleType:
    """Return the module that reads TOML; the command line works without the lab's packages."""
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return importlib.import_module(name)
    except ImportError:
        raise rankwise.MissingExtraError(name, "lab", "Reading TOML files") from None


@cache
def _kinds(config: type[Any]) -> dict[str, Any]:
    """Return the type of every option; cached, as a study makes thousands of configurations."""
    return get_type_hints(config)


def _checked(options: Mapping[str, object], source: str) -> dict[str, Any]:
    kinds = _kinds(Config)
    checked = {}
    for key, value in options.items():
        name = key.replace("-", "_")
        if name not in kinds:
            hint = suggest_names(name, kinds) or " `rankwise train --help` lists them."
            raise ConfigError(f"{source}: there is no option {key!r}.{hint}")
        if name in checked:
            raise ConfigError(f"{source}: {name} is given twice, with - and with _.")
        checked[name] = _typed(value, kinds[name], f"{source}: {key}")
    return checked


def _typed(value: object, kind: Any, label: str) -> object:  # noqa: ANN401
    kinds = get_args(kind) or (kind,)
    if float in kinds and type(value) is int and abs(value) < _HUGE:
        value = float(value)
    if type(value) in kinds:
        return value
    names = " or ".join(k.__name__ for k in kinds if k is not NoneType)
    raise ConfigError(f"{label} should be {names}, got {value!r}.")
