"""One process that trains runs, from both ends: what it does, and the supervisor's hold on it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

import rankwise
from rankwise.lab.config import Config
from rankwise.lab.data import cache_datasets
from rankwise.lab.training import StoppedError, train

__all__ = ["Lost", "Over", "Refused", "Warned", "Worker", "heard", "stop"]

_PATIENCE = 10  # seconds for a worker without work to end
_HAS_MASKS = hasattr(signal, "pthread_sigmask")  # Windows has none


class Over(NamedTuple):
    """A worker's answer: the run is over."""

    status: str


class Refused(NamedTuple):
    """A worker's answer: the run can't be trained, and trying again would not help."""

    sentence: str


class Warned(NamedTuple):
    """What a run warns of while it is being trained."""

    text: str


class Lost(NamedTuple):
    """What stands for an answer where the process is dead."""

    how: str


Answer = Over | Refused | Warned | Lost


def _serve(pipe: Connection) -> None:
    """Train what comes through the pipe, until it ends; the worker's whole life."""
    if _HAS_MASKS:
        # Ctrl-C in a terminal reaches every process. The supervisor decides what it means.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=_follow, daemon=True).start()
    # Of many runs on the same data the first one reads it.
    with cache_datasets(), contextlib.suppress(EOFError, OSError):  # the supervisor has hung up
        while True:
            pipe.send(_trained(pipe.recv(), pipe))


def _follow() -> None:
    """Stop, with the state saved, when the supervisor is gone."""
    supervisor = parent_process()
    if supervisor is not None:
        supervisor.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _trained(config: Config, pipe: Connection) -> Answer:
    def warned(message: Warning | str) -> None:
        with contextlib.suppress(OSError):
            pipe.send(Warned(str(message)))

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: warned(message)
        try:
            return Over(train(config).status)
        except StoppedError as stopped:
            raise SystemExit(128 + stopped.signal) from None
        except rankwise.RankwiseError as error:
            return Refused(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other runs go on
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}, line {last.lineno}"
            return Refused(f"{type(error).__name__}: {error} ({place}).")


class Worker:
    """The supervisor's end: a process that is started when there is work, and again if it died.

    Args:
        name: What it is called.
        environment: The variables that it finds, beside the supervisor's own.
    """

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self.pipe: Connection | None = None
        self.process: SpawnProcess | None = None
        self._environment = environment

    def give(self, config: Config) -> None:
        """Hand it a run."""
        if self.process is None or not self.process.is_alive():
            self._start()
        if self.pipe is not None:
            with contextlib.suppress(OSError):  # it has just died: that is heard soon
                self.pipe.send(config)

    def answer(self) -> Answer:
        """What it says; how it died, if it did."""
        try:
            if self.pipe is not None and self.pipe.poll():
                return self.pipe.recv()
        except (EOFError, OSError):  # also where its last words broke off
            pass
        return Lost(self._bury())

    def _bury(self) -> str:
        process, self.process = self.process, None
        if process is None:
            return "before it began"
        process.join()
        code = process.exitcode or 0
        return f"by a signal ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"

    def hang_up(self) -> None:
        """Close the pipe, of which a worker with nothing to do dies."""
        if self.pipe is not None:
            self.pipe.close()

    def _start(self) -> None:
        self.hang_up()
        context = get_context("spawn")
        self.pipe, far = context.Pipe()
        # Not daemonic: a run's data loader has processes of its own.
        process = context.Process(target=_serve, args=(far,), name=self.name)
        with far, _environment(self._environment), _uninterrupted():
            process.start()
        # Only now: one that was never started can't be stopped either.
        self.process = process


def heard(workers: Iterable[Worker]) -> list[Worker]:
    """Wait until some of these workers answer or die; which."""
    signs: dict[Any, Worker] = {}
    for worker in workers:
        if worker.process is not None:
            signs |= {worker.pipe: worker, worker.process.sentinel: worker}
    ready = [signs[sign] for sign in connection.wait(list(signs))]
    return list(dict.fromkeys(ready))


def stop(workers: Iterable[Worker], busy: Container[Worker]) -> None:
    """End all of them: runs are saved first. Whatever interrupts that ends them at once."""
    workers = list(workers)
    processes = [worker.process for worker in workers if worker.process is not None]
    idle = [worker.process for worker in workers if worker not in busy]
    try:
        for worker in workers:
            worker.hang_up()
        for process in processes:
            # Who has nothing to do ends by himself: a signal would cut off his tidying up.
            if process not in idle:
                process.terminate()
        for process in processes:
            if process in idle:
                process.join(_PATIENCE)
                process.terminate()
            process.join()
    except BaseException:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        raise


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Libraries size their pools of threads when they are loaded: by what they find then."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits, here and for good in a process that is started meanwhile."""
    if not _HAS_MASKS:
        yield
        return
    resource_tracker.ensure_running()  # starting that one would unblock the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
