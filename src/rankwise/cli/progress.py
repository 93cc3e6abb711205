"""The progress bar of all commands: rows with a label, a bar, the time left and a note."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn
from rich.text import Text

from rankwise._text import format_count, sanitize, shorten
from rankwise.cli.output import make_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import Task, TaskID
    from typing_extensions import Self

    import rankwise

_SHOW_AFTER = 0.7  # seconds of probing before the bar appears
_LABEL_WIDTH = 14
_FIXED_WIDTH = 44  # of all columns but the note


class ProgressBar:
    """Show the progress of one job or several on a terminal; erase it at the end.

    The console is stderr by default. Without a terminal no bar is shown, and only `print` has an
    effect. The bar appears after a delay in seconds.
    """

    def __init__(self, console: Console | None = None, *, delay: float = 0.0) -> None:
        self._console = console or make_console(sys.stderr)
        self._start = time.monotonic() + delay
        self._rows: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TaskProgressColumn(show_speed=False),
            _TimeColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console,
            transient=True,
        )

    @property
    def is_visible(self) -> bool:
        """Whether the console is a terminal that can show a bar."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def update(
        self,
        label: str,
        *,
        done: float = 0.0,
        total: float | None = None,
        note: str = "",
        key: str = "",
        seconds_left: float | None = None,
    ) -> None:
        """Add the row of a key, or change it; without a total the elapsed time is shown.

        `seconds_left` is for where the time left is known better than from the bar's speed.
        """
        if not self.is_visible:
            return
        is_new = key not in self._rows
        if is_new:
            self._rows[key] = self._progress.add_task("", total=total, note="", seconds_left=None)
        self._progress.update(
            self._rows[key],
            description=shorten(sanitize(label), _LABEL_WIDTH),
            completed=done,
            total=total,
            note=shorten(sanitize(note), max(self._console.width - _FIXED_WIDTH, 16)),
            seconds_left=seconds_left,
            refresh=is_new,
        )
        if time.monotonic() >= self._start:
            self._progress.start()

    def remove(self, key: str = "") -> None:
        """Remove a row; do nothing if there is none."""
        row = self._rows.pop(key, None)
        if row is not None:
            self._progress.remove_task(row)
            self._progress.refresh()

    def print(self, text: str) -> None:
        """Print a line above the bar: not wrapped, and safe for any text."""
        self._console.print(Text(sanitize(text)), soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress.live.is_started:  # rich prints an empty line for a bar never started
            self._progress.stop()


@contextmanager
def show_probing(
    label: str = "Probing", *, resumes: bool = False
) -> Iterator[Callable[[rankwise.Progress], None]]:
    """Show a bar while weights are probed; yield a function that moves it.

    `resumes` says whether layers are kept, so that the same command continues where it stopped.
    """
    cached = 0

    def update(now: rankwise.Progress) -> None:
        nonlocal cached
        cached = now.cached
        bar.update(label, done=now.done, total=now.total, note=now.name)

    with ProgressBar(delay=_SHOW_AFTER) as bar:
        try:
            yield update
        except KeyboardInterrupt:
            if resumes:
                bar.print("Stopped. Repeat the command to continue: large layers are kept.")
            raise
    if cached:
        layers = format_count(cached, "layer")
        bar.print(f"{layers} known from an earlier run; --no-cache measures all again.")


class _TimeColumn(ProgressColumn):
    """The time left; the elapsed time where the total is unknown."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        given = task.fields["seconds_left"]
        left = task.time_remaining if given is None else given
        seconds = task.elapsed if task.total is None else left
        text = "-:--:--" if seconds is None else str(timedelta(seconds=int(seconds)))
        return Text(text, "progress.remaining")
