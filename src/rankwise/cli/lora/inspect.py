"""`rankwise lora inspect`: what each layer of an adapter uses of its rank."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise._text import wrap
from rankwise.cli.lora.resize import Adapter
from rankwise.cli.output import (
    STDOUT,
    check_outputs,
    get_table_width,
    make_console,
    print_lines,
    print_text,
    write_output,
)
from rankwise.cli.probe import Json
from rankwise.cli.selection import parse_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankwise.adapters.stored.inspection import AdapterReport
    from rankwise.checks.findings import Finding

INSPECT_EXAMPLES = """\b
Examples:
  rankwise lora inspect adapter
  rankwise lora inspect adapter --error 5%
  rankwise lora inspect style.safetensors --json adapter.json

\b
Columns:
  r      the rank that is stored
  used   the least rank that keeps 99 % of the layer's ‖ΔW‖² (--error)
  first  the share of ‖ΔW‖² that the first direction carries
  scale  α/r, or α/√r for rsLoRA
"""


def inspect(
    adapter: Adapter,
    *,
    error: Annotated[
        str,
        typer.Option(metavar="SHARE", help="How much of ‖ΔW‖² the used rank may lose."),
    ] = "1%",
    json: Json = None,
) -> None:
    """Show how much of its rank each layer of an adapter uses.

    Also says which layers were never trained, where one direction carries everything, and the scale
    of each layer. `rankwise check ADAPTER` finds the same.
    """
    from rankwise.adapters.stored.inspection import inspect_adapter
    from rankwise.adapters.stored.lora_folder import list_inputs
    from rankwise.checks.adapter_checks import check_adapter_layers

    share = parse_share(error, "‖ΔW‖²")
    check_outputs([json] if json is not None else [], list_inputs(adapter))
    report = inspect_adapter(adapter, error=share)
    findings = list(check_adapter_layers(report.layers))
    if json is not None:
        record = {**report.to_dict(), "findings": [finding.to_dict() for finding in findings]}
        write_output(json, (json_module.dumps(record, indent=2, allow_nan=False) + "\n").encode())
    if json != STDOUT:
        _print_report(report, findings)


def _print_report(report: AdapterReport, findings: Sequence[Finding]) -> None:
    from rankwise._table import align_cells
    from rankwise.adapters.stored.inspection import describe_adapter, make_inspection_table
    from rankwise.checks.text import format_group, group_findings

    console = make_console()
    width = get_table_width(console)
    print_lines(console, align_cells(make_inspection_table(report), width))
    print_text(console, "\n".join(wrap(text, width) for text in describe_adapter(report)))
    worth = [finding for finding in findings if finding.kind != "adapter-unused-rank"]
    for group in group_findings(worth):
        print_text(console, format_group(group, width))
