"""The command line: `rankwise check`, `probe`, `diff`, `explain`, `report`, `train` and others.

Commands import what they need when they run, so that `--help` does not wait for torch.
"""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperCommand

import rankwise
from rankwise.cli.check import CHECK_EXAMPLES, check
from rankwise.cli.command import Command, CommandGroup, DiffCommand, ProbeCommand, TrainCommand
from rankwise.cli.diff import DIFF_EXAMPLES, diff
from rankwise.cli.lora import lora
from rankwise.cli.output import run_command
from rankwise.cli.probe import EXPLAIN_EXAMPLES, PROBE_EXAMPLES, explain, probe
from rankwise.cli.report import REPORT_EXAMPLES, WATCH_EXAMPLES, report, watch
from rankwise.cli.selection import SELECT_EXAMPLES, select
from rankwise.cli.study import study
from rankwise.cli.train import TRAIN_EXAMPLES, train_command

__all__ = ["app", "run"]

EXAMPLES = """\b
Examples:
  rankwise check model.safetensors
  rankwise probe model.safetensors
  rankwise diff base.safetensors tuned.safetensors
  rankwise select model.safetensors --budget 25%
  rankwise lora extract base.safetensors tuned.safetensors -o adapter
  rankwise explain stable_rank
  rankwise report model.safetensors
  rankwise train --network resnet8 --epochs 10
  rankwise watch runs
  rankwise study run study.toml
"""

app = typer.Typer(
    cls=CommandGroup,
    name="rankwise",
    help="Check and measure every layer of a network; train each layer at its own rate.",
    epilog=EXAMPLES,
    rich_markup_mode=None,  # with markup on, [qkv] would vanish from the examples
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=CHECK_EXAMPLES)(check)
app.command(cls=ProbeCommand, epilog=PROBE_EXAMPLES)(probe)
app.command(cls=DiffCommand, epilog=DIFF_EXAMPLES)(diff)
app.command(epilog=SELECT_EXAMPLES)(select)
app.command(epilog=EXPLAIN_EXAMPLES)(explain)
app.command(epilog=REPORT_EXAMPLES)(report)
app.command(epilog=WATCH_EXAMPLES)(watch)
app.command(cls=TrainCommand, epilog=TRAIN_EXAMPLES)(train_command())
app.add_typer(lora)
app.add_typer(study)
for group in (app, lora, study):
    for command in group.registered_commands:
        if command.cls in (None, TyperCommand):
            command.cls = Command


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"rankwise {rankwise.__version__}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def run() -> int:
    """Run the command line on `sys.argv` and return its exit code."""
    return run_command(lambda: app(prog_name="rankwise", standalone_mode=False))
