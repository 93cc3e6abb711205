"""How a study gets on: a line for each run that is over, and a bar where there is a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from rankwise._text import sanitize, shorten
from rankwise.lab.scores import main_score, score_text
from rankwise.study.events import Began, Ended, Failed

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from rankwise.lab.records import Run
    from rankwise.study.events import Event
    from rankwise.study.progress import StudyProgress

__all__ = ["StudyLive", "format_event", "format_progress", "format_time"]


def format_time(seconds: float) -> str:
    """A time as one speaks of it.

    Example:
        >>> format_time(35.2), format_time(700), format_time(9000)
        ('35 s', '12 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_progress(progress: StudyProgress) -> str:
    """How far a study is, in a line.

    Example:
        >>> from rankwise.study.progress import StudyProgress
        >>> format_progress(StudyProgress(10, 14, 1, 2, 700.0))
        '24 runs: 10 done (1 diverged), 14 left (2 begun), about 12 min'
    """
    words = [
        f"{progress.done} done" + (f" ({progress.diverged} diverged)" if progress.diverged else ""),
        f"{progress.left} left" + (f" ({progress.begun} begun)" if progress.begun else ""),
    ]
    if progress.left and progress.seconds_left is not None:
        words.append(f"about {format_time(progress.seconds_left)}")
    elif progress.left:
        words.append("how long is unknown yet")
    return f"{progress.total} {'run' if progress.total == 1 else 'runs'}: " + ", ".join(words)


def format_event(event: Event, progress: StudyProgress, run: Run | None) -> str:
    """An event in a line; empty where a run has just begun, which is nothing to report."""
    place = f"[{progress.done}/{progress.total}] {event.name}"
    if isinstance(event, Failed):
        return f"{place} failed: {event.error}"
    if isinstance(event, Began):
        again = event.attempt > 1
        return f"{place}: its worker was lost; attempt {event.attempt}" if again else ""
    words = [f"{place} {event.status}", _score(run) if event.status == "finished" else ""]
    line = ": ".join(filter(None, words)) + f" in {format_time(event.seconds)}"
    if progress.left and progress.seconds_left is not None:
        line += f", {format_time(progress.seconds_left)} left"
    return line


def _score(run: Run | None) -> str:
    score = main_score(run.epochs) if run is not None else ""
    value = run.test.get(score) if run is not None else None
    return "" if value is None else f"test {score} {score_text([value], score)}"


class StudyLive:
    """Shows a study on a console; hand it to `run_study(watch=…)`.

    Args:
        console: Where; only a terminal gets a bar that moves.
        progress: How far the study is at first.
    """

    def __init__(self, console: Console, progress: StudyProgress) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal or console.is_dumb_terminal,
        )
        self._whole = self._bar.add_task("study", total=progress.total, note="")
        self._workers: dict[str, TaskID] = {}  # by the run that they are at
        self._show(progress)

    def __enter__(self) -> StudyLive:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def __call__(self, event: Event, progress: StudyProgress, run: Run | None) -> None:
        """Show what has happened."""
        line = format_event(event, progress, run)
        if line:
            self.say(line)
        before = self._workers.pop(event.name, None)
        if before is not None:
            self._bar.remove_task(before)
        if isinstance(event, Began):
            name = shorten(sanitize(event.name), 38)
            self._workers[event.name] = self._bar.add_task(
                shorten(sanitize(event.worker), 14), total=None, note=name
            )
        if isinstance(event, Ended | Failed):
            self._show(progress)

    def say(self, text: str) -> None:
        """Print a sentence, as it is."""
        shown = sanitize(text)
        self._console.print(shown, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _show(self, progress: StudyProgress) -> None:
        words = f"{progress.done}/{progress.total}"
        if progress.left and progress.seconds_left is not None:
            words += f", about {format_time(progress.seconds_left)}"
        self._bar.update(self._whole, completed=progress.done, total=progress.total, note=words)
