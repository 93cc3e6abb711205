"""A study's file, a folder of runs or exported records → what was found."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from rankwise._text import sanitize
from rankwise.errors import ArgumentError, RunError
from rankwise.lab.records import Run, is_run, load_run
from rankwise.study.archive import unpack
from rankwise.study.findings import Findings, findings
from rankwise.study.grid import Study, read_study

__all__ = ["found_in", "readable_runs", "say_what_is_missing", "told_warnings"]

_RECORDS = ".jsonl"


@contextmanager
def found_in(
    source: Path, out: Path | None, *, score: str | None = None, reference: str = ""
) -> Iterator[tuple[Findings, Study | None]]:
    """What was found, and the study if there is one; runs can be read until the block ends.

    Args:
        source: A study's TOML file, a folder of runs, or records as `study export` writes them.
        out: Where the runs of a study's file are: a folder, or records; None for where the study
            itself has them.
        score: Which score of the test.
        reference: A row that all others are compared with.

    Raises:
        RankwiseError: If they can't be read.
    """
    study = read_study(source) if source.suffix == ".toml" and source.is_file() else None
    place = source if study is None else out or Path(study.cells[0].config.out)
    if not place.exists() and (study is None or out is not None):
        raise ArgumentError(
            f"{place}: expected a study's TOML file, a folder of runs or exported records, "
            "there is none."
        )
    with told_warnings(), _runs(place) as runs:
        yield findings(runs, study, score=score, reference=reference), study


@contextmanager
def told_warnings() -> Iterator[None]:
    """What is warned of is said as a sentence, without a place in the source."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: _say(f"Warning: {message}")
        yield


@contextmanager
def _runs(place: Path) -> Iterator[list[Run]]:
    if place.is_file():
        if place.suffix != _RECORDS:
            raise ArgumentError(f"{place}: expected a .toml or .jsonl file, or a folder of runs.")
        with tempfile.TemporaryDirectory() as folder:
            yield unpack(place, folder)
    else:
        yield readable_runs(place)


def readable_runs(place: Path) -> list[Run]:
    """The runs in a folder; those that can't be read are named, and so are copies of another."""
    found: dict[str, Run] = {}
    for folder in sorted(place.glob("*/")):
        run = _read(folder) if is_run(folder) else None
        if run is not None and run.config.name in found:
            _say(f"Left out: {folder} is the same run as {found[run.config.name].folder}.")
        elif run is not None:
            found[run.config.name] = run
    return list(found.values())


def _read(folder: Path) -> Run | None:
    try:
        return load_run(folder)
    except RunError as error:  # one broken run must not hide the others
        _say(f"Left out: {error}")
        return None


def say_what_is_missing(found: Findings) -> None:
    """Tell on stderr how many runs are not over."""
    if found.missing:
        here = found.asked - found.missing
        _say(f"{found.missing} of {found.asked} runs are not over yet; the table has {here}.")


def _say(text: str) -> None:
    typer.echo(f"rankwise: {sanitize(text)}", err=True)
