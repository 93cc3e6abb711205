"""A study's file, a folder of runs or exported records → what was found."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from rankwise.errors import ArgumentError
from rankwise.files.printable import printable
from rankwise.lab.errors import RunError
from rankwise.lab.records import Run, is_run, load_run
from rankwise.lab.study.archive import unpack
from rankwise.lab.study.findings import Findings, findings
from rankwise.lab.study.grid import Study, read_study

__all__ = ["found_in", "say_what_is_missing"]

_RECORDS = ".jsonl"


@contextmanager
def found_in(
    source: Path, out: Path, *, score: str | None = None, reference: str = ""
) -> Iterator[tuple[Findings, Study | None]]:
    """What was found, and the study if there is one; runs can be read until the block ends.

    Args:
        source: A study's TOML file, a folder of runs, or records as `study export` writes them.
        out: Where the runs of a study's file are: a folder, or records.
        score: Which score of the test.
        reference: A row that all others are compared with.

    Raises:
        RankwiseError: If they can't be read.
    """
    study = read_study(source) if source.suffix == ".toml" and source.is_file() else None
    place = source if study is None else out
    if study is None and not place.exists():
        raise ArgumentError(
            f"{place}: expected a study's TOML file, a folder of runs or exported records, "
            "there is none."
        )
    with warnings.catch_warnings(), _runs(place) as runs:
        warnings.showwarning = lambda message, *_: _say(f"Warning: {message}")
        yield findings(runs, study, score=score, reference=reference), study


@contextmanager
def _runs(place: Path) -> Iterator[list[Run]]:
    if place.is_file():
        if place.suffix != _RECORDS:
            raise ArgumentError(f"{place}: expected a .toml or .jsonl file, or a folder of runs.")
        with tempfile.TemporaryDirectory() as folder:
            yield unpack(place, folder)
    else:
        found = (_read(folder) for folder in sorted(place.glob("*/")) if is_run(folder))
        yield [run for run in found if run is not None]


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
    typer.echo(f"rankwise: {printable(text)}", err=True)
