"""A progress bar with the time left, on a terminal and only where the wait is worth it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from rankwise._text import sanitize, shorten
from rankwise.cli.console import stderr_console

if TYPE_CHECKING:
    from types import TracebackType

    from rankwise.probes.survey import Progress as Step

__all__ = ["ProgressBar"]

PATIENCE = 0.7  # seconds


class ProgressBar:
    """Hand it to `probe(progress=…)`; it shows itself once the work takes longer than that.

    It is erased when the work is done, so that nothing of it is left above the table.
    """

    def __init__(self) -> None:
        console = stderr_console()
        self._watched = console.is_terminal and not console.is_dumb_terminal
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("Probing"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[layer]}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, layer="")

    def __call__(self, step: Step) -> None:
        """Take note of the layer just finished."""
        layer = shorten(sanitize(step.name), 36)
        self._bar.update(self._task, completed=step.done, total=step.total, layer=layer)
        if self._watched and time.monotonic() - self._began > PATIENCE:
            self._bar.start()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar.live.is_started:  # a bar that never was would still end with a line break
            self._bar.stop()
