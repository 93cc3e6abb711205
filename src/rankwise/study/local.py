"""A crew of processes on this machine, which outlives the loss of any of them.

Each worker is a process of its own that trains one run after the other. The supervisor hands out
runs and listens. A worker that dies is replaced, and its run goes on from its last saved epoch. A
supervisor that dies takes its workers along: they save what they have, and end.

Workers import the program's main module anew, as multiprocessing's always do: a script that starts
a crew does so below `if __name__ == "__main__":`.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

import torch

from rankwise.errors import ConfigError
from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.devices import _allowed_cores
from rankwise.study.events import Began, Ended, Event, Failed
from rankwise.study.worker import Lost, Over, Refused, Warned, Worker, heard, stop

__all__ = ["LocalCrew"]

_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CARDS = "CUDA_VISIBLE_DEVICES"


class LocalCrew:
    """Processes on this machine.

    Args:
        jobs: How many; by default one for each CUDA device, or for each core without any. They
            share the cores; OMP_NUM_THREADS is the user's own word and is kept.
        retries: How often a run is tried again whose worker was lost.

    Raises:
        ConfigError: If there are fewer jobs than 1 or fewer retries than 0.

    Example:
        >>> from rankwise.lab import Config
        >>> from rankwise.study.local import LocalCrew
        >>> runs = [Config(network="resnet8", epochs=1, seed=seed) for seed in (0, 1)]
        >>> for event in LocalCrew(jobs=2).work(runs):  # doctest: +SKIP
        ...     print(event)
    """

    def __init__(self, jobs: int | None = None, retries: int = 2) -> None:
        if jobs is not None and jobs < 1:
            raise ConfigError(f"Expected jobs of 1 or more, got {jobs}.")
        if retries < 0:
            raise ConfigError(f"Expected retries of 0 or more, got {retries}.")
        self.jobs = jobs or len(_cards()) or _allowed_cores()
        self.retries = retries

    def work(self, configs: Iterable[Config]) -> Generator[Event, None, None]:
        """Train all of these; see `Crew`. What a run warns of is repeated here, with its name."""
        waiting = deque(_Task(config, _name(config)) for config in configs)
        workers = [Worker(f"process {n + 1}", self._environment(n)) for n in range(self.jobs)]
        busy: dict[Worker, _Task] = {}
        try:
            while waiting or busy:
                for worker in workers:
                    if waiting and worker not in busy:
                        task = busy[worker] = waiting.popleft().again()
                        worker.give(task.config)
                        yield Began(task.name, worker.name, task.attempts)
                for worker in heard(busy):
                    answer = worker.answer()
                    if isinstance(answer, Warned):
                        warnings.warn(f"{busy[worker].name}: {answer.text}", stacklevel=2)
                        continue
                    task = busy.pop(worker)
                    if isinstance(answer, Lost) and task.attempts <= self.retries:
                        waiting.appendleft(task)
                    else:
                        yield task.end(answer)
        finally:
            stop(workers, busy)

    def _environment(self, number: int) -> dict[str, str]:
        """What a worker finds: its share of the cores, and one CUDA device where there are any."""
        threads = max(1, _allowed_cores() // self.jobs)
        found = {name: str(threads) for name in _POOLS if "OMP_NUM_THREADS" not in os.environ}
        cards = _cards()
        if cards:
            found[_CARDS] = cards[number % len(cards)]
        return found


@dataclass(frozen=True, slots=True)
class _Task:
    config: Config
    name: str
    attempts: int = 0
    since: float = 0.0

    def again(self) -> _Task:
        """It is taken up now."""
        return replace(self, attempts=self.attempts + 1, since=time.monotonic())

    def end(self, answer: Over | Refused | Lost) -> Event:
        """What became of it."""
        if isinstance(answer, Over):
            return Ended(self.name, answer.status, time.monotonic() - self.since)
        if isinstance(answer, Refused):
            return Failed(self.name, answer.sentence, self.attempts)
        often = f"{self.attempts} times, at last " if self.attempts > 1 else ""
        return Failed(
            self.name,
            f"Its process ended {often}{answer.how}, as it does when memory runs out. "
            "What it had saved is kept.",
            self.attempts,
        )


def _name(config: Config) -> str:
    """The name of a run's folder; options that can't be are refused by the worker."""
    try:
        return resolve(config).name
    except ConfigError:
        return config.name


def _cards() -> list[str]:
    """The CUDA devices that this process may use, as it would name them to another."""
    if not torch.cuda.is_available():
        return []
    given = os.environ.get(_CARDS)
    return given.split(",") if given else [str(n) for n in range(torch.cuda.device_count())]
