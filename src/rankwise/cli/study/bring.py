"""`rankwise study import`: records become runs again, and a study goes on from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwise._text import sanitize

__all__ = ["IMPORT_EXAMPLES", "bring"]

IMPORT_EXAMPLES = """\b
Examples:
  rankwise study import studies/records/table_1a.jsonl
  rankwise study import studies/records/*.jsonl --out runs
  rankwise study run studies/cpu/table_1a.toml

\b
Runs that came as records count as done and are never run again. They have no
weights: to get those, remove a run's folder and run its study.
"""


def bring(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORDS...", help="Files of exported records.")
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder that runs are in.")] = Path(
        "runs"
    ),
) -> None:
    """Make runs of exported records, so that a study goes on where they end."""
    from rankwise.study.archive import unpack

    for path in records:
        count = len(unpack(path, out, only_new=True))
        where = sanitize(str(out))
        typer.echo(f"{sanitize(str(path))}: {count} new run{'s' * (count != 1)} in {where}")
