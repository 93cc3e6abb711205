"""Cells and sentences → the terminal: coloured there, plain in a pipe."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rankwise._table import Cell

__all__ = ["print_lines", "print_text", "stderr_console", "stdout_console", "table_width"]

STYLES = {
    "title": "bold",
    "dim": "dim",
    "bar s": "cyan",
    "bar q": "green",
    "good": "green",
    "bad": "red",
    "warning": "bold red",
}


def stdout_console() -> Console:
    """The console of stdout; NO_COLOR turns every escape off, not colours alone."""
    if os.environ.get("NO_COLOR"):
        return Console(file=sys.stdout, highlight=False, color_system=None)
    return Console(file=sys.stdout, highlight=False)


def stderr_console() -> Console:
    """The console of stderr, for progress."""
    return Console(file=sys.stderr, highlight=False)


def table_width(console: Console) -> int | None:
    """The terminal's width; None in a pipe, where whole names matter more than width."""
    return console.width if console.is_terminal else None


def print_lines(console: Console, lines: Iterable[Iterable[Cell]]) -> None:
    """Print lines of cells in the colours of their styles."""
    for line in lines:
        # Text, never markup: a name such as "[red]" is printed as it is.
        text = Text.assemble(*((cell.text, STYLES.get(cell.style, "")) for cell in line))
        text.rstrip()
        console.print(text, soft_wrap=True)


def print_text(console: Console, text: str) -> None:
    """Print sentences, warnings in colour, and a blank line before them."""
    if not text:
        return
    console.print()
    style = ""
    for line in text.split("\n"):
        if not line.startswith(" "):  # else it goes on with the sentence before
            style = STYLES["warning"] if line.startswith("Warning:") else ""
        console.print(Text(line, style), soft_wrap=True)
