"""`rankwise study run`: train what is left of a study."""

from __future__ import annotations

import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise._text import sanitize
from rankwise.cli.output import make_console
from rankwise.cli.study.options import DataRoot, Out, StudyFile
from rankwise.errors import ArgumentError

if TYPE_CHECKING:
    from rankwise.study.events import Crew
    from rankwise.study.grid import Study
    from rankwise.study.progress import Tally
    from rankwise.study.run import StudyOutcome

__all__ = ["RUN_EXAMPLES", "run"]

FAILED = 1
RUN_EXAMPLES = """\b
Examples:
  rankwise study run studies/cpu/table_1a.toml
  rankwise study run studies/cpu/table_1a.toml --jobs 2 --out runs
  rankwise study run studies/cpu/table_1a.toml --dry-run
  rankwise study run studies/paper/table_1a.toml --ray auto

\b
What is done is never run again. A study that was stopped or killed goes on
when the same command is given again.
Exit code: 0 if all runs are done, 1 if some are not, 130 after Ctrl-C.
"""


def run(
    file: StudyFile,
    *,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="How many runs at a time; as many as cores, or CUDA devices, by default.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    data_root: DataRoot = None,
    retries: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="How often a run is tried again whose worker was lost."
        ),
    ] = 2,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Train on a Ray cluster instead: auto, or HOST:PORT of its head node.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs that are left, and train none.")
    ] = False,
) -> None:
    """Train what is left of a study: a grid of runs in a TOML file."""
    from rankwise.cli.study.source import told_warnings
    from rankwise.study.grid import read_study
    from rankwise.study.progress import Tally

    if ray is not None and jobs is not None:
        raise ArgumentError("Expected --jobs or --ray, got both: a cluster has cores of its own.")
    study = read_study(file).placed(out=out, data_root=data_root)
    if dry_run:
        with told_warnings():
            typer.echo("\n".join(format_left(Tally(study))))
        return
    outcome = _run(study, *_crew(jobs, retries, ray))
    typer.echo(format_outcome(outcome, file, out))
    if outcome.progress.left:
        raise typer.Exit(FAILED)


def _crew(jobs: int | None, retries: int, ray: str | None) -> tuple[Crew, int]:
    """Who trains, and how many runs at a time; of a cluster that is not known before."""
    from rankwise.study.local import LocalCrew

    if ray is None:
        crew = LocalCrew(jobs, retries)
        return crew, crew.jobs
    from rankwise.study.cluster import RayCrew

    return RayCrew(ray, retries=retries), 1


def format_left(tally: Tally) -> list[str]:
    """The runs that are left, a line each; last, those that are not known yet."""
    from rankwise.cli.study.live import format_progress

    lines = [sanitize(name) for name in tally.left]
    lines += [
        f"{len(cell.seeds)} more after tuning {', '.join(cell.tuned)}: "
        + sanitize(", ".join(cell.labels.values()) or "all runs")
        for cell in tally.waiting
    ]
    return [*lines, format_progress(tally.progress())]


def format_outcome(outcome: StudyOutcome, file: Path, out: str | None = None) -> str:
    """How the study was left, and what to do next."""
    from rankwise.cli.study.live import format_progress

    place = "" if out is None else f" --out {shlex.quote(out)}"
    lines = [format_progress(outcome.progress)]
    lines += [f"  {event.name} failed: {event.error}" for event in outcome.failed]
    if outcome.held:
        number = len(outcome.held)
        words = "1 run is" if number == 1 else f"{number} runs are"
        lines.append(f"{words} being trained by another process; then give this command again.")
    if outcome.failed:
        lines.append("Put that right and give this command again: it tries what is left.")
    if outcome.progress.done:
        lines.append(f"Next: rankwise study table {shlex.quote(str(file))}{place}")
    return "\n".join(map(sanitize, lines))


def _run(study: Study, crew: Crew, at_a_time: int) -> StudyOutcome:
    from rankwise import lab
    from rankwise.cli.study.live import StudyLive, format_progress
    from rankwise.cli.study.source import told_warnings
    from rankwise.study.progress import Tally
    from rankwise.study.run import run_study

    with told_warnings():
        progress = Tally(study).progress(at_a_time)
    try:
        with StudyLive(make_console(sys.stderr), progress) as live, warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: live.say(f"Warning: {message}")
            live.say(format_progress(progress))
            return run_study(study, crew, watch=live)
    except lab.StoppedError as stopped:
        typer.echo(f"rankwise: {stopped}", err=True)
        raise typer.Exit(128 + stopped.signal) from None
