"""SIGTERM and Ctrl-C as a wish: the batch is finished and the state saved before the run stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Wish", "listening"]


class Wish:
    """Which signal asked the run to stop, if one did."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Note the signal; a second Ctrl-C stops at once."""
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def listening() -> Iterator[Wish]:
    """Take note of signals instead of dying of them; only a main thread can."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = {number: signal.signal(number, wish) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that was set outside Python can't be given back
                signal.signal(number, handler)
