"""Exit codes: 0 success, 1 error, 2 quality below --fail-under, 130 interrupted by Ctrl-C."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from rankwise._text import sanitize
from rankwise.errors import RankwiseError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BELOW_THRESHOLD", "FAILED", "INTERRUPTED", "CommandGroup", "run_command"]

FAILED = 1
BELOW_THRESHOLD = 2
INTERRUPTED = 130

# Newer releases of Typer contain their own copy of click, so look its base class up.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]


class CommandGroup(TyperGroup):
    """A group of commands; wrong usage exits with 1, since 2 means a failed check."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Show the help if no command is given."""
        return super().parse_args(ctx, args or ["--help"])

    def main(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """Run a command; exit with its code in standalone mode, else return it."""
        is_standalone = options.pop("standalone_mode", True)

        def run() -> Any:  # noqa: ANN401
            return TyperGroup.main(self, *args, **{**options, "standalone_mode": False})

        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # escape what its encoding lacks
                stream.reconfigure(errors="backslashreplace")
        if not is_standalone:
            return run()
        sys.exit(run_command(run))


def run_command(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; print an expected error as one line on stderr."""
    try:
        code = command()
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has closed it (`| head`) and needs no message
        return FAILED
    except (RankwiseError, OSError, ClickError) as error:
        print(f"rankwise: {_format_error(error)}", file=sys.stderr, flush=True)
        return FAILED
    return code if isinstance(code, int) else 0


def _format_error(error: Exception) -> str:
    if isinstance(error, ClickError):
        text = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        context = getattr(error, "ctx", None)  # of wrong usage
        hint = f" See `{context.command_path} --help`." if context is not None else ""
        return sanitize(text if text.endswith("?") else f"{text}.") + sanitize(hint)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return sanitize(f"{error.filename}: {error.strerror}.")
    return sanitize(str(error) or type(error).__name__)
