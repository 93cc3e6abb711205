"""Output of the commands: text on the terminal, files, and warnings on stderr."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

import typer
from rich.console import Console
from rich.text import Text

from rankwise._io import refuse_overwrite, write_atomically
from rankwise._text import sanitize
from rankwise.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rankwise._table import Cell

__all__ = [
    "STDOUT",
    "check_outputs",
    "get_table_width",
    "make_console",
    "print_error",
    "print_lines",
    "print_text",
    "print_warnings",
    "write_output",
]

STDOUT = "-"
STYLES = {
    "title": "bold",
    "dim": "dim",
    "bar s": "cyan",
    "bar q": "green",
    "good": "green",
    "bad": "red",
    "warning": "bold red",
}


def make_console(stream: TextIO | None = None) -> Console:
    """Return a console for a stream, stdout by default.

    A pipe gets plain text; so does a terminal if NO_COLOR is set, which turns off all escapes.
    """
    colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=stream or sys.stdout, highlight=False, color_system=colors)


def get_table_width(console: Console) -> int | None:
    """Return the width of the terminal; None for a pipe, where names are never shortened."""
    return console.width if console.is_terminal else None


def print_lines(console: Console, lines: Iterable[Iterable[Cell]]) -> None:
    """Print lines of cells in the colors of their styles."""
    for line in lines:
        # Text, not markup: a name such as "[red]" is printed as it is.
        text = Text.assemble(*((cell.text, STYLES.get(cell.style, "")) for cell in line))
        text.rstrip()
        console.print(text, soft_wrap=True)


def print_text(console: Console, text: str) -> None:
    """Print a blank line and then sentences, with warnings in color."""
    if not text:
        return
    console.print()
    style = ""
    for line in text.split("\n"):
        if not line.startswith(" "):  # an indented line continues the sentence before it
            style = STYLES["warning"] if line.startswith("Warning:") else ""
        console.print(Text(line, style), soft_wrap=True)


def print_error(text: str) -> None:
    """Print a message on stderr, with the name of the program in front."""
    typer.echo(f"rankwise: {sanitize(text)}", err=True)


@contextmanager
def print_warnings(write: Callable[[str], None] = print_error) -> Iterator[None]:
    """Print each warning as a sentence, without the line of code that raised it."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: write(f"Warning: {message}")
        yield


def check_outputs(targets: Sequence[str], inputs: Sequence[Path]) -> None:
    """Check before any work that output files can be written and overwrite no input.

    Raises:
        ArgumentError: If two outputs are the same, an output is an input or a folder, or its
            folder does not exist.
    """
    places = [target if target == STDOUT else Path(target).resolve() for target in targets]
    if len(set(places)) < len(places):
        raise ArgumentError("Two outputs have the same name; give each its own.")
    for target in targets:
        path = Path(target)
        if target == STDOUT:
            continue
        refuse_overwrite(path, inputs)
        if not path.parent.is_dir():
            raise ArgumentError(f"{target}: there is no folder {path.parent}; create it first.")
        if path.is_dir():
            raise ArgumentError(f"{target}: expected the name of a file, got a folder.")


def write_output(target: str, content: bytes) -> None:
    """Write to stdout for "-"; else write a file completely or not at all.

    Raises:
        OSError: If the file can't be written; an existing file is then unchanged.
    """
    if target == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
    else:
        write_atomically(Path(target), content)
