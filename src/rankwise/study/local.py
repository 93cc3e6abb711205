"""Runs on this machine: worker processes, and a supervisor that survives the loss of any of them.

Each worker trains one run after the other. A worker that dies is replaced, and its run continues
from its last saved epoch. When the supervisor dies, its workers save their runs and end.

Workers import the program's main module again, as multiprocessing's always do: a script that uses
`LocalRunner` does so below `if __name__ == "__main__":`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Container, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rankwise._machine import count_cores
from rankwise.errors import ConfigError, RankwiseError
from rankwise.lab.config import Config
from rankwise.lab.data import cache_datasets
from rankwise.lab.defaults import resolve
from rankwise.lab.run_folder import RunLockedError
from rankwise.lab.training import StoppedError, train
from rankwise.study.runner import RunEnded, RunEvent, RunFailed, RunStarted

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
_IDLE_TIMEOUT = 60  # seconds for an idle worker to end, also on a busy machine
_HAS_MASKS = hasattr(signal, "pthread_sigmask")  # Windows has none


class LocalRunner:
    """Trains runs in processes on this machine.

    Args:
        jobs: How many; by default one for each CUDA device, or for each core without any. They
            share the cores, unless OMP_NUM_THREADS is set.
        retries: How often a run is tried again after its worker was lost.

    Raises:
        ConfigError: If there are fewer jobs than 1 or fewer retries than 0.

    Example:
        >>> from rankwise.lab import Config
        >>> from rankwise.study import LocalRunner
        >>> runs = [Config(network="resnet8", epochs=1, seed=seed) for seed in (0, 1)]
        >>> for event in LocalRunner(jobs=2).train(runs):  # doctest: +SKIP
        ...     print(event)
    """

    def __init__(self, jobs: int | None = None, retries: int = 2) -> None:
        if jobs is not None and jobs < 1:
            raise ConfigError(f"Expected jobs of 1 or more, got {jobs}.")
        if retries < 0:
            raise ConfigError(f"Expected retries of 0 or more, got {retries}.")
        self.jobs = jobs or len(_list_cuda_devices()) or count_cores()
        self.retries = retries

    def __repr__(self) -> str:
        return f"LocalRunner(jobs={self.jobs}, retries={self.retries})"

    def train(self, configs: Iterable[Config]) -> Generator[RunEvent, None, None]:
        """Train all runs; see `Runner`. Warnings of a run are repeated here, with its name."""
        waiting = deque(_Attempt(config, _name_run(config)) for config in configs)
        workers = [_Worker(f"process {n + 1}", self._environment(n)) for n in range(self.jobs)]
        busy: dict[_Worker, _Attempt] = {}
        try:
            while waiting or busy:
                for worker in workers:
                    if waiting and worker not in busy:
                        attempt = busy[worker] = waiting.popleft().start()
                        worker.send(attempt.config)
                        yield RunStarted(attempt.name, worker.name, attempt.number)
                for worker in _wait_for_answers(busy):
                    answer = worker.receive()
                    if isinstance(answer, _Warned):
                        warnings.warn(f"{busy[worker].name}: {answer.text}", stacklevel=2)
                        continue
                    attempt = busy.pop(worker)
                    if isinstance(answer, _Lost) and attempt.number <= self.retries:
                        waiting.appendleft(attempt)
                    else:
                        yield attempt.end(answer)
        finally:
            _stop(workers, busy)

    def _environment(self, number: int) -> dict[str, str]:
        """Return a worker's variables: its share of the cores, and one CUDA device if any."""
        threads = str(max(1, count_cores() // self.jobs))
        variables = {}
        if "OMP_NUM_THREADS" not in os.environ:
            variables = dict.fromkeys(_THREAD_VARIABLES, threads)
        devices = _list_cuda_devices()
        if devices:
            variables[_CUDA_VARIABLE] = devices[number % len(devices)]
        return variables


def _name_run(config: Config) -> str:
    """Return the name of a run's folder; the worker refuses options that are not valid."""
    try:
        return resolve(config).name
    except ConfigError:
        return config.name


def _list_cuda_devices() -> list[str]:
    """Return the CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if not torch.cuda.is_available():
        return []
    given = os.environ.get(_CUDA_VARIABLE)
    return given.split(",") if given else [str(n) for n in range(torch.cuda.device_count())]


class _Ended(NamedTuple):
    """A worker's answer: the run is over."""

    status: str


class _Failed(NamedTuple):
    """A worker's answer: the run can't be trained, and trying again would not help."""

    error: str
    locked: bool = False


class _Warned(NamedTuple):
    """A worker's message: a warning of the run."""

    text: str


class _Lost(NamedTuple):
    """Stands for an answer if the process is dead."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A run, and how often a worker has taken it."""

    config: Config
    name: str
    number: int = 0
    since: float = 0.0

    def start(self) -> _Attempt:
        return replace(self, number=self.number + 1, since=time.monotonic())

    def end(self, answer: _Ended | _Failed | _Lost) -> RunEvent:
        if isinstance(answer, _Ended):
            return RunEnded(self.name, answer.status, time.monotonic() - self.since)
        if isinstance(answer, _Failed):
            return RunFailed(self.name, answer.error, self.number, answer.locked)
        times = f"{self.number} times, the last time " if self.number > 1 else ""
        error = f"Its process ended {times}{answer.reason}; it may have run out of memory."
        return RunFailed(self.name, f"{error} Saved states are kept.", self.number)


class _Worker:
    """The supervisor's side of a process, which is started when there is work, again if it died."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self.pipe: Connection | None = None
        self.process: SpawnProcess | None = None
        self._environment = environment

    def send(self, config: Config) -> None:
        if self.process is None or not self.process.is_alive():
            self._start()
        if self.pipe is not None:
            with contextlib.suppress(OSError):  # it has just died, which is noticed soon
                self.pipe.send(config)

    def receive(self) -> _Ended | _Failed | _Warned | _Lost:
        try:
            if self.pipe is not None and self.pipe.poll():
                return self.pipe.recv()
        except (EOFError, OSError):  # also where its last message is incomplete
            pass
        process, self.process = self.process, None
        if process is None:
            return _Lost("before it started")
        process.join()
        code = process.exitcode or 0
        return _Lost(
            f"by a signal ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
        )

    def close(self) -> None:
        """Close the pipe, which ends an idle worker."""
        if self.pipe is not None:
            self.pipe.close()

    def _start(self) -> None:
        self.close()
        context = get_context("spawn")
        self.pipe, far = context.Pipe()
        # Not daemonic: a run's data loader has processes of its own.
        process = context.Process(target=_serve, args=(far,), name=self.name)
        with far, _set_environment(self._environment), _block_interrupts():
            process.start()
        # Only now: a process that was never started can't be stopped either.
        self.process = process


def _wait_for_answers(workers: Iterable[_Worker]) -> list[_Worker]:
    """Wait until some workers answer or die; return them."""
    sources: dict[Any, _Worker] = {}
    for worker in workers:
        if worker.process is not None:
            sources |= {worker.pipe: worker, worker.process.sentinel: worker}
    return list(dict.fromkeys(sources[ready] for ready in connection.wait(list(sources))))


def _stop(workers: Iterable[_Worker], busy: Container[_Worker]) -> None:
    """End all workers after they have saved their runs; at once if that is interrupted."""
    workers = list(workers)
    running = [(worker.process, worker in busy) for worker in workers if worker.process is not None]
    try:
        for worker in workers:
            worker.close()
        for process, is_busy in running:
            if is_busy:  # an idle worker ends by itself: a signal would cut off its cleanup
                process.terminate()
        for process, is_busy in running:
            if not is_busy:
                process.join(_IDLE_TIMEOUT)
                process.terminate()
            process.join()
    except BaseException:
        for process, _ in running:
            process.kill()
        for process, _ in running:
            process.join()
        raise


@contextlib.contextmanager
def _set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a process to inherit: libraries read them when they are loaded."""
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
def _block_interrupts() -> Iterator[None]:
    """Block Ctrl-C here, and for good in a process that is started meanwhile."""
    if not _HAS_MASKS:
        yield
        return
    resource_tracker.ensure_running()  # starting it later would unblock the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection) -> None:
    """Train the runs that come through the pipe, until it is closed: a worker's main function."""
    if _HAS_MASKS:
        # Ctrl-C in a terminal reaches every process. The supervisor decides what it means.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=_stop_with_supervisor, daemon=True).start()
    # Data that several runs share is read once.
    with cache_datasets(), contextlib.suppress(EOFError, OSError):  # the supervisor closed the pipe
        while True:
            pipe.send(_train_run(pipe.recv(), pipe))


def _stop_with_supervisor() -> None:
    """Stop, with the state saved, when the supervisor is gone."""
    supervisor = parent_process()
    if supervisor is not None:
        supervisor.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _train_run(config: Config, pipe: Connection) -> _Ended | _Failed:
    def send_warning(message: Warning | str) -> None:
        with contextlib.suppress(OSError):
            pipe.send(_Warned(str(message)))

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: send_warning(message)
        try:
            return _Ended(train(config).status)
        except StoppedError as stopped:
            raise SystemExit(128 + stopped.signal) from None
        except RankwiseError as error:
            return _Failed(str(error), isinstance(error, RunLockedError))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other runs go on
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}, line {last.lineno}"
            return _Failed(f"{type(error).__name__}: {error} ({place}).")
