"""`rankwise lora`: make, shrink and look at LoRA adapters; a module per command."""

from __future__ import annotations

import typer

from rankwise.cli.command import CommandGroup

__all__ = ["lora"]

EXAMPLES = """\b
Examples:
  rankwise lora extract base.safetensors tuned.safetensors -o adapter
"""

lora = typer.Typer(
    cls=CommandGroup,
    name="lora",
    help="Extract a LoRA from a fine-tuned network.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@lora.callback()
def main() -> None:
    """Extract a LoRA from a fine-tuned network."""
