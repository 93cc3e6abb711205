"""The state of a run during training: networks, optimizers, position, schedule and clocks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import rankwise
from rankwise.errors import ConfigError, RunError
from rankwise.lab.config import Config
from rankwise.lab.data import is_text, load_dataset
from rankwise.lab.data.dataset import TextDataset, take_subset
from rankwise.lab.defaults import get_control, kind_of
from rankwise.lab.devices import average_over_processes, max_over_processes
from rankwise.lab.networks import select_variant
from rankwise.lab.networks.language import LANGUAGE_NETWORKS
from rankwise.lab.optimizers import EpochOptimizer, build_optimizer
from rankwise.lab.records import LayerColumns
from rankwise.lab.schedules import Budget, apply_factor, compute_factor
from rankwise.lab.tasks.gan import GanTask
from rankwise.lab.tasks.image import ImageTask
from rankwise.lab.tasks.language import LanguageTask
from rankwise.lab.tasks.task import Task
from rankwise.probes.network_figures import NetworkFigures, compute_figures

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_METRICS = ("stable_rank", "condition", "quality", "rank")

_CLOCKS = ("data", "step", "probe", "eval", "save")


@dataclass
class TrainingState:
    """Everything that changes while a run is trained."""

    config: Config
    fabric: Fabric
    task: Task
    optimizers: dict[str, EpochOptimizer]
    budget: Budget
    epoch: int = 0  # how many epochs are done
    batch: int = 0  # how many batches of the next one are done
    factor: float = 1.0  # the schedule's present factor of the rates
    spent: float = 0.0  # seconds of training in the epochs that are done
    now: float = 0.0  # seconds of training so far, as all processes have agreed on
    sums: dict[str, Tensor] = field(default_factory=dict)  # over this epoch's batches
    clocks: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_CLOCKS, 0.0))

    @classmethod
    def build(cls, config: Config, fabric: Fabric, budget: Budget) -> TrainingState:
        """Return the state of a run at its start."""
        task = _build_task(config, fabric)
        optimizers = {
            name: build_optimizer(
                config.optimizer,
                network,
                lr=config.lr or 0.0,
                weight_decay=config.weight_decay or 0.0,
                momentum=config.momentum or 0.0,
                beta=config.beta,
                rule=config.rule,
                rule_options={name: getattr(config, name) for name in ("zeta", "floor", "p")},
                control=get_control(config),
                seed=config.seed,
                batches_per_epoch=task.per_epoch,
                epochs=config.epochs,
                mean_over_processes=partial(average_over_processes, fabric),
            )
            for name, network in task.parts.items()
        }
        return cls(config, fabric, task, optimizers, budget)

    @property
    def trained(self) -> float:
        """Seconds of training by this process's clock, which count against a budget of time."""
        needs_probe = any(one.has_probe for one in self.optimizers.values())
        probe = self.clocks["probe"] if needs_probe else 0.0
        return self.spent + self.clocks["data"] + self.clocks["step"] + probe

    @property
    def progress(self) -> float:
        """The share of the budget that is spent."""
        return self.budget.compute_progress(self.epoch, self.batch / self.task.per_epoch, self.now)

    def set_rates(self) -> None:
        """Set the rates by the schedule."""
        factor = compute_factor(
            self.config.schedule or "none",
            epoch=self.epoch,
            progress=self.progress,
            step_size=self.config.step_size or 25,
            gamma=self.config.gamma or 0.5,
        )
        for one in self.optimizers.values():
            apply_factor(one.optimizer, factor, self.factor)
        self.factor = factor

    def add(self, sums: dict[str, Tensor]) -> None:
        """Add a batch's sums to the epoch's, on their device, without waiting for it."""
        for key, value in sums.items():
            wide = value.to(self._sum_type)
            self.sums[key] = self.sums[key] + wide if key in self.sums else wide

    @property
    def _sum_type(self) -> torch.dtype:
        return torch.float32 if self.fabric.device.type == "mps" else torch.float64

    def totals(self) -> dict[str, float]:
        """Return the epoch's sums over all processes."""
        keys = sorted(self.sums)
        values = torch.stack([self.sums[key] for key in keys])
        values = self.fabric.all_reduce(values, reduce_op="sum")  # type: ignore[assignment]
        return dict(zip(keys, values.tolist(), strict=True))

    def end_epoch(self) -> None:
        """Move to the next epoch's start; all processes together."""
        self.spent = self.now = max_over_processes(self.fabric, self.trained)
        self.epoch, self.batch, self.sums = self.epoch + 1, 0, {}
        self.clocks = dict.fromkeys(_CLOCKS, 0.0)
        self.task.set_memory({})

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Count the seconds spent inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.clocks[name] += time.perf_counter() - began

    def time_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Iterate over batches; the time spent waiting for them counts as data."""
        iterator = iter(batches)
        while True:
            with self.clock("data"):
                batch = next(iterator, None)
            if batch is None:
                return
            yield batch

    def save(self) -> dict[str, Any]:
        """Return what is needed to continue; all processes must call it together."""
        return {
            "fingerprint": self.task.fingerprint,
            "epoch": self.epoch,
            "batch": self.batch,
            "factor": self.factor,
            "spent": self.spent,
            "sums": self.totals() if self.sums else {},
            "clocks": self.clocks,
            "memory": self.task.get_memory(),
            "parts": {
                name: {
                    "network": network.state_dict(),
                    "optimizer": self.optimizers[name].state_dict(),
                }
                for name, network in self.task.parts.items()
            },
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        if state["fingerprint"] != self.task.fingerprint:
            raise RunError(
                f"{self.config.data} has changed since the run was started: it had "
                f"{state['fingerprint']}, now it has {self.task.fingerprint}. Restore the old "
                f"data, or start anew in another folder with --out."
            )
        for name, network in self.task.parts.items():
            network.load_state_dict(state["parts"][name]["network"])
            self.optimizers[name].load_state_dict(state["parts"][name]["optimizer"])
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.factor, self.spent, self.clocks = state["factor"], state["spent"], state["clocks"]
        first = self.fabric.global_rank == 0  # the sums are those of all processes together
        self.sums = {
            key: torch.tensor(value if first else 0.0, dtype=self._sum_type).to(self.fabric.device)
            for key, value in state["sums"].items()
        }
        self.now = self.trained
        self.task.set_memory(state["memory"])


def measure_layers(
    parts: Mapping[str, nn.Module], optimizers: Mapping[str, EpochOptimizer]
) -> tuple[LayerColumns, NetworkFigures]:
    """Probe the networks, unless the optimizer has just done so; add the layers' rates.

    Return all layers, and the figures of all networks together.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ("name", *_METRICS, "rate")}
    layers: list[rankwise.LayerMetrics] = []
    for part, network in parts.items():
        probe = optimizers[part].last_probe or rankwise.probe(network)
        layers += probe.layers
        rates = _get_rates(network, optimizers[part])
        for layer in probe.layers:
            if layer.status not in (rankwise.Status.PROBED, rankwise.Status.NOT_FINITE):
                continue
            name = layer.name.removesuffix(".weight")
            columns["name"].append(f"{part}.{name}" if part else name)
            for metric in _METRICS:
                columns[metric].append(getattr(layer, metric))
            columns["rate"].append(rates.get(layer.group or layer.name))
    return LayerColumns(**columns), compute_figures(layers)


def _get_rates(network: nn.Module, optimizer: EpochOptimizer) -> dict[str, float]:
    by_parameter = {
        id(param): _get_rate(group)
        for group in optimizer.optimizer.param_groups
        for param in group["params"]
    }
    return {
        name: by_parameter[id(param)]
        for name, param in network.named_parameters()
        if id(param) in by_parameter
    }


def _get_rate(group: Mapping[str, Any]) -> float:
    """Return the rate of the last step: what SLS found, Prodigy's estimate of d times its rate."""
    return float(group.get("step_size", group["lr"]) * group.get("d", 1.0))


def _build_task(config: Config, fabric: Fabric) -> Task:
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
