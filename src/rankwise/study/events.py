"""What a crew tells of its work on many runs, wherever it works."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple, Protocol

from rankwise.lab.config import Config

__all__ = ["Began", "Crew", "Ended", "Event", "Failed"]


class Began(NamedTuple):
    """A worker has taken up a run.

    Attributes:
        name: The run's, as its folder's.
        worker: Who, as in "process 2" or a node's name.
        attempt: 1 for the first; more where a worker was lost.
    """

    name: str
    worker: str
    attempt: int = 1


class Ended(NamedTuple):
    """A run is over.

    Attributes:
        name: The run's.
        status: "finished" or "diverged".
        seconds: How long the worker had it.
    """

    name: str
    status: str
    seconds: float


class Failed(NamedTuple):
    """A run was given up; the others go on.

    Attributes:
        name: The run's.
        error: A sentence.
        attempts: How often it was tried.
    """

    name: str
    error: str
    attempts: int


Event = Began | Ended | Failed


class Crew(Protocol):
    """Those who work on runs."""

    def work(self, configs: Iterable[Config]) -> Generator[Event, None, None]:
        """Train all of these; tell of each as it happens, in any order.

        Closing the generator stops the workers as SIGTERM does, with all states saved, and waits
        for them.
        """
        ...
