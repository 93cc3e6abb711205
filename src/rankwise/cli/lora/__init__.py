"""`rankwise lora`: make, shrink and look at LoRA adapters; a module per command."""

from __future__ import annotations

import typer

from rankwise.cli.command import CommandGroup
from rankwise.cli.lora.extract import EXTRACT_EXAMPLES, extract
from rankwise.cli.lora.inspect import INSPECT_EXAMPLES, inspect
from rankwise.cli.lora.resize import RESIZE_EXAMPLES, resize

__all__ = ["lora"]

EXAMPLES = """\b
Examples:
  rankwise lora extract base.safetensors tuned.safetensors -o adapter
  rankwise lora inspect adapter
  rankwise lora resize adapter -o smaller
"""

lora = typer.Typer(
    cls=CommandGroup,
    name="lora",
    help="Make, shrink and look at LoRA adapters.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@lora.callback()
def main() -> None:
    """Make, shrink and look at LoRA adapters."""


lora.command(epilog=EXTRACT_EXAMPLES)(extract)
lora.command(epilog=INSPECT_EXAMPLES)(inspect)
lora.command(epilog=RESIZE_EXAMPLES)(resize)
