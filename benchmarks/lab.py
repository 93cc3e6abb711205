"""Claim: the lab's training loop is as fast as a bare one, and its data costs little beside a step.

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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.timing import best_of, table, threads
from rankwise.lab import Config, train
from rankwise.lab.job import Job
from rankwise.lab.live import Silent
from rankwise.lab.networks import Shape, build

_REAL = Path(__file__).parents[2] / "shared" / "data"
_RACES = (("sgd", False), ("sgd", True), ("rmsgd", False))  # optimizer, Cutout
_BUDGET = "8s"  # of the lab's steps in a race; the bare loop needs as long again
_BATCH = 128
_BATCHES, _TESTS = 390, 10_000  # an epoch of CIFAR-10
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
    against = ("of a bare loop", "median", "of a ready one", "data, of a step")
    return "\n\n".join(
        (
            f"{data}:",
            table((*heads, "samples/s", *against), speeds),
            f"The parts of an epoch of {_BATCHES} batches and {_TESTS:,} test images, from those "
            "that were run:",
            table((*heads, "data", "step", "probe", "eval", "save"), parts),
            "Why channels last is the default: a step in either layout:",
            table(
                ("network", "images", "threads", "channels last", "contiguous", "ratio"), layouts
            ),
        )
    )


class _Race(Silent):
    """Watches a run, and after each of its batches runs the same one by a bare loop."""

    def __init__(self) -> None:
        self.lab: list[float] = []  # seconds a batch
        self.lab_data: list[float] = []
        self.data: list[float] = []
        self.step: list[float] = []

    def begin(self, job: Job) -> None:
        """Line up: the same network, the same batches."""
        config = job.config
        self._network = copy.deepcopy(job.task.parts[""])
        self._step = _stepper(
            self._network,
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        self._line_up(job)

    def batch(self, job: Job) -> None:
        """The lab's batch is over: now the bare loop's."""
        start = time.perf_counter()
        images, targets = next(self._batches)
        ready = time.perf_counter()
        self._step(images, targets)
        end = time.perf_counter()
        self.lab.append(start - self._turn)
        self.lab_data.append(job.clocks["data"] - self._data)
        self.data.append(ready - start)
        self.step.append(end - ready)
        self._data, self._turn = job.clocks["data"], time.perf_counter()

    def epoch(self, job: Job, record: dict[str, Any]) -> None:
        """Keep the clocks; what is on the next epoch's by now is the time of saving."""
        self._seconds = {**record["seconds"], "save": job.clocks["save"]}
        self._ran, self._tests = record["batches"], job.task.fingerprint["test"]
        self._line_up(job)

    def _line_up(self, job: Job) -> None:
        self._batches = job.task.batches(job.epoch, 0)
        self._data, self._turn = 0.0, time.perf_counter()

    def speed(self) -> tuple[str, ...]:
        """Samples a second, and against the bare loop."""
        bare = [data + step for data, step in zip(self.data, self.step, strict=True)]
        best = min(self.lab)
        pairs = [theirs / ours for theirs, ours in zip(bare, self.lab, strict=True)]
        steps = [whole - data for whole, data in zip(self.lab, self.lab_data, strict=True)]
        return (
            f"{_BATCH / best:.0f}",
            f"{min(bare) / best:.3f}",
            f"{statistics.median(pairs):.3f}",
            f"{min(self.step) / best:.3f}",
            f"{min(self.lab_data) / min(steps):.1%}",
        )

    def parts(self) -> tuple[str, ...]:
        """Where an epoch's seconds go."""
        times = {"data": _BATCHES / self._ran, "step": _BATCHES / self._ran}
        times |= {"probe": 1.0, "eval": _TESTS / self._tests, "save": 1.0}
        return tuple(f"{self._seconds[name] * factor:.2f} s" for name, factor in times.items())


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
    with threads(count):
        train(config, watch=race)
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
        records = torch.randint(256, (_TESTS, 1 + 3 * 32 * 32), dtype=torch.uint8)
        records[:, 0] %= 10
        (home / f"{name}.bin").write_bytes(records.numpy().tobytes())
    return "Noise of CIFAR-10's shape", folder


def _layout(network: str, images: int, count: int) -> tuple[str, ...]:
    inputs, targets = torch.randn(images, 3, 32, 32), torch.randint(10, (images,))
    contestants = {}
    for layout in (torch.channels_last, torch.contiguous_format):
        model = build(network.lower(), Shape(classes=10))
        model = model.to(memory_format=layout)  # type: ignore[call-overload]
        step, batch = _stepper(model, lr=0.1), inputs.contiguous(memory_format=layout)
        contestants[str(layout)] = lambda step=step, batch=batch: step(batch, targets)
    with threads(count):
        last, plain = best_of(contestants, rounds=4).values()
    figures = (f"{last:.2f} s", f"{plain:.2f} s", f"{plain / last:.2f}")
    return (network, str(images), str(count), *figures)


if __name__ == "__main__":
    print(run())
