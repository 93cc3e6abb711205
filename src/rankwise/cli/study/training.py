"""`rankwise study run` and `status`: train what is left of a study, and show how far it is."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.console import Console

from rankwise._table import Cell, Column, Table, align_cells
from rankwise._text import format_count, sanitize
from rankwise.cli.output import FAILED, get_table_width, make_console, print_lines, print_warnings
from rankwise.cli.progress import ProgressBar
from rankwise.lab.records import Run
from rankwise.lab.scores import find_main_score, format_score
from rankwise.lab.training import StoppedError
from rankwise.study.grid import Study
from rankwise.study.local import LocalRunner
from rankwise.study.progress import (
    PointProgress,
    StudyProgress,
    StudyState,
    read_point_progress,
    read_progress,
)
from rankwise.study.ray_cluster import RayRunner
from rankwise.study.runner import (
    RunEvent,
    RunFailed,
    RunStarted,
    StudyOutcome,
    run_study,
)
from rankwise.study.table import format_options


def list_runs(study: Study) -> None:
    """Print the runs that are left, one per line, and how many more follow from tuning."""
    with print_warnings():
        state = StudyState(study)
    lines = list(state.left)
    lines += [
        f"{len(point.seeds)} more after tuning {', '.join(point.tuned)}: {point.name}"
        for point in state.waiting
    ]
    typer.echo("\n".join(map(sanitize, [*lines, format_progress(state.progress())])))


def train_study(
    study: Study, out: str | None, *, jobs: int | None, retries: int, ray: str | None
) -> None:
    """Train what is left of a study, and print how it ended and what to do next."""
    runner = LocalRunner(jobs, retries) if ray is None else RayRunner(ray, retries=retries)
    with print_warnings():
        # A cluster's size is not known.
        progress = read_progress(study, jobs=runner.jobs if isinstance(runner, LocalRunner) else 1)
    try:
        with (
            EventPrinter(make_console(sys.stderr), progress) as printer,
            print_warnings(printer.print),
        ):
            printer.print(format_progress(progress))
            outcome = run_study(study, runner, on_event=printer)
    except StoppedError as stopped:
        typer.echo(f"rankwise: {stopped}", err=True)
        raise typer.Exit(128 + stopped.signal) from None
    typer.echo(_format_outcome(outcome, study, out))
    if outcome.progress.left:
        raise typer.Exit(FAILED)


def _format_outcome(outcome: StudyOutcome, study: Study, out: str | None) -> str:
    lines = [format_progress(outcome.progress)]
    lines += [f"  {event.name} failed: {event.error}" for event in outcome.failed]
    if outcome.locked:
        runs = format_count(len(outcome.locked), "run")
        lines.append(f"{runs} in progress in another process; repeat the command afterwards.")
    if outcome.failed:
        lines.append("Fix the cause and repeat the command to train what is left.")
    if outcome.progress.done:
        folder = "" if out is None else f" --out {shlex.quote(out)}"
        lines.append(f"Next: rankwise study table {shlex.quote(str(study.path))}{folder}")
    return "\n".join(map(sanitize, lines))


def format_time(seconds: float) -> str:
    """Return a time rounded to a useful unit.

    Example:
        >>> format_time(35.2), format_time(700), format_time(9000)
        ('35 s', '12 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_progress(progress: StudyProgress) -> str:
    """Return how far a study is, in a line.

    Example:
        >>> format_progress(StudyProgress(10, 14, 1, 2, 700.0))
        '24 runs: 10 done (1 diverged), 14 left (2 started), about 12 min'
    """
    parts = [
        f"{progress.done} done" + (f" ({progress.diverged} diverged)" if progress.diverged else ""),
        f"{progress.left} left" + (f" ({progress.started} started)" if progress.started else ""),
    ]
    if progress.left and progress.seconds_left is not None:
        parts.append(f"about {format_time(progress.seconds_left)}")
    elif progress.left:
        parts.append("time left not known yet")
    return f"{format_count(progress.total, 'run')}: " + ", ".join(parts)


def format_event(event: RunEvent, progress: StudyProgress, run: Run | None) -> str:
    """Return an event as a line; empty for a first attempt, which is nothing to report."""
    head = f"[{progress.done}/{progress.total}] {event.name}"
    if isinstance(event, RunFailed):
        return f"{head} failed: {event.error}"
    if isinstance(event, RunStarted):
        return f"{head}: worker lost; attempt {event.attempt}" if event.attempt > 1 else ""
    score = _format_score(run) if event.status == "finished" and run is not None else ""
    line = f"{head} {event.status}{score} in {format_time(event.seconds)}"
    if progress.left and progress.seconds_left is not None:
        line += f", {format_time(progress.seconds_left)} left"
    return line


def _format_score(run: Run) -> str:
    score = find_main_score(run.epochs)
    value = run.test.get(score)
    return "" if value is None else f": test {score} {format_score([value], score)}"


class EventPrinter(ProgressBar):
    """Prints a study's events, and shows a bar with what each worker does on a terminal."""

    def __init__(self, console: Console, progress: StudyProgress) -> None:
        super().__init__(console)
        self._show(progress)

    def __call__(self, event: RunEvent, progress: StudyProgress, run: Run | None) -> None:
        """Print an event and update the bar."""
        line = format_event(event, progress, run)
        if line:
            self.print(line)
        if isinstance(event, RunStarted):
            self.update(event.worker, note=event.name, key=event.name)
        else:
            self.remove(event.name)
            self._show(progress)

    def _show(self, progress: StudyProgress) -> None:
        self.update(
            "study",
            done=progress.done,
            total=progress.total,
            note=f"{progress.done}/{progress.total}",
            seconds_left=progress.seconds_left if progress.left else None,
        )


def print_status(study: Study, *, as_json: bool) -> None:
    """Print how far a study is, and each grid point."""
    with print_warnings():
        progress = read_progress(study, jobs=LocalRunner().jobs)
        points = [read_point_progress(point) for point in study.points]
    if as_json:
        typer.echo(_format_json(study, progress, points))
        return
    console = make_console()
    print_lines(console, [[Cell(sanitize(study.title), "title")]])
    print_lines(console, [[Cell(format_progress(progress))], [Cell("")]])
    print_lines(console, align_cells(_build_table(points), get_table_width(console)))


def _build_table(points: Sequence[PointProgress]) -> Table:
    done = [
        Cell(f"{one.done}/{len(one.point.seeds)}", "good" if one.is_done else "") for one in points
    ]
    columns = [
        (Column("grid point", "left", 9), [Cell(sanitize(one.point.name)) for one in points]),
        (Column("done", priority=8), done),
    ]
    if any(one.diverged for one in points):
        diverged = [Cell(str(one.diverged) if one.diverged else "", "bad") for one in points]
        columns.append((Column("diverged", priority=6), diverged))
    if any(one.point.tuned for one in points):
        tuned = [Cell(sanitize(_format_tuning(one))) for one in points]
        columns.append((Column("tuned", "left", 7), tuned))
    return Table.from_columns(columns)


def _format_tuning(one: PointProgress) -> str:
    if not one.point.tuned:
        return ""
    if not one.chosen:
        return f"{', '.join(one.point.tuned)}: {one.tried}/{len(one.point.candidates)} tried"
    return " ".join(format_options(one.chosen))


def _format_json(study: Study, progress: StudyProgress, points: Sequence[PointProgress]) -> str:
    content = {
        "study": study.name,
        "title": study.title,
        **asdict(progress),
        "points": [
            {
                "labels": dict(one.point.labels),
                "trials": len(one.point.seeds),
                "done": one.done,
                "diverged": one.diverged,
                "candidates": len(one.point.candidates),
                "tried": one.tried,
                "chosen": one.chosen,
            }
            for one in points
        ],
    }
    return json.dumps(content, indent=1)
