"""`rankwise study export`: tables, a page and the records of a study's runs, to keep or commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise._io import refuse_overwrite, write_atomically
from rankwise._text import sanitize
from rankwise.cli.study.options import RunsOrRecords, StudySource
from rankwise.errors import ArgumentError

if TYPE_CHECKING:
    from rankwise.study.findings import Findings

__all__ = ["EXPORT_EXAMPLES", "export"]

_RECORDS = "records.jsonl"

EXPORT_EXAMPLES = """\b
Examples:
  rankwise study export studies/cpu/table_1a.toml --to results/table_1a
  rankwise study export runs --to results --layers
  rankwise study table studies/cpu/table_1a.toml --out results/table_1a/records.jsonl

\b
Writes table.md, table.tex, table.csv, table.json, report.html and
records.jsonl. The last holds all that tables and pages need, without weights
and without paths of this machine, except in the name of a data set.
"""


def export(
    source: StudySource,
    *,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write to.")],
    out: RunsOrRecords = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Keep the layers of every epoch, not of the last.")
    ] = False,
) -> None:
    """Write a study's tables, its page and the records of its runs."""
    from rankwise.cli.study.source import found_in, say_what_is_missing
    from rankwise.study.archive import pack
    from rankwise.study.exchange import to_csv, to_json
    from rankwise.study.latex import to_latex
    from rankwise.study.markdown import to_markdown

    refuse_overwrite(to / _RECORDS, [source, *([] if out is None else [out])])
    with found_in(source, out) as (found, _):
        if not found.runs:
            raise ArgumentError(f"{source}: none of its runs is there yet; nothing was written.")
        page = _page(found, source)
        files = {
            "table.md": to_markdown(found),
            "table.tex": to_latex(found),
            "table.csv": to_csv(found),
            "table.json": to_json(found),
            _RECORDS: pack(found.runs, layers=layers),
        }
        to.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_atomically(to / name, text.encode())
        write_atomically(to / "report.html", page)
        say_what_is_missing(found)
    typer.echo(f"Written: {', '.join([*files, 'report.html'])} in {sanitize(str(to))}")


def _page(found: Findings, source: Path) -> bytes:
    from rankwise.reports.html import page_bytes
    from rankwise.reports.study.page import study_page

    title = sanitize(found.title or f"Study: {source.name}")
    return page_bytes(study_page(found.runs, title=title, study=found))
