"""Run a study: train what is left of it, tuning first, until all is done or it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple, Protocol

from rankwise.lab.config import Config
from rankwise.lab.records import Run
from rankwise.lab.training import StoppedError
from rankwise.study.grid import Study
from rankwise.study.progress import StudyProgress, StudyState


class RunStarted(NamedTuple):
    """A worker has started or continued a run."""

    name: str
    worker: str  # "process 2", or a node's name
    attempt: int = 1  # more after a worker was lost


class RunEnded(NamedTuple):
    """A run is over."""

    name: str
    status: str  # "finished" or "diverged"
    seconds: float  # that the worker took


class RunFailed(NamedTuple):
    """A run was given up; the others continue."""

    name: str
    error: str  # a sentence
    attempts: int
    locked: bool = False  # whether the reason is that another process is training it


RunEvent = RunStarted | RunEnded | RunFailed
EventHandler = Callable[[RunEvent, StudyProgress, Run | None], None]


class Runner(Protocol):
    """Trains runs: `LocalRunner` on this machine, `RayRunner` on a cluster."""

    def train(self, configs: Iterable[Config]) -> Generator[RunEvent, None, None]:
        """Train all runs; yield each event as it happens, in any order.

        Closing the generator stops the workers as SIGTERM does, with all states saved, and waits
        for them.
        """
        ...


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """How a study was left.

    Attributes:
        progress: How far it is.
        failed: The runs that were given up, with reasons.
        locked: The names of runs that another process is training.
    """

    progress: StudyProgress
    failed: tuple[RunFailed, ...]
    locked: tuple[str, ...]


def run_study(
    study: Study, runner: Runner, *, on_event: EventHandler | None = None
) -> StudyOutcome:
    """Train what is left of a study.

    Args:
        study: A study, with the folders of its runs and data.
        runner: Trains the runs.
        on_event: Called with each event, the progress, and the run if it is over.

    Raises:
        StoppedError: After SIGTERM or Ctrl-C; all states are saved.

    Example:
        >>> from rankwise.study import LocalRunner, read_study, run_study
        >>> study = read_study("studies/cpu/table_1a.toml")  # doctest: +SKIP
        >>> run_study(study, LocalRunner(jobs=2)).progress.left  # doctest: +SKIP
        0
    """
    tried: set[str] = set()
    failed: list[RunFailed] = []
    with _stop_on_signals():
        while True:
            # Tuning of one round decides the trials of the next.
            state = StudyState(study)
            ready = [config for name, config in state.left.items() if name not in tried]
            if not ready:
                break
            tried.update(config.name for config in ready)
            # Tuning first, since trials wait for it; then long runs, so that none is left alone.
            ready.sort(key=lambda run: (not run.validate, -(state.estimate(run) or 0.0)))
            failed += _train_round(state, ready, runner, on_event)
    left = [event for event in failed if event.name in state.left]
    return StudyOutcome(
        state.progress(),
        tuple(event for event in left if not event.locked),
        tuple(event.name for event in left if event.locked),
    )


def _train_round(
    state: StudyState, configs: list[Config], runner: Runner, on_event: EventHandler | None
) -> list[RunFailed]:
    """Train these runs; return those that failed."""
    failed: list[RunFailed] = []
    active: set[str] = set()
    most = 1
    with closing(runner.train(configs)) as events:
        for event in events:
            run = None
            if isinstance(event, RunStarted):
                active.add(event.name)
                most = max(most, len(active))
            else:
                active.discard(event.name)
            if isinstance(event, RunEnded):
                run = state.end(event.name, event.status)
            if isinstance(event, RunFailed):
                failed.append(event)
            if on_event is not None:
                on_event(event, state.progress(most), run)
    return failed


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Turn the first SIGTERM or Ctrl-C into an exception, which lets the workers save their runs.

    A second Ctrl-C ends them at once. Only a main thread can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        received.append(number)
        if len(received) == 1 or number == signal.SIGINT:
            raise KeyboardInterrupt  # which no `except Exception` catches

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except KeyboardInterrupt:
        text = "Stopped; the runs in progress are saved. Repeat the command to continue."
        raise StoppedError(text, (received or [signal.SIGINT])[0]) from None
    finally:
        for number, handler in before.items():
            if handler is not None:  # a handler set outside Python can't be restored
                signal.signal(number, handler)
