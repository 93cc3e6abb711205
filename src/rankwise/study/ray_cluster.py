"""Runs on a Ray cluster, which survive the loss of workers and nodes.

Each run is a Ray task that first reports where it is, then how it ended. Runs are written to a
folder that all nodes share. A run whose worker or node is lost continues from its last saved epoch
on any node. Every task locks the run's folder, so that a node which only seems lost and still
trains is never joined by a second writer.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import threading
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from rankwise._machine import count_cores
from rankwise.errors import ConfigError, MissingExtraError, RankwiseError, RunError
from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.run_folder import RunLockedError
from rankwise.lab.training import StoppedError, train
from rankwise.study.runner import RunEnded, RunEvent, RunFailed, RunStarted

_SPARE_TASKS = 2  # beyond the cluster's cores: a free core need not wait, and a cluster may grow
_LOCK_TIMEOUT = 20  # seconds for the data readers of a killed worker to end; torch checks each 5
_CONNECT_TIMEOUT = 10  # seconds for a cluster to answer at all
_STORE_BYTES = 100_000_000  # only options and events pass between tasks


class RayRunner:
    """Trains runs as tasks of a Ray cluster: a core for each run, or a GPU if there are any.

    Runs must be in a folder that all nodes share, and rankwise be installed on each of them. If
    this process is connected to a cluster already, that one is used and stays connected.

    Args:
        address: "auto" for the cluster that this machine is part of, "HOST:PORT" for that of a head
            node, or "local" for a new Ray on this machine's cores.
        retries: How often a run is tried again after its worker or node was lost.

    Raises:
        MissingExtraError: Without Ray.
        ConfigError: If the address is not valid, or there are fewer retries than 0.

    Example:
        >>> from rankwise.lab import Config
        >>> from rankwise.study import RayRunner
        >>> runs = [Config(network="resnet8", epochs=1, seed=seed) for seed in (0, 1)]
        >>> for event in RayRunner("auto").train(runs):  # doctest: +SKIP
        ...     print(event)
    """

    def __init__(self, address: str, retries: int = 2) -> None:
        _import_ray()
        _check_address(address)
        if retries < 0:
            raise ConfigError(f"Expected retries of 0 or more, got {retries}.")
        self.address = address
        self.retries = retries

    def __repr__(self) -> str:
        return f"RayRunner({self.address!r}, retries={self.retries})"

    def train(self, configs: Iterable[Config]) -> Generator[RunEvent, None, None]:
        """Train all runs; see `Runner`. Warnings of a run are repeated here, with its name.

        Raises:
            RunError: If the cluster can't be reached.
        """
        with _connect(self.address):
            tasks = _Tasks(self.retries)
            try:
                yield from tasks.train(iter(configs))
            finally:
                tasks.stop()


def _import_ray() -> Any:  # noqa: ANN401
    """Return Ray, whose annotations don't follow what it does with functions."""
    try:
        import ray  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("ray", "ray", "Training on a cluster") from None
    return ray


def _check_address(address: str) -> None:
    if address.startswith("ray://"):
        raise ConfigError(
            f"Expected a cluster that this machine is part of, got {address!r}: Ray's client does "
            "not report the progress of a task. Start the study on one of the cluster's nodes, "
            "with the address auto."
        )
    if address not in ("auto", "local") and not _split_address(address):
        raise ConfigError(f"Expected the address auto, local or HOST:PORT, got {address!r}.")


def _split_address(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    if host and port.isascii() and port.isdigit() and int(port) < 1 << 16:
        return host.strip("[]"), int(port)
    return None


@contextmanager
def _connect(address: str) -> Iterator[None]:
    """Connect to a cluster, unless this process is connected already."""
    ray = _import_ray()
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # reporting usage is not our choice
        options |= {"num_cpus": count_cores(), "object_store_memory": _STORE_BYTES}
        options |= {"include_dashboard": False}
    server = _split_address(address)
    try:
        try:
            if server:  # Ray itself would try for minutes
                socket.create_connection(server, timeout=_CONNECT_TIMEOUT).close()
            with _keep_signal_handler():
                ray.init(address, **options)
        except Exception as error:  # Ray raises plain ones too, as on a slow start
            reason = str(error).partition("\n")[0].rstrip(".")
            raise RunError(
                f"The Ray cluster {address!r} can't be used: {reason}. Start the study on one of "
                "its nodes, with Ray's token if it asks for one; `ray status` says whether this "
                "machine is a node."
            ) from error
        yield
    finally:
        ray.shutdown()


@contextmanager
def _keep_signal_handler() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which Ray replaces as it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:  # a handler set outside Python can't be restored
            signal.signal(signal.SIGTERM, before)


class _Attempt(NamedTuple):
    config: Config
    name: str
    number: int = 1


class _Lost(NamedTuple):
    """A worker that had to leave its run, and why."""

    reason: str


class _Tasks:
    """The runs that were sent to Ray."""

    def __init__(self, retries: int) -> None:
        self._ray = _import_ray()
        self._retries = retries
        # Ray's own retries would not report a lost worker.
        self._train = self._ray.remote(max_retries=0, num_returns="streaming")(_run_task)
        self._sent: dict[Any, _Attempt] = {}

    def train(self, configs: Iterator[Config]) -> Iterator[RunEvent]:
        while True:
            yield from self._fill(configs)
            if not self._sent:
                return
            (task, *_), _ = self._ray.wait(list(self._sent), num_returns=1)
            event = self._receive(task)
            if event is not None:
                yield event

    def stop(self) -> None:
        """Cancel all tasks, whose runs save their state as after Ctrl-C, and wait for them."""
        for task in self._sent:
            self._ray.cancel(task)
        for task in self._sent:
            with suppress(self._ray.exceptions.RayError):
                for answer in task:
                    self._ray.get(answer)

    def _fill(self, configs: Iterator[Config]) -> Iterator[RunFailed]:
        """Send as many runs as the cluster has cores, and a few; yield those that are refused."""
        while len(self._sent) < self._ray.cluster_resources().get("CPU", 0) + _SPARE_TASKS:
            config = next(configs, None)
            if config is None:
                return
            try:
                self._send(_Attempt(config, resolve(config).name))
            except ConfigError as error:
                yield RunFailed(config.name, str(error), 1)

    def _send(self, run: _Attempt) -> None:
        try:
            Path(run.config.out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{run.config.out} can't be written to: {error.strerror}.") from error
        on_gpu = run.config.accelerator in ("auto", "cuda")
        gpus = int(on_gpu and self._ray.cluster_resources().get("GPU", 0) > 0)
        task = self._train.options(num_cpus=1, num_gpus=gpus, name=run.name)
        self._sent[task.remote(run, str(Path.cwd()))] = run

    def _receive(self, task: Any) -> RunEvent | None:  # noqa: ANN401
        """Return a task's event; None if its worker was lost and the run is sent again."""
        run = self._sent[task]
        event = self._get(task, run)
        if isinstance(event, RunStarted):
            return event
        del self._sent[task]
        if not isinstance(event, _Lost):
            return event
        if run.number <= self._retries:
            self._send(run._replace(number=run.number + 1))
            return None
        times = "once" if run.number == 1 else f"{run.number} times"
        return RunFailed(run.name, f"Its worker was lost {times}: {event.reason}.", run.number)

    def _get(self, task: Any, run: _Attempt) -> RunEvent | _Lost:  # noqa: ANN401
        try:
            event, messages = self._ray.get(next(task))
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause  # nothing that training raises on purpose
            return RunFailed(run.name, f"{type(cause).__name__}: {cause}", run.number)
        except self._ray.exceptions.RayError as error:
            return _Lost(f"{type(error).__name__}, see Ray's logs")
        for text in messages:
            warnings.warn(f"{run.name}: {text}", UserWarning, stacklevel=5)
        return event


def _run_task(run: _Attempt, folder: str) -> Iterator[tuple[RunEvent | _Lost, list[str]]]:
    """Train a run on a node: yield where it is, then how it ended, with its warnings."""
    yield RunStarted(run.name, f"{platform.node()}, process {os.getpid()}", run.number), []
    with warnings.catch_warnings(record=True) as caught:
        event = _train_run(run, folder)
    yield event, [str(warning.message) for warning in caught]


def _train_run(run: _Attempt, folder: str) -> RunEvent | _Lost:
    started = time.perf_counter()
    try:
        _enter(folder, run.config)
        if run.number > 1:
            _wait_for_lock(run)
        status = train(run.config).status
    except StoppedError:  # by the node's SIGTERM, or by `stop`, which does not read this
        return _Lost("its node stopped it")
    except RankwiseError as error:
        return RunFailed(run.name, str(error), run.number, isinstance(error, RunLockedError))
    return RunEnded(run.name, status, time.perf_counter() - started)


def _enter(folder: str, config: Config) -> None:
    """Go where the study was started, so that relative paths mean the same."""
    if config.devices > 1:
        raise ConfigError(f"Expected devices to be 1 on a Ray cluster, got {config.devices}.")
    try:
        os.chdir(folder)
        exists = Path(config.out).is_dir()
    except OSError:
        exists = False
    if not exists:
        raise RunError(
            f"{platform.node()} does not see the folder {Path(folder, config.out)}. Start the "
            "study in a folder that all nodes share, and have --out there too."
        )


def _wait_for_lock(run: _Attempt) -> None:
    """Wait until a lost worker has released the run; its data readers end seconds after it."""
    path = Path(run.config.out, run.name, ".lock")
    with suppress(OSError), FileLock(path, timeout=_LOCK_TIMEOUT):
        pass  # if there is no folder, or the lock is never released, `train` raises the error
