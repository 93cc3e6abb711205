"""The progress of runs on a console: a bar on a terminal, a line per epoch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise._text import format_count
from rankwise.cli.progress import ProgressBar
from rankwise.lab.callbacks import Callback

if TYPE_CHECKING:
    from rich.console import Console

    from rankwise.lab.records import EpochRecord, Run
    from rankwise.lab.training_state import TrainingState

# How the test scores are shown.
_FORMATS = {"accuracy": "acc {:.1%}", "perplexity": "ppl {:.1f}", "frechet": "FD {:.1f}"}


class TrainingProgress(ProgressBar, Callback):
    """Shows runs on a console, stderr by default."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self._note = ""

    def on_message(self, text: str) -> None:
        """Print a sentence."""
        self.print(text)

    def on_start(self, state: TrainingState) -> None:
        """Print which run it is, and where it continues."""
        start = f", from epoch {state.epoch + 1} on" if state.epoch or state.batch else ""
        config = state.config
        self.print(
            f"{config.network} on {config.data} by {config.optimizer}, seed {config.seed}{start}"
        )
        self._note = ""
        self.on_batch(state)

    def on_batch(self, state: TrainingState) -> None:
        """Move the bar."""
        total = f"/{state.budget.epochs}" if state.budget.epochs else ""
        done = min(state.progress, 1.0)
        self.update(f"{state.epoch}{total} epochs", done=done, total=1.0, note=self._note)

    def on_epoch(self, state: TrainingState, record: EpochRecord) -> None:
        """Show the epoch's scores."""
        self._note = format_epoch(record)
        if self.is_visible:
            self.on_batch(state)
        else:
            self.print(f"  epoch {record.epoch:3}  {self._note}")

    def on_end(self, run: Run) -> None:
        """Print how it ended."""
        self.remove()
        epochs = format_count(run.epoch, "epoch")
        self.print(f"  {run.status} after {epochs}: {format_epoch(run.last)}")
        self.print(f"  {run.folder}")


def format_epoch(record: EpochRecord | None) -> str:
    """Format an epoch in a line: loss, test score, S, the range of the rates."""
    if record is None:
        return "no epoch yet"
    parts = [_format("loss {:.3f}", record.train.get("loss"))]
    parts += [
        _format(form, record.test[name]) for name, form in _FORMATS.items() if name in record.test
    ]
    parts.append(_format("S {:.3f}", record.stable_rank_by_width))
    if record.rates:
        least, largest = (_format("{:.2g}", rate) for rate in record.rates)
        parts.append(f"η {least}" if least == largest else f"η {least}…{largest}")
    return "  ".join(parts)


def _format(form: str, value: float | None) -> str:
    return form.split("{", maxsplit=1)[0] + "–" if value is None else form.format(value)
