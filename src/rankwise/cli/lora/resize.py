"""`rankwise lora resize`: an adapter with the ranks that its layers use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise._text import sanitize, wrap
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
    from rankwise.adapters.stored.resizing import Resizing

RESIZE_EXAMPLES = """\b
Examples:
  rankwise lora resize adapter -o smaller
  rankwise lora resize adapter -o smaller --error 5%
  rankwise lora resize adapter -o smaller --max-rank 8 --json ranks.json
"""

Adapter = Annotated[
    Path,
    typer.Argument(metavar="ADAPTER", help="A LoRA: a folder of PEFT, or hf://org/name."),
]


def resize(
    adapter: Adapter,
    *,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="OUT", help="The folder to make."),
    ],
    error: Annotated[
        str,
        typer.Option(metavar="SHARE", help="How much of its ‖ΔW‖² each layer may lose."),
    ] = "1%",
    max_rank: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="No layer gets more, though it may lose more then."),
    ] = None,
    json: Json = None,
) -> None:
    """Shrink a LoRA to the ranks that keep 99 % of its change.

    Each layer gets the least rank that does so; its scale α/r stays the same. Layers whose change
    is zero are left out; biases, DoRA's norms and modules that were saved whole are kept as they
    are. The result is a folder that PEFT loads.
    """
    from rankwise.adapters.stored.lora_folder import list_inputs
    from rankwise.adapters.stored.peft_folder import check_peft_folder
    from rankwise.adapters.stored.resizing import resize_adapter, write_resized
    from rankwise.adapters.stored.resizing_text import format_resizing_json
    from rankwise.cli.progress import ProgressBar

    share = parse_share(error, "‖ΔW‖²")
    check_peft_folder(output, [adapter])
    check_outputs([json] if json is not None else [], list_inputs(adapter))
    with ProgressBar(delay=0.7) as bar:
        resizing = resize_adapter(
            adapter,
            error=share,
            max_rank=max_rank,
            progress=lambda done, total: bar.update("Resizing", done=done, total=total),
        )
    write_resized(resizing, output)
    if json is not None:
        write_output(json, format_resizing_json(resizing).encode())
    if json != STDOUT:
        _print_resizing(resizing, output)


def _print_resizing(resizing: Resizing, output: Path) -> None:
    from rankwise._table import align_cells
    from rankwise.adapters.stored.resizing_text import describe_resizing, make_resizing_table

    console = make_console()
    width = get_table_width(console)
    print_lines(console, align_cells(make_resizing_table(resizing), width))
    sentences = [*describe_resizing(resizing), f"Written to {sanitize(str(output))}."]
    print_text(console, "\n".join(wrap(text, width) for text in sentences))
