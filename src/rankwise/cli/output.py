"""What a command gives back: text on the terminal, files, errors on stderr, and its exit code.

Exit codes: 0 success, 1 error, 2 a check found problems, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import typer

from rankwise._io import explain_missing, refuse_overwrite, write_atomically
from rankwise._table import join_cells
from rankwise._text import sanitize, shorten, suggest_names
from rankwise.errors import ArgumentError, MissingExtraError, RankwiseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

    from rankwise._table import Cell

FAILED = 1
FOUND_PROBLEMS = 2
INTERRUPTED = 130

# Newer releases of Typer contain their own copy of click, so look its base class up.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]

STDOUT = "-"
Split = Literal["stacks", "heads"]  # the values of --split
_LONGEST_MESSAGE = 4000  # characters
STYLES = {
    "title": "bold",
    "dim": "dim",
    "bar s": "cyan",
    "good": "green",
    "bad": "red",
    "up": "cyan",
    "down": "yellow",
    "warning": "bold red",
}


def make_console(stream: TextIO | None = None) -> Console:
    """Return a console for a stream, stdout by default.

    A pipe gets plain text; so does a terminal if NO_COLOR is set, which turns off all escapes.
    """
    from rich.console import Console

    colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=stream or sys.stdout, highlight=False, color_system=colors)


def get_table_width(console: Console) -> int | None:
    """Return the width of the terminal; None for a pipe, where names are hardly ever shortened."""
    return console.width if console.is_terminal else None


def print_lines(console: Console, lines: Iterable[Iterable[Cell]]) -> None:
    """Print lines of cells in the colors of their styles."""
    if not console.is_terminal:  # plain text, which needs no layout: a pipe may get 100,000 lines
        if plain := join_cells(lines):
            console.file.write(f"{plain}\n")
        return
    from rich.text import Text

    for line in lines:
        # Text, not markup: a name such as "[red]" is printed as it is.
        text = Text.assemble(*((cell.text, STYLES.get(cell.style, "")) for cell in line))
        text.rstrip()
        console.print(text, soft_wrap=True)


def print_text(console: Console, text: str) -> None:
    """Print a blank line and then sentences, with warnings in color."""
    if text:
        console.print()
        print_sentences(console, text)


def print_sentences(console: Console, text: str) -> None:
    """Print sentences, with warnings in color."""
    from rich.text import Text

    style = ""
    for line in text.split("\n"):
        if not line.startswith(" "):  # an indented line continues the sentence before it
            style = STYLES["warning"] if line.startswith("Warning:") else ""
        console.print(Text(line, style), soft_wrap=True)


def print_error(text: str) -> None:
    """Print a message on stderr, with the name of the program in front."""
    typer.echo(f"rankwise: {_clean(text)}", err=True)


def _clean(text: str) -> str:
    """Return a message that may quote names from a file, safe and no longer than a page."""
    return shorten(sanitize(text), _LONGEST_MESSAGE)


@contextmanager
def print_warnings(write: Callable[[str], None] = print_error) -> Iterator[None]:
    """Print each warning as a sentence, without the line of code that raised it."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: write(f"Warning: {message}")
        yield


def check_outputs(targets: Sequence[str], inputs: Sequence[Path]) -> None:
    """Check before any work that output files can be written and overwrite no input."""
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
        # A pipe or a device is written to; a file is replaced, for which its folder counts.
        is_replaced = path.is_file() or not path.exists()
        if is_replaced and not os.access(path.parent, os.W_OK):
            raise ArgumentError(
                f"{target}: the folder {path.parent} can't be written to; choose another one."
            )


def write_output(target: str, content: bytes) -> None:
    """Write to stdout for "-"; else write a file completely or not at all."""
    if target == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
    else:
        write_atomically(Path(target), content)


def run_command(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; print an expected error as one line on stderr."""
    try:
        code = command()
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has closed it (`| head`) and needs no message
        return FAILED
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        print_error(str(MissingExtraError(error.name, "", "This command")))
        return FAILED
    except (RankwiseError, OSError, ClickError) as error:
        print(f"rankwise: {_format_error(error)}", file=sys.stderr, flush=True)
        return FAILED
    return code if isinstance(code, int) else 0


def _explain_usage(error: Any, context: Any) -> str:  # noqa: ANN401 - of Typer's click, or click's
    if context is not None and hasattr(error, "possibilities"):  # an option that does not exist
        name = error.option_name
        known = [option for param in context.command.get_params(context) for option in param.opts]
        return f"There is no option {name}.{suggest_names(name, known)}".rstrip(".")
    # Typer's releases with checks by pydantic quote its prefix.
    return str(error.format_message()).rstrip(".").replace(": Value error, ", ": ", 1)


def _explain_os_error(error: OSError, path: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return explain_missing(path)
    if isinstance(error, IsADirectoryError):
        return f"{path}: expected a file, got a folder."
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{path}: expected a folder, got a file."
    return f"{path}: {error.strerror}."


def _format_error(error: Exception) -> str:
    if isinstance(error, ClickError):
        context = getattr(error, "ctx", None)  # of wrong usage
        text = _explain_usage(error, context)
        hint = f" See `{context.command_path} --help`." if context is not None else ""
        return _clean(text if text.endswith("?") else f"{text}.") + _clean(hint)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return _clean(_explain_os_error(error, Path(os.fsdecode(error.filename))))
    return _clean(str(error) or type(error).__name__)
