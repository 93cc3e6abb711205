"""Layers side by side: small matrices at once on a core each, large ones one by one on all."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import numpy.linalg
import torch

__all__ = ["Task", "run_tasks"]

Result = TypeVar("Result")

# Memory that tasks side by side may take together; a task that needs more than half runs alone.
_BUDGET = 128 << 20
# The thread count of numpy's BLAS belongs to the whole process: one caller at a time changes it.
_BLAS_LOCK = threading.RLock()
_BLAS_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)


@dataclass(frozen=True, slots=True)
class Task(Generic[Result]):
    """One piece of work.

    Attributes:
        run: Does it, told how many run at the same time.
        cost: How long it takes, in any unit; the most expensive start first.
        memory: How many bytes it needs while it runs.
        alone: Whether it must run on the calling thread, in order with others of its kind.
    """

    run: Callable[[int], Result]
    cost: float
    memory: int
    alone: bool = False


def run_tasks(
    tasks: Sequence[Task[Result]], on_done: Callable[[int], object] = lambda _: None
) -> list[Result]:
    """Runs all tasks on as many cores as torch may use, and gives their results in order.

    Args:
        tasks: What to run. Large ones run one by one with all cores, the others side by side.
        on_done: Called with each task's index, on the calling thread, as it is done.
    """
    threads = torch.get_num_threads()
    results: dict[int, Result] = {}
    order = sorted(range(len(tasks)), key=lambda i: -tasks[i].cost)
    limited = _blas_calls() is not None and threads > 1
    alone = [i for i in order if not limited or _needs_all(tasks[i])]
    together = [i for i in order if limited and not _needs_all(tasks[i])]
    with _BLAS_LOCK, _blas_threads(threads):
        for i in alone:
            results[i] = tasks[i].run(1)
            on_done(i)
    if together:
        with _BLAS_LOCK, _blas_threads(1), _torch_threads_kept(threads):
            _run_together(tasks, together, threads, results, on_done)
    return [results[i] for i in range(len(tasks))]


def _needs_all(task: Task[Result]) -> bool:
    return task.alone or task.memory > _BUDGET // 2


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
            while waiting and (not running or used + tasks[waiting[-1]].memory <= _BUDGET):
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


@contextlib.contextmanager
def _blas_threads(count: int) -> Iterator[None]:
    """Lets numpy's BLAS use `count` threads meanwhile, where it can be told."""
    calls = _blas_calls()
    if calls is None:
        yield
        return
    get, put = calls
    before = get()
    put(count)
    try:
        yield
    finally:
        put(before)


@contextlib.contextmanager
def _torch_threads_kept(count: int) -> Iterator[None]:
    """Undoes what the workers' `set_num_threads(1)` leaves behind for threads born later."""
    try:
        yield
    finally:
        torch.set_num_threads(count)


@cache
def _blas_calls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How to get and set the thread count of the OpenBLAS that numpy brings; None for others."""
    try:
        library = ctypes.CDLL(numpy.linalg._umath_linalg.__file__)
    except (AttributeError, OSError):
        return None
    for name in _BLAS_NAMES:
        with contextlib.suppress(AttributeError):
            return library[name.format("get")], library[name.format("set")]
    return None
