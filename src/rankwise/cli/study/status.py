"""`rankwise study status`: how far a study is; nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise._table import Cell, Column, Style, Table, align_cells
from rankwise._text import sanitize
from rankwise.cli.output import get_table_width, make_console, print_lines
from rankwise.cli.study.options import Out, StudyFile

if TYPE_CHECKING:
    from rankwise.study.grid import Study
    from rankwise.study.progress import CellProgress, StudyProgress

__all__ = ["STATUS_EXAMPLES", "status"]

STATUS_EXAMPLES = """\b
Examples:
  rankwise study status studies/cpu/table_1a.toml
  rankwise study status studies/cpu/table_1a.toml --out runs --json
"""


def status(
    file: StudyFile,
    *,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show how far a study is: counts, time left, and each of its cells."""
    from rankwise.cli.study.live import format_progress
    from rankwise.cli.study.source import told_warnings
    from rankwise.study.grid import read_study
    from rankwise.study.local import LocalCrew
    from rankwise.study.progress import cell_progress, study_progress

    study = read_study(file).placed(out=out)
    with told_warnings():
        progress = study_progress(study, jobs=LocalCrew().jobs)
        cells = [cell_progress(cell) for cell in study.cells]
    if as_json:
        typer.echo(format_json(study, progress, cells))
        return
    console = make_console()
    print_lines(console, [[Cell(sanitize(study.title), "title")]])
    print_lines(console, [[Cell(format_progress(progress))], [Cell("")]])
    print_lines(console, align_cells(status_table(cells), get_table_width(console)))


def status_table(cells: Sequence[CellProgress]) -> Table:
    """A row a cell: its labels, how many trials are done, and what tuning found."""
    names = [Cell(sanitize(_label(one))) for one in cells]
    done = [Cell(f"{one.done}/{len(one.cell.seeds)}", _style(one)) for one in cells]
    columns = [(Column("cell", "left", 9), names), (Column("done", priority=8), done)]
    if any(one.diverged for one in cells):
        lost = [Cell(str(one.diverged) if one.diverged else "", "bad") for one in cells]
        columns.append((Column("diverged", priority=6), lost))
    if any(one.cell.tuned for one in cells):
        tuned = [Cell(sanitize(_tuned(one))) for one in cells]
        columns.append((Column("tuned", "left", 7), tuned))
    return Table.from_columns(columns)


def format_json(study: Study, progress: StudyProgress, cells: Sequence[CellProgress]) -> str:
    """The same for machines."""
    found = {
        "study": study.name,
        "title": study.title,
        **asdict(progress),
        "cells": [
            {
                "labels": dict(one.cell.labels),
                "trials": len(one.cell.seeds),
                "done": one.done,
                "diverged": one.diverged,
                "candidates": len(one.cell.candidates),
                "tried": one.tried,
                "chosen": one.chosen,
            }
            for one in cells
        ],
    }
    return json.dumps(found, indent=1)


def _label(one: CellProgress) -> str:
    return ", ".join(one.cell.labels.values()) or "all runs"


def _style(one: CellProgress) -> Style:
    return "good" if one.done == len(one.cell.seeds) else ""


def _tuned(one: CellProgress) -> str:
    if not one.cell.tuned:
        return ""
    if not one.chosen:
        return f"{', '.join(one.cell.tuned)}: {one.tried}/{len(one.cell.candidates)} tried"
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in one.chosen.items()
    )
