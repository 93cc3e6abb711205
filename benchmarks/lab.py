"""Claim: the lab's training loop is as fast as a bare one, and its data costs little per step.

The aim was 0.95 of the samples/s of a bare loop with torch.optim.SGD, and at most a tenth of a step
for data and augmentation. ResNet20, batches of 128 images, channels last. The lab's loop is
`rankwise.lab.train` itself; after each of its batches the bare loop takes its turn, on a copy of
the network and with the same batch, made by the same code. Ready: a bare loop whose batches are
there at no cost. Each keeps its best batch; the median is that of the ratios of neighbours.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.timing import format_table, limit_threads, time_best
from rankwise.lab import Config, train
from rankwise.lab.callbacks import Callback
from rankwise.lab.networks import NetworkSpec, build_network
from rankwise.lab.records import EpochRecord
from rankwise.lab.training_state import TrainingState

_REAL = Path(__file__).parents[2] / "shared" / "data"
_RACES = (("sgd", False), ("sgd", True), ("rmsgd", False))  # optimizer, Cutout
_BUDGET = "8s"  # of the lab's steps in a race; the bare loop needs as long again
_BATCH = 128
_BATCHES, _TESTS = 390, 10_000  # an epoch of CIFAR-10
_NOISE = 2_000  # images in each of CIFAR-10's six files, where they are made up
_LAYOUTS = (("ResNet20", _BATCH), ("ResNet18", 32))  # network, images in a batch


def run() -> str:
    """The tables."""
    counts = tuple(dict.fromkeys((1, torch.get_num_threads())))
    speeds, parts = [], []
    with tempfile.TemporaryDirectory() as folder:
        data, root = _images(Path(folder))
        for optimizer, cutout in _RACES:
            for count in counts:
                race = _raced(root, f"{folder}/{count}", count, optimizer=optimizer, cutout=cutout)
                options = (optimizer, "yes" if cutout else "no", str(count))
                speeds.append((*options, *race.speed()))
                parts.append((*options, *race.parts()))
    layouts = [_layout(network, images, n) for network, images in _LAYOUTS for n in counts]
    heads = ("optimizer", "Cutout", "threads")
    against = ("samples/s", "of a bare loop", "median", "of a ready one", "data, of a step")
    layout_heads = ("network", "images", "threads", "channels last", "contiguous", "ratio")
    return "\n\n".join(
        (
            f"{data}:",
            format_table((*heads, *against), speeds),
            f"The parts of an epoch of {_BATCHES} batches and {_TESTS:,} test images, from those "
            "that were run:",
            format_table((*heads, "data", "step", "probe", "eval", "save"), parts),
            "Why channels last is the default: a step in either layout.",
            format_table(layout_heads, layouts),
        )
    )


class _Race(Callback):
    """Watches a run, and after each of its batches runs the same one by a bare loop."""

    def __init__(self) -> None:
        self.lab: list[float] = []  # seconds a batch, data included
        self.lab_data: list[float] = []
        self.bare_step: list[float] = []
        self.bare_data: list[float] = []
        self._seconds: dict[str, float] = {}  # of an epoch's parts

    def on_start(self, state: TrainingState) -> None:
        """Line up: the same network, the same batches."""
        config = state.config
        self._step = _stepper(
            copy.deepcopy(state.task.parts[""]),
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        self._line_up(state)

    def _line_up(self, state: TrainingState) -> None:
        self._batches = state.task.batches(state.epoch, state.batch)
        self._hand_over(state)

    def _hand_over(self, state: TrainingState) -> None:
        self._data_before = state.clocks["data"]
        self._start = time.perf_counter()

    def on_batch(self, state: TrainingState) -> None:
        """The lab's turn is over; now the bare loop's."""
        end = time.perf_counter()
        images, targets = next(self._batches)
        ready = time.perf_counter()
        self._step(images, targets)
        self.bare_step.append(time.perf_counter() - ready)
        self.bare_data.append(ready - end)
        self.lab.append(end - self._start)
        self.lab_data.append(state.clocks["data"] - self._data_before)
        self._hand_over(state)

    def on_epoch(self, state: TrainingState, record: EpochRecord) -> None:
        """Keep what the lab's clocks say, scaled to an epoch of CIFAR-10."""
        seconds, tests = record.seconds, state.task.fingerprint["test"]
        batches = record.batches or 1
        self._seconds = {
            "data": seconds.data / batches * _BATCHES,
            "step": seconds.step / batches * _BATCHES,
            "probe": seconds.probe,
            "eval": seconds.eval / tests * _TESTS,
            "save": state.clocks["save"],  # the next epoch's clock, on which nothing else is yet
        }
        self._line_up(state)

    def speed(self) -> tuple[str, ...]:
        """Samples a second; against the bare loop; the share of data."""
        bare = [data + step for data, step in zip(self.bare_data, self.bare_step, strict=True)]
        pairs = [theirs / ours for theirs, ours in zip(bare, self.lab, strict=True)]
        steps = [whole - data for whole, data in zip(self.lab, self.lab_data, strict=True)]
        best = min(self.lab)
        return (
            f"{_BATCH / best:.0f}",
            f"{min(bare) / best:.3f}",
            f"{statistics.median(pairs):.3f}",
            f"{min(self.bare_step) / best:.3f}",
            f"{min(self.lab_data) / min(steps):.1%}",
        )

    def parts(self) -> tuple[str, ...]:
        """Where an epoch's seconds go."""
        return tuple(f"{seconds:.2f} s" for seconds in self._seconds.values())


def _raced(root: Path, out: str, count: int, **options: Any) -> _Race:  # noqa: ANN401
    race = _Race()
    config = Config(
        network="resnet20",
        data="cifar10",
        batch_size=_BATCH,
        budget=_BUDGET,
        accelerator="cpu",
        data_root=str(root),
        out=out,
        **options,
    )
    with limit_threads(count):
        train(config, callback=race)
    return race


def _stepper(network: nn.Module, **options: Any) -> Callable[[Tensor, Tensor], None]:  # noqa: ANN401
    """A bare loop's step."""
    optimizer = torch.optim.SGD(network.parameters(), **options)

    def step(images: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(network(images), targets))
        optimizer.step()

    return step


def _images(folder: Path) -> tuple[str, Path]:
    """What the data is, and where: real images if they are there, otherwise noise."""
    if (_REAL / "cifar10").is_dir():
        return "Images of CIFAR-10", _REAL
    home = folder / "cifar-10-batches-bin"
    home.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        records = torch.randint(256, (_NOISE, 1 + 3 * 32 * 32), dtype=torch.uint8)
        records[:, 0] %= 10
        (home / f"{name}.bin").write_bytes(records.numpy().tobytes())
    return "Noise of CIFAR-10's shape", folder


def _layout(network: str, images: int, count: int) -> tuple[str, ...]:
    inputs, targets = torch.randn(images, 3, 32, 32), torch.randint(10, (images,))
    contestants = {}
    for layout in (torch.channels_last, torch.contiguous_format):
        model = build_network(network.lower(), NetworkSpec(classes=10))
        model = model.to(memory_format=layout)  # type: ignore[call-overload]
        batch = inputs.contiguous(memory_format=layout)
        contestants[str(layout)] = partial(_stepper(model, lr=0.1), batch, targets)
    with limit_threads(count):
        last, plain = time_best(contestants, rounds=4).values()
    figures = (f"{last:.2f} s", f"{plain:.2f} s", f"{plain / last:.2f}")
    return (network, str(images), str(count), *figures)


if __name__ == "__main__":
    print(run())
