"""`rankwise study`: run, status, table, export, import, correlate; many runs as one thing."""

from __future__ import annotations

import typer

from rankwise.cli.exit_codes import CommandGroup
from rankwise.cli.study.bring import IMPORT_EXAMPLES, bring
from rankwise.cli.study.correlate import CORRELATE_EXAMPLES, correlate
from rankwise.cli.study.export import EXPORT_EXAMPLES, export
from rankwise.cli.study.run import RUN_EXAMPLES, run
from rankwise.cli.study.status import STATUS_EXAMPLES, status
from rankwise.cli.study.table import TABLE_EXAMPLES, table

__all__ = ["study"]

EXAMPLES = """\b
Examples:
  rankwise study run studies/cpu/beta.toml
  rankwise study status studies/cpu/beta.toml
  rankwise study table studies/cpu/beta.toml --format markdown
  rankwise study export studies/cpu/beta.toml --to results
  rankwise study import results/records.jsonl
  rankwise study correlate zoo.csv --out zoo.html
"""

study = typer.Typer(
    cls=CommandGroup,
    name="study",
    help="Run a whole table of experiments, and read what came out of it.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
)
study.command(epilog=RUN_EXAMPLES)(run)
study.command(epilog=STATUS_EXAMPLES)(status)
study.command(epilog=TABLE_EXAMPLES)(table)
study.command(epilog=EXPORT_EXAMPLES)(export)
study.command("import", epilog=IMPORT_EXAMPLES)(bring)
study.command(epilog=CORRELATE_EXAMPLES)(correlate)
