"""A run while it goes on: its networks and optimizers, how far it has come, and its clocks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankwise.errors import ConfigError, RunError
from rankwise.lab import optimizers, schedules
from rankwise.lab.budget import Budget
from rankwise.lab.config import Config
from rankwise.lab.data import is_text, load_dataset
from rankwise.lab.data.dataset import TextDataset, take_subset
from rankwise.lab.defaults import kind_of
from rankwise.lab.devices import largest, mean
from rankwise.lab.networks import select_variant
from rankwise.lab.networks.language import LANGUAGE_NETWORKS
from rankwise.lab.optimizers import Method
from rankwise.lab.tasks.gan import GanTask
from rankwise.lab.tasks.image import ImageTask
from rankwise.lab.tasks.language import LanguageTask
from rankwise.lab.tasks.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Job", "job_for"]

_CLOCKS = ("data", "step", "probe", "eval", "save")


@dataclass
class Job:
    """Everything that changes while a run goes on.

    Attributes:
        config: The resolved options.
        fabric: Devices and precision.
        task: Networks and data.
        methods: An optimizer for each part of the network.
        budget: How long it goes on.
        epoch: How many epochs are over.
        batch: How many batches of the next one are.
        factor: What the schedule has made of the rates.
        spent: Seconds of training in the epochs that are over.
        now: Seconds of training so far, as all processes have agreed on.
        sums: Over this epoch's batches.
        clocks: This epoch's seconds, by what they went into.
    """

    config: Config
    fabric: Fabric
    task: Task
    methods: dict[str, Method]
    budget: Budget
    epoch: int = 0
    batch: int = 0
    factor: float = 1.0
    spent: float = 0.0
    now: float = 0.0
    sums: dict[str, Tensor] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_CLOCKS, 0.0))

    @property
    def trained(self) -> float:
        """Seconds of training by this process's clock, by which a budget of time is measured."""
        measures_itself = any(method.last_probe is not None for method in self.methods.values())
        own = self.clocks["probe"] if measures_itself else 0.0
        return self.spent + self.clocks["data"] + self.clocks["step"] + own

    @property
    def progress(self) -> float:
        """The share of the budget that is spent."""
        return self.budget.progress(self.epoch, self.batch / self.task.per_epoch, self.now)

    def set_rates(self) -> None:
        """Follow the schedule."""
        factor = schedules.factor(
            self.config.schedule or "none",
            epoch=self.epoch,
            progress=self.progress,
            step_size=self.config.step_size or 25,
            gamma=self.config.gamma or 0.5,
        )
        for method in self.methods.values():
            schedules.apply(method.optimizer, factor, self.factor)
        self.factor = factor

    def add(self, sums: dict[str, Tensor]) -> None:
        """Add a batch's sums to the epoch's, where they are: no device is waited for."""
        for key, value in sums.items():
            wide = value.to(self._sum_type)
            self.sums[key] = self.sums[key] + wide if key in self.sums else wide

    @property
    def _sum_type(self) -> torch.dtype:
        return torch.float32 if self.fabric.device.type == "mps" else torch.float64

    def totals(self) -> dict[str, float]:
        """The epoch's sums over all processes."""
        keys = sorted(self.sums)
        values = torch.stack([self.sums[key] for key in keys])
        values = self.fabric.all_reduce(values, reduce_op="sum")  # type: ignore[assignment]
        return dict(zip(keys, values.tolist(), strict=True))

    def end_epoch(self) -> None:
        """Go to the next epoch's start; all processes together."""
        self.spent = self.now = largest(self.fabric, self.trained)
        self.epoch, self.batch, self.sums = self.epoch + 1, 0, {}
        self.clocks = dict.fromkeys(_CLOCKS, 0.0)
        self.task.carry({})

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Count the seconds of what is done inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.clocks[name] += time.perf_counter() - began

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches, with the time that is waited for them counted as data's."""
        source = iter(batches)
        while True:
            with self.clock("data"):
                batch = next(source, None)
            if batch is None:
                return
            yield batch

    def state(self) -> dict[str, Any]:
        """What is needed to go on; all processes must ask for it together."""
        return {
            "fingerprint": self.task.fingerprint,
            "epoch": self.epoch,
            "batch": self.batch,
            "factor": self.factor,
            "spent": self.spent,
            "sums": self.totals() if self.sums else {},
            "clocks": self.clocks,
            "carried": self.task.carried(),
            "parts": {
                name: {"network": network.state_dict(), "method": self.methods[name].state_dict()}
                for name, network in self.task.parts.items()
            },
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            RunError: If it was saved with other data.
        """
        if state["fingerprint"] != self.task.fingerprint:
            raise RunError(
                f"{self.config.data} has changed since the run was begun: it had "
                f"{state['fingerprint']}, now it has {self.task.fingerprint}. Bring the old data "
                f"back, or start anew in another folder with --out."
            )
        for name, network in self.task.parts.items():
            network.load_state_dict(state["parts"][name]["network"])
            self.methods[name].load_state_dict(state["parts"][name]["method"])
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.factor, self.spent, self.clocks = state["factor"], state["spent"], state["clocks"]
        first = self.fabric.global_rank == 0  # the sums are all processes', and one brings them
        self.sums = {
            key: torch.tensor(value if first else 0.0, dtype=self._sum_type).to(self.fabric.device)
            for key, value in state["sums"].items()
        }
        self.now = self.trained
        self.task.carry(state["carried"])


def job_for(config: Config, fabric: Fabric, budget: Budget) -> Job:
    """A run at its very start.

    Raises:
        ConfigError: If network and data don't go together.
        DataError: If the data can't be found.
    """
    task = _task_for(config, fabric)
    methods = {
        name: optimizers.build(
            config.optimizer,
            network,
            lr=config.lr or 0.0,
            weight_decay=config.weight_decay or 0.0,
            momentum=config.momentum or 0.0,
            beta=config.beta,
            rule=_rule(config),
            batches_per_epoch=task.per_epoch,
            mean_over_processes=partial(mean, fabric),
        )
        for name, network in task.parts.items()
    }
    return Job(config, fabric, task, methods, budget)


def _rule(config: Config) -> dict[str, Any]:
    """What else RMSGD's rule is given; empty for optimizers without one."""
    names = {"rule": "variant", "zeta": "zeta", "floor": "floor", "p": "p"}
    given = {theirs: getattr(config, ours) for ours, theirs in names.items()}
    if config.rule == "annealed":
        given["epochs"] = config.epochs
    return given


def _task_for(config: Config, fabric: Fabric) -> Task:
    kind = kind_of(config.network)
    reads = config.network in LANGUAGE_NETWORKS
    if is_text(config.data) != reads:
        needed = "text, such as ptb" if reads else "images, such as cifar10"
        raise ConfigError(f"{config.network} needs {needed}, got {config.data}.")
    data = load_dataset(config.data, Path(config.data_root), image_size=config.image_size)
    if config.train_size is not None:
        data = take_subset(data, config.train_size, validate=config.validate)
    if isinstance(data, TextDataset):
        return LanguageTask(config, fabric, data)
    if kind == "gan":
        return GanTask(config, fabric, data)
    return ImageTask(
        config.with_(network=select_variant(config.network, data.shape[1])), fabric, data
    )
