"""Run tasks in parallel, one thread each, as many at once as cores and memory allow.

Libraries for linear algebra gain little from sharing one matrix among cores, and their threads wait
for each other in busy loops, so that a single other busy process makes them slower than one thread.
docs/benchmarks.md has the measurements.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import torch
from threadpoolctl import ThreadpoolController

from rankwise._machine import count_cores, find_free_memory
from rankwise.errors import ArgumentError
from rankwise.probes.cache import LayerCache, find_cache_folder

Result = TypeVar("Result")

# The thread count of numpy's BLAS belongs to the whole process: one caller at a time changes it.
_BLAS_LOCK = threading.RLock()


@dataclass(frozen=True, slots=True)
class Task(Generic[Result]):
    """One piece of work."""

    run: Callable[[int], Result]  # takes the number of tasks that run at the same time
    cost: float  # how long it takes, in any unit; the most expensive start first
    memory: int  # how many bytes it needs while it runs
    in_order: bool = False  # on the calling thread, in order with others of its kind


@dataclass(frozen=True, slots=True)
class Resources:
    """How many cores and how much memory measuring may use, and where results are kept.

    Attributes:
        jobs: How many layers are measured at the same time, on a thread each; by default as many
            as torch may use threads, and not more than the process may use cores.
        memory: Bytes that they may take together; by default half of what is free. A layer that
            needs more is measured alone.
        cache: A folder for the metrics of large layers, so that a probe that was stopped continues
            where it stopped; True for the user's own folder, False for none.

    Raises:
        ArgumentError: If one of them is less than 1.

    Example:
        >>> import torch, rankwise
        >>> weights = {"fc.weight": torch.ones(8, 8)}
        >>> rankwise.probe(weights, resources=rankwise.Resources(jobs=1)).layers[0].rank
        1.0
    """

    jobs: int | None = None
    memory: int | None = None
    cache: bool | str | os.PathLike[str] = False

    def __post_init__(self) -> None:
        for name in ("jobs", "memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"Expected {name} of 1 or more, got {value!r}.")

    def count_jobs(self) -> int:
        """Return how many tasks may run at the same time."""
        return self.jobs or min(torch.get_num_threads(), count_cores())

    def open_cache(self) -> LayerCache | None:
        """Return the folder's entries; None if nothing is kept."""
        if self.cache is False:
            return None
        return LayerCache(find_cache_folder() if self.cache is True else Path(self.cache))

    def count_bytes(self) -> int:
        """Return how many bytes tasks may take together."""
        return self.memory or find_free_memory() // 2


def run_tasks(
    tasks: Sequence[Task[Result]],
    on_done: Callable[[int], object] = lambda _: None,
    resources: Resources | None = None,
) -> list[Result]:
    """Run all tasks in parallel, and return their results in order.

    `on_done` is called with each task's index, on the calling thread.
    """
    resources = resources or Resources()
    jobs, memory = resources.count_jobs(), resources.count_bytes()
    results: dict[int, Result] = {}
    order = sorted(range(len(tasks)), key=lambda i: -tasks[i].cost)
    # Where BLAS can't be kept to one thread, parallel tasks would compete for the cores.
    in_parallel = jobs > 1 and bool(_find_blas())
    alone = [i for i in order if not in_parallel or tasks[i].in_order]
    together = [i for i in order if in_parallel and not tasks[i].in_order]

    def finish(index: int, result: Result) -> None:
        results[index] = result
        on_done(index)

    with _BLAS_LOCK, _limit_threads(min(jobs, torch.get_num_threads())):
        for i in alone:
            finish(i, tasks[i].run(1))
    if together:
        with _BLAS_LOCK, _limit_threads(1):
            _run_together(tasks, together, min(jobs, len(together)), memory, finish)
    return [results[i] for i in range(len(tasks))]


def _run_together(
    tasks: Sequence[Task[Result]],
    order: Sequence[int],
    jobs: int,
    memory: int,
    finish: Callable[[int, Result], object],
) -> None:
    """Run tasks on a pool of threads; of those that fit into memory, the first of the order."""
    waiting, used = list(reversed(order)), 0  # lists lose their last entries fastest
    running: dict[Future[Result], int] = {}
    pool = ThreadPoolExecutor(jobs, "rankwise", initializer=torch.set_num_threads, initargs=(1,))
    try:
        while waiting or running:
            while len(running) < jobs and waiting:
                places = reversed(range(len(waiting)))
                fits = (i for i in places if used + tasks[waiting[i]].memory <= memory)
                place = next(fits, None if running else -1)
                if place is None:
                    break
                index = waiting.pop(place)
                used += tasks[index].memory
                running[pool.submit(tasks[index].run, jobs)] = index
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                index = running.pop(future)
                used -= tasks[index].memory
                finish(index, future.result())
    finally:
        pool.shutdown(cancel_futures=True)


@cache
def _find_blas() -> ThreadpoolController:
    """Return what controls BLAS; empty for libraries that can't be told a thread count."""
    return ThreadpoolController().select(user_api="blas")  # a few ms, hence cached


@contextlib.contextmanager
def _limit_threads(count: int) -> Iterator[None]:
    """Keep numpy's BLAS and torch to so many threads.

    torch's own limit belongs to each thread, and threads that start later have the last one set.
    """
    before = torch.get_num_threads()
    with _find_blas().limit(limits=count):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
