"""A crew on a Ray cluster, which outlives the loss of its workers and nodes.

Each run is a Ray task that first tells where it is, then how it ended. Runs are written to a folder
that all nodes share: one that loses its worker goes on from its last saved epoch, on any node.
"""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

import rankwise
from rankwise.errors import ConfigError, RunError
from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.training import StoppedError, train
from rankwise.study.events import Began, Ended, Event, Failed
from rankwise.study.join import check_address, joined, ray_package

__all__ = ["RayCrew"]

_SPARE = 2  # tasks beyond the cluster's cores: a free core need not wait, and a cluster may grow
_LINGER = 20  # seconds for the readers of a killed worker to end; torch's look each 5


class RayCrew:
    """Tasks on a Ray cluster: a core for each run, or a GPU where the cluster has any.

    Runs must be in a folder that all nodes share, and rankwise be installed on each of them. A Ray
    that this process has joined already is used, and left as it is.

    Args:
        address: "auto" for the cluster that this machine is part of, "HOST:PORT" for that of a head
            node, or "local" for a Ray of its own on this machine's cores.
        retries: How often a run is tried again whose worker was lost.

    Raises:
        MissingExtraError: Without Ray.
        ConfigError: If the address is none, or there are fewer retries than 0.

    Example:
        >>> from rankwise.lab import Config
        >>> from rankwise.study.cluster import RayCrew
        >>> runs = [Config(network="resnet8", epochs=1, seed=seed) for seed in (0, 1)]
        >>> for event in RayCrew("auto").work(runs):  # doctest: +SKIP
        ...     print(event)
    """

    def __init__(self, address: str, retries: int = 2) -> None:
        ray_package()
        check_address(address)
        if retries < 0:
            raise ConfigError(f"Expected retries of 0 or more, got {retries}.")
        self.address = address
        self.retries = retries

    def work(self, configs: Iterable[Config]) -> Generator[Event, None, None]:
        """Train all of these; see `Crew`.

        Warnings of a run are repeated here, with its name.

        Raises:
            RunError: If the cluster can't be reached.
        """
        with joined(self.address):
            tasks = _Tasks(self.retries)
            try:
                yield from tasks.work(iter(configs))
            finally:
                tasks.stop()


class _Try(NamedTuple):
    config: Config
    name: str
    attempt: int = 1


class _Lost(NamedTuple):
    """A worker that had to leave its run, and why."""

    reason: str


class _Tasks:
    """The runs that Ray has been given."""

    def __init__(self, retries: int) -> None:
        self._ray = ray_package()
        self._retries = retries
        # Ray's own retries would not tell of a lost worker.
        self._train = self._ray.remote(max_retries=0, num_returns="streaming")(_train)
        self._sent: dict[Any, _Try] = {}

    def work(self, configs: Iterator[Config]) -> Iterator[Event]:
        while True:
            yield from self._fill(configs)
            if not self._sent:
                return
            (task, *_), _ = self._ray.wait(list(self._sent), num_returns=1)
            event = self._heard(task)
            if event is not None:
                yield event

    def stop(self) -> None:
        """Ask all tasks to stop, which runs take as Ctrl-C and save their state; wait for them."""
        for task in self._sent:
            self._ray.cancel(task)
        for task in self._sent:
            with suppress(self._ray.exceptions.RayError):
                for answer in task:
                    self._ray.get(answer)

    def _fill(self, configs: Iterator[Config]) -> Iterator[Failed]:
        """Send as many runs as the cluster has cores, and a few; tell of those that are refused."""
        while len(self._sent) < self._ray.cluster_resources().get("CPU", 0) + _SPARE:
            config = next(configs, None)
            if config is None:
                return
            try:
                self._send(_Try(config, resolve(config).name))
            except ConfigError as error:
                yield Failed(config.name, str(error), 1)

    def _send(self, run: _Try) -> None:
        _make_folder(run.config)
        on_gpu = run.config.accelerator in ("auto", "cuda")
        gpus = int(on_gpu and self._ray.cluster_resources().get("GPU", 0) > 0)
        task = self._train.options(num_cpus=1, num_gpus=gpus, name=run.name)
        self._sent[task.remote(run, str(Path.cwd()))] = run

    def _heard(self, task: Any) -> Event | None:  # noqa: ANN401
        """What a task tells; none where its worker was lost and the run is sent again."""
        run = self._sent[task]
        event = self._answer(task, run)
        if isinstance(event, Began):
            return event
        del self._sent[task]
        if not isinstance(event, _Lost):
            return event
        if run.attempt <= self._retries:
            self._send(run._replace(attempt=run.attempt + 1))
            return None
        times = "once" if run.attempt == 1 else f"{run.attempt} times"
        return Failed(run.name, f"Its worker was lost {times}, now {event.reason}.", run.attempt)

    def _answer(self, task: Any, run: _Try) -> Event | _Lost:  # noqa: ANN401
        try:
            event, noticed = self._ray.get(next(task))
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause  # nothing that training raises on purpose
            return Failed(run.name, f"{type(cause).__name__}: {cause}", run.attempt)
        except self._ray.exceptions.RayError as error:
            return _Lost(f"by {type(error).__name__}, of which Ray's logs know more")
        for text in noticed:
            warnings.warn(f"{run.name}: {text}", UserWarning, stacklevel=5)
        return event


def _train(run: _Try, folder: str) -> Iterator[tuple[Event | _Lost, list[str]]]:
    """What a task does, on its node: it tells who is at the run, then how that ended."""
    yield Began(run.name, f"{platform.node()}, process {os.getpid()}", run.attempt), []
    with warnings.catch_warnings(record=True) as noticed:
        event = _outcome(run, folder)
    yield event, [str(warning.message) for warning in noticed]


def _outcome(run: _Try, folder: str) -> Event | _Lost:
    began = time.perf_counter()
    try:
        _enter(folder, run.config)
        if run.attempt > 1:
            _await_lock(run)
        status = train(run.config).status
    except StoppedError:  # by the node's SIGTERM, or by the crew, which does not read this then
        return _Lost("as its node asked it to stop")
    except rankwise.RankwiseError as error:
        return Failed(run.name, str(error), run.attempt)
    return Ended(run.name, status, time.perf_counter() - began)


def _enter(folder: str, config: Config) -> None:
    """Go where the study was started, so that relative paths mean the same; runs must be there."""
    if config.devices > 1:
        raise ConfigError(f"Expected devices to be 1 on a Ray cluster, got {config.devices}.")
    try:
        os.chdir(folder)
        found = Path(config.out).is_dir()
    except OSError:
        found = False
    if not found:
        raise RunError(
            f"{platform.node()} does not see the folder {Path(folder, config.out)}. Start the "
            "study in a folder that all nodes share, and have --out there too."
        )


def _await_lock(run: _Try) -> None:
    """A killed worker's own readers of images hold its run until they notice, seconds later."""
    with suppress(OSError), FileLock(Path(run.config.out, run.name, ".lock"), timeout=_LINGER):
        pass  # where there is no folder or no end to it, train says so


def _make_folder(config: Config) -> None:
    try:
        Path(config.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{config.out} can't be written to: {error.strerror}.") from error
