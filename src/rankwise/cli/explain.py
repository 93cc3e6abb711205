"""`rankwise explain`: what a figure means and how far to trust it."""

from typing import Annotated

import typer

from rankwise.cli.console import stdout_console, table_width
from rankwise.probes.explain import explain as explanation

__all__ = ["EXPLAIN_EXAMPLES", "explain"]

EXPLAIN_EXAMPLES = """\b
Examples:
  rankwise explain
  rankwise explain stable_rank
  rankwise explain Q
"""


def explain(
    metric: Annotated[
        str | None,
        typer.Argument(
            metavar="METRIC", help="A metric or its symbol; without one, all are listed."
        ),
    ] = None,
) -> None:
    """Explain a metric: formula, meaning, range, what is good, where it misleads."""
    width = table_width(stdout_console())
    typer.echo(explanation(metric, width=min(width or 80, 100)))
