"""`rankwise train`: train a network, or continue a run."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, get_args, get_type_hints

import typer

from rankwise.cli.output import make_console, print_text, print_warnings
from rankwise.errors import ArgumentError
from rankwise.lab.config import Config, from_mapping, read_toml

TRAIN_EXAMPLES = """\b
Examples:
  rankwise train --network resnet8 --epochs 10 --beta 0.8
  rankwise train --network resnet18 --data cifar10 --optimizer rmsgd --trials 5
  rankwise train --data cifar10 --optimizer sgd --schedule cosine --budget 30m
  rankwise train --network lstm2 --data ptb --optimizer adamw
  rankwise train --optimizer adamw --rule temp-balance --control shuffled
  rankwise train --config experiment.toml --seed 7
  rankwise train --list
  torchrun --nproc-per-node 2 -m rankwise train --data cifar10

\b
Repeat the command to continue a run that was stopped or killed.
"""


# Every option of `Config`, in the groups of the help; a test compares the names.
_GROUPS = {
    "What to train": (
        *("network", "width", "dropout", "tied", "length", "critic_steps"),
        *("data", "train_size", "image_size", "augment", "cutout", "validate"),
    ),
    "How long": ("epochs", "budget", "seed"),
    "How to train": (
        *("optimizer", "lr", "momentum", "weight_decay", "batch_size", "clip"),
        *("schedule", "step_size", "gamma", "precision", "compile"),
    ),
    "Rates of layers": ("rule", "control", "beta", "zeta", "floor", "p"),
    "Where to train": ("accelerator", "devices", "workers", "data_root", "out", "log"),
}
# How the help names a value: by its type, or for some options by what it is.
_METAVARS = {int: "N", float: "X", str: "NAME", Path: "FILE"}
_OWN_METAVARS = {"budget": "TIME", "precision": "BITS", "data_root": "DIR", "out": "DIR"}


def train_command() -> Callable[..., None]:
    """Return the command, with every option of `Config`: one list serves it, TOML and Python."""

    def train(config: Path | None, trials: int | None, **options: object) -> None:
        if options.pop("list"):
            typer.echo(format_names())
            return
        _train(config, trials, {k: v for k, v in options.items() if v is not None})

    train.__doc__ = "Train a network and probe every layer after each epoch."
    train.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
    return train


def _parameters() -> list[inspect.Parameter]:
    config = "A TOML file with any of these options; those given win."
    trials = "How many runs, each with a seed of its own.  [default: 1]"
    parameters = [
        _parameter("list", bool, "List all networks, data sets and optimizers."),
        _parameter("config", Path | None, config),
        _parameter("trials", int | None, trials),
    ]
    kinds = get_type_hints(Config)
    options = {option.name: option for option in fields(Config)}
    for group, names in _GROUPS.items():
        for name in names:
            option = options[name]
            text = option.metadata["help"]
            if option.default not in (None, MISSING, ""):
                text += f"  [default: {str(option.default).lower()}]"
            parameters.append(_parameter(name, kinds[name] | None, text, group))
    return parameters


def _parameter(name: str, kind: Any, text: str, group: str | None = None) -> inspect.Parameter:  # noqa: ANN401
    switch = f"--{name.replace('_', '-')}"
    names = (f"{switch}/--no-{switch[2:]}",) if kind == bool | None else (switch,)
    metavar = next((_METAVARS[one] for one in _METAVARS if one in get_args(kind)), None)
    option = typer.Option(
        *names,
        help=text,
        show_default=False,
        metavar=_OWN_METAVARS.get(name, metavar),
        rich_help_panel=group,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if kind is bool else None,
        annotation=Annotated[kind, option],
    )


def format_names() -> str:
    """List all networks, data sets and optimizers by name."""
    from rankwise.lab.data import DATASETS
    from rankwise.lab.defaults import RULES, WITH_RULES
    from rankwise.lab.networks import IMAGE_NETWORKS, IMAGE_PATTERNS
    from rankwise.lab.networks.language import LANGUAGE_NETWORKS
    from rankwise.lab.optimizers import OPTIMIZERS
    from rankwise.lab.schedules import SCHEDULES
    from rankwise.lab.tasks.gan import GAN_NETWORKS

    names = {
        "Networks for images": (*IMAGE_NETWORKS, *IMAGE_PATTERNS),
        "Networks for text": LANGUAGE_NETWORKS,
        "GANs": GAN_NETWORKS,
        "Data sets": (*DATASETS, "folder:PATH", "hf:NAME_OR_PATH", "text:PATH"),
        "Optimizers": OPTIMIZERS,
        f"Rules for {', '.join(WITH_RULES)}": RULES,
        "Schedules": SCHEDULES,
    }
    return "\n".join(f"{title}:\n{_indent(group)}" for title, group in names.items())


def _indent(names: Iterable[str]) -> str:
    text = "  ".join(names)
    return fill(text, 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _train(config: Path | None, trials: int | None, options: dict[str, object]) -> None:
    from rankwise import lab, study
    from rankwise.cli.training_progress import TrainingProgress

    if config is not None:
        given = read_toml(config)
        count = given.pop("trials", 1)
        if type(count) is not int:
            raise ArgumentError(f"{config}: trials should be int, got {count!r}.")
        trials = count if trials is None else trials
        options = {**{k.replace("-", "_"): v for k, v in given.items()}, **options}
    if trials is not None and trials < 1:
        raise ArgumentError(f"Expected --trials of 1 or more, got {trials}.")
    asked = from_mapping(options, str(config) if config is not None else "rankwise train")
    try:
        with TrainingProgress() as progress, print_warnings(progress.print):
            runs = lab.train_trials(asked, trials or 1, callback=progress)
    except lab.StoppedError as stopped:
        if _is_main_process():
            typer.echo(f"rankwise: {stopped}", err=True)
        raise typer.Exit(128 + stopped.signal) from None
    if _is_main_process():
        console = make_console()
        print_text(console, study.format_layers(runs[-1]))
        print_text(console, study.format_trials(study.group_trials(runs)))


def _is_main_process() -> bool:
    """Return whether this process prints for all of a run's."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0
