"""Run tasks in parallel: small ones side by side with a core each, large ones alone on all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import torch
from threadpoolctl import ThreadpoolController

Result = TypeVar("Result")

# Bytes that tasks side by side may take together; a task that needs more than half runs alone.
MEMORY_BUDGET = 128 << 20
# The thread count of numpy's BLAS belongs to the whole process: one caller at a time changes it.
_BLAS_LOCK = threading.RLock()


@dataclass(frozen=True, slots=True)
class Task(Generic[Result]):
    """One piece of work."""

    run: Callable[[int], Result]  # takes the number of tasks that run at the same time
    cost: float  # how long it takes, in any unit; the most expensive start first
    memory: int  # how many bytes it needs while it runs
    in_order: bool = False  # on the calling thread, in order with others of its kind

    @property
    def runs_alone(self) -> bool:
        """Whether nothing may run beside it."""
        return self.in_order or self.memory > MEMORY_BUDGET // 2


def run_tasks(
    tasks: Sequence[Task[Result]], on_done: Callable[[int], object] = lambda _: None
) -> list[Result]:
    """Run all tasks on as many cores as torch may use, and return their results in order.

    Large ones run one by one with all cores, the others side by side. `on_done` is called with each
    task's index, on the calling thread.
    """
    threads = torch.get_num_threads()
    results: dict[int, Result] = {}
    order = sorted(range(len(tasks)), key=lambda i: -tasks[i].cost)
    # Where BLAS can't be kept to one thread, tasks side by side would compete for the cores.
    in_parallel = threads > 1 and bool(_find_blas())
    alone = [i for i in order if not in_parallel or tasks[i].runs_alone]
    together = [i for i in order if in_parallel and not tasks[i].runs_alone]
    with _BLAS_LOCK, _limit_blas(threads):
        for i in alone:
            results[i] = tasks[i].run(1)
            on_done(i)
    if together:
        with _BLAS_LOCK, _limit_blas(1), _restore_torch_threads(threads):
            _run_together(tasks, together, threads, results, on_done)
    return [results[i] for i in range(len(tasks))]


def _run_together(
    tasks: Sequence[Task[Result]],
    order: Sequence[int],
    threads: int,
    results: dict[int, Result],
    on_done: Callable[[int], object],
) -> None:
    waiting, used = list(reversed(order)), 0
    running: dict[Future[Result], int] = {}
    pool = ThreadPoolExecutor(threads, "rankwise", initializer=torch.set_num_threads, initargs=(1,))
    try:
        while waiting or running:
            while waiting and (not running or used + tasks[waiting[-1]].memory <= MEMORY_BUDGET):
                index = waiting.pop()
                used += tasks[index].memory
                running[pool.submit(tasks[index].run, threads)] = index
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                index = running.pop(future)
                used -= tasks[index].memory
                results[index] = future.result()
                on_done(index)
    finally:
        pool.shutdown(cancel_futures=True)


@cache
def _find_blas() -> ThreadpoolController:
    """Return what controls BLAS; empty for libraries that can't be told a thread count."""
    return ThreadpoolController().select(user_api="blas")  # a few ms, hence cached


def _limit_blas(threads: int) -> contextlib.AbstractContextManager[object]:
    return _find_blas().limit(limits=threads)


@contextlib.contextmanager
def _restore_torch_threads(count: int) -> Iterator[None]:
    """Undo what the workers' `set_num_threads(1)` leaves behind for threads started later."""
    try:
        yield
    finally:
        torch.set_num_threads(count)
