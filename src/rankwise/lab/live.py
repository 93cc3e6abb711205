"""How a run gets on, while it does: a bar on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import rankwise
from rankwise._text import sanitize

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from rankwise.lab.job import Job
    from rankwise.lab.records import EpochRecord, Run

__all__ = ["Live", "Silent", "Watch", "format_epoch"]

# Which figure of a test is shown, by the first of these that it has.
_SHOWN = {"accuracy": "acc {:.1%}", "perplexity": "ppl {:.1f}", "frechet": "FD {:.1f}"}


class Watch(Protocol):
    """Is told how runs get on."""

    def say(self, text: str) -> None:
        """A sentence."""

    def begin(self, job: Job) -> None:
        """A run begins or goes on."""

    def batch(self, job: Job) -> None:
        """A batch is over."""

    def epoch(self, job: Job, record: EpochRecord) -> None:
        """An epoch is over and saved."""

    def end(self, run: Run) -> None:
        """A run is over, now or before."""


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def begin(self, job: Job) -> None:
        """Nothing."""

    def batch(self, job: Job) -> None:
        """Nothing."""

    def epoch(self, job: Job, record: EpochRecord) -> None:
        """Nothing."""

    def end(self, run: Run) -> None:
        """Nothing."""


class Live:
    """Shows runs on a console.

    Args:
        console: Where; only a terminal gets a bar that moves.

    Raises:
        MissingExtraError: Without rich.
    """

    def __init__(self, console: Console) -> None:
        try:
            from rich import progress  # noqa: PLC0415
        except ImportError:
            raise rankwise.MissingExtraError("rich", "lab", "Showing progress") from None
        self._console = console
        self._moving = console.is_terminal and not console.is_dumb_terminal
        self._bar = progress.Progress(
            progress.BarColumn(bar_width=12),
            progress.TextColumn("{task.fields[epochs]}"),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[figures]}", markup=False),
            console=console,
            transient=True,
        )
        self._task: Any = None

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def say(self, text: str) -> None:
        """Print a sentence."""
        # As it is: a path is not broken into lines, nor is ":cat:" in it made a picture; but
        # nothing in it reaches the terminal as a command.
        self._console.print(
            sanitize(text), markup=False, emoji=False, highlight=False, soft_wrap=True
        )

    def begin(self, job: Job) -> None:
        """Say which run it is and where it goes on."""
        start = f", from epoch {job.epoch + 1} on" if job.epoch or job.batch else ""
        config = job.config
        self.say(
            f"{config.network} on {config.data} by {config.optimizer}, seed {config.seed}{start}"
        )
        if self._moving:
            self._task = self._bar.add_task("", total=1.0, epochs="", figures="")
            self._bar.start()
            self.batch(job)

    def batch(self, job: Job) -> None:
        """Move the bar."""
        if self._moving:
            total = f"/{job.budget.epochs}" if job.budget.epochs else ""
            self._bar.update(
                self._task, completed=min(job.progress, 1.0), epochs=f"{job.epoch}{total}"
            )

    def epoch(self, job: Job, record: EpochRecord) -> None:
        """Show the epoch's figures."""
        figures = format_epoch(record)
        if self._moving:
            self._bar.update(self._task, figures=figures)
            self.batch(job)
        else:
            self.say(f"  epoch {record.epoch:3}  {figures}")

    def end(self, run: Run) -> None:
        """Say how it ended."""
        self._close()
        self.say(f"  {run.status} after {run.epoch} epochs: {format_epoch(run.last)}")
        self.say(f"  {run.folder}")

    def _close(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._bar.stop()
            self._task = None


def format_epoch(record: EpochRecord | None) -> str:
    """An epoch's figures in a line: loss, the test's score, Q, the range of the rates."""
    if record is None:
        return "nothing yet"
    parts = [_number("loss {:.3f}", record.train.get("loss"))]
    for name, form in _SHOWN.items():
        if name in record.test:
            parts.append(_number(form, record.test[name]))
    parts.append(_number("Q {:.3f}", record.quality))
    if record.rates:
        least, largest = (_number("{:.2g}", rate) for rate in record.rates)
        parts.append(f"η {least}" if least == largest else f"η {least}…{largest}")
    return "  ".join(parts)


def _number(form: str, value: float | None) -> str:
    if value is None:
        return form.split("{", maxsplit=1)[0] + "–"
    return form.format(value)
