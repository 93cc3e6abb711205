"""Run a study: what is left of it, tuning first, until all is done or someone says stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType

from rankwise.lab.config import Config
from rankwise.lab.records import Run
from rankwise.lab.training import StoppedError
from rankwise.study.events import Began, Crew, Ended, Event, Failed
from rankwise.study.grid import Study
from rankwise.study.progress import StudyProgress, Tally

__all__ = ["StudyOutcome", "Watch", "run_study"]

_HELD = "Another process is training "  # as RunLockedError says it

Watch = Callable[[Event, StudyProgress, Run | None], None]


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """How a study was left.

    Attributes:
        progress: How far it is now.
        failed: The runs that were given up, with reasons.
        held: The runs that another process is at.
    """

    progress: StudyProgress
    failed: tuple[Failed, ...]
    held: tuple[str, ...]


def run_study(study: Study, crew: Crew, *, watch: Watch | None = None) -> StudyOutcome:
    """Train what is left of a study.

    Args:
        study: A study, placed where its runs and data are.
        crew: Those who train.
        watch: Is told of each event, how far the study is then, and the run if it is over.

    Raises:
        StoppedError: If SIGTERM or Ctrl-C came; all states are saved.

    Example:
        >>> from rankwise.study.grid import read_study
        >>> from rankwise.study.local import LocalCrew
        >>> study = read_study("studies/cpu/table_1a.toml")  # doctest: +SKIP
        >>> run_study(study, LocalCrew(jobs=2)).progress.left  # doctest: +SKIP
        0
    """
    tried: set[str] = set()
    failed: list[Failed] = []
    with _stoppable():
        while True:
            # Each round learns from the one before which values tuning has found.
            tally = Tally(study)
            ahead = [config for name, config in tally.left.items() if name not in tried]
            if not ahead:
                break
            tried.update(config.name for config in ahead)
            failed += _round(tally, sorted(ahead, key=_order(tally)), crew, watch)
    lost = [event for event in failed if event.name in tally.left]
    return StudyOutcome(
        tally.progress(),
        tuple(event for event in lost if not event.error.startswith(_HELD)),
        tuple(event.name for event in lost if event.error.startswith(_HELD)),
    )


def _round(tally: Tally, ahead: list[Config], crew: Crew, watch: Watch | None) -> list[Failed]:
    """Have these runs trained; those that failed."""
    failed: list[Failed] = []
    at_work: set[str] = set()
    most = 1
    with closing(crew.work(ahead)) as events:
        for event in events:
            run = None
            if isinstance(event, Began):
                at_work.add(event.name)
                most = max(most, len(at_work))
            else:
                at_work.discard(event.name)
            if isinstance(event, Ended):
                run = tally.end(event.name, event.status)
            if isinstance(event, Failed):
                failed.append(event)
            if watch is not None:
                watch(event, tally.progress(most), run)
    return failed


def _order(tally: Tally) -> Callable[[Config], tuple[bool, float]]:
    """Tuning first, since others wait for it; then long runs, so that none is left at the end."""
    return lambda config: (not config.validate, -(tally.estimate(config) or 0.0))


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn the first SIGTERM or Ctrl-C into an exception, which ends the crew's work gently.

    A second Ctrl-C is another one, which ends it at once. Only a main thread can listen.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        heard.append(number)
        if len(heard) == 1 or number == signal.SIGINT:
            raise KeyboardInterrupt  # which no `except Exception` takes for an error of a run

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except KeyboardInterrupt:
        text = "Stopped; what was begun is saved. The same command goes on from there."
        raise StoppedError(text, (heard or [signal.SIGINT])[0]) from None
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that was set outside Python can't be given back
                signal.signal(number, handler)
