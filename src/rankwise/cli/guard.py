"""Errors as one clean line and an exit code: 0 fine, 1 error, 2 below --fail-under, 130 stopped."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from rankwise._text import sanitize
from rankwise.errors import RankwiseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BELOW", "Guarded", "exit_code"]

FAILED = 1
BELOW = 2
INTERRUPTED = 130

# Typer carries its own copy of click in newer releases: reach its errors by inheritance.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]


class Guarded(TyperGroup):
    """The group of commands; wrong usage exits with 1 as well, since 2 means a failed check."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run a command; as the program itself it ends with an exit code, else returns it."""

        def run() -> Any:  # noqa: ANN401
            return TyperGroup.main(
                self, args, prog_name, complete_var, False, windows_expand_args, **extra
            )

        _escape_what_cannot_be_encoded()
        if not standalone_mode:
            return run()
        sys.exit(exit_code(run))


def exit_code(command: Callable[[], Any]) -> int:
    """Run a command; what it raises on purpose becomes a line on stderr and an exit code."""
    try:
        code = command()
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # whoever read stdout has left (`| head`) and wants no message
        return FAILED
    except (RankwiseError, OSError, ClickError) as error:
        print(f"rankwise: {_sentence(error)}", file=sys.stderr, flush=True)
        return FAILED
    return code if isinstance(code, int) else 0


def _sentence(error: Exception) -> str:
    if isinstance(error, ClickError):
        return sanitize(str(error.format_message()))  # type: ignore[attr-defined]
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return sanitize(f"{error.filename}: {error.strerror}.")
    return sanitize(str(error) or type(error).__name__)


def _escape_what_cannot_be_encoded() -> None:
    """Print names as escapes where stdout is not UTF-8, instead of failing on them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
