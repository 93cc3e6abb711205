"""`rankwise study table`: a study's table, as far as its runs are."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from rankwise.cli.output import make_console
from rankwise.cli.study.options import RunsOrRecords, StudySource

__all__ = ["TABLE_EXAMPLES", "table"]

TABLE_EXAMPLES = """\b
Examples:
  rankwise study table studies/cpu/table_1a.toml
  rankwise study table studies/cpu/table_1a.toml --format markdown > table.md
  rankwise study table studies/cpu/table_1a.toml --out studies/results/table_1a.jsonl
  rankwise study table studies/cpu/table_1a.toml --against "SGD, cosine"
  rankwise study table runs --score loss --format csv

\b
Best in green; within a standard deviation of it in orange. Each best is
compared with the runner-up by a t-test over runs that share their seed.
"""


class Format(str, Enum):
    """What a table can be printed as."""

    text = "text"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"
    json = "json"


def table(
    source: StudySource,
    *,
    out: RunsOrRecords = None,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.text,
    score: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A score of the test, such as accuracy, top5 or loss."),
    ] = None,
    against: Annotated[
        str, typer.Option(metavar="ROW", help="Compare all with this row, not best with second.")
    ] = "",
) -> None:
    """Show mean and spread over trials of every setting on every task, and what leads for sure."""
    from rankwise.cli.study.source import found_in, say_what_is_missing
    from rankwise.cli.study.terminal import print_findings
    from rankwise.study.exchange import to_csv, to_json
    from rankwise.study.latex import to_latex
    from rankwise.study.markdown import to_markdown

    writers = {
        Format.markdown: to_markdown,
        Format.latex: to_latex,
        Format.csv: to_csv,
        Format.json: to_json,
    }
    with found_in(source, out, score=score, reference=against) as (found, _):
        if form is Format.text:
            print_findings(make_console(), found)
        else:
            typer.echo(writers[form](found), nl=False)
        say_what_is_missing(found)
