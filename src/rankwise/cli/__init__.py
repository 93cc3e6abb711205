"""The command line: `rankwise probe`, `diff`, `explain`, `report`, `study`, `train`, `watch`."""

from __future__ import annotations

from typing import Annotated

import typer

import rankwise
from rankwise.cli.diff import DIFF_EXAMPLES, diff
from rankwise.cli.explain import EXPLAIN_EXAMPLES, explain
from rankwise.cli.guard import Guarded, exit_code
from rankwise.cli.probe import PROBE_EXAMPLES, probe
from rankwise.cli.report import REPORT_EXAMPLES, report
from rankwise.cli.study import study
from rankwise.cli.train import TRAIN_EXAMPLES, train_command
from rankwise.cli.watch import WATCH_EXAMPLES, watch

__all__ = ["app", "run"]

EXAMPLES = """\b
Examples:
  rankwise probe model.safetensors
  rankwise diff before.pt after.pt
  rankwise explain stable_rank
  rankwise report model.safetensors
  rankwise study run studies/cpu/beta.toml
  rankwise train --network resnet18 --data cifar10 --trials 5
  rankwise watch runs
"""

app = typer.Typer(
    cls=Guarded,
    name="rankwise",
    help="See what every layer of a network has learned; train each at its own rate.",
    epilog=EXAMPLES,
    add_completion=False,
    rich_markup_mode=None,  # with markup on, [qkv] would vanish from the examples
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=PROBE_EXAMPLES)(probe)
app.command(epilog=DIFF_EXAMPLES)(diff)
app.command(epilog=EXPLAIN_EXAMPLES)(explain)
app.command(epilog=REPORT_EXAMPLES)(report)
app.add_typer(study)
app.command(epilog=TRAIN_EXAMPLES)(train_command())
app.command(epilog=WATCH_EXAMPLES)(watch)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rankwise {rankwise.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """See what every layer of a network has learned, from its weights alone."""
    if context.invoked_subcommand is None and not version:
        typer.echo(context.get_help())


def run() -> int:
    """Run the command line on `sys.argv`; its exit code."""
    return exit_code(lambda: app(prog_name="rankwise", standalone_mode=False))
