"""`python -m rankwise` and the console script: run the command line, or say how to install it."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

CLI_PACKAGES = {"click", "rich", "typer"}
INTERRUPTED = 130
_IMPORTING = "<frozen importlib._bootstrap>"


def main() -> int:
    """Run the command line and return its exit code; 1 if a package for it is missing.

    Ctrl-C ends the process with exit code 130 and no traceback, whenever it comes.
    """
    handles = _handle_interrupts()
    try:  # what is imported here would print a traceback if it were imported above
        from rankwise.cli import run  # noqa: PLC0415

        return run()
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in CLI_PACKAGES:
            raise
        from rankwise.errors import MissingExtraError  # noqa: PLC0415

        sys.stderr.write(f"rankwise: {MissingExtraError(package, 'cli', 'The command line')}\n")
        return 1
    except KeyboardInterrupt:  # where the command has ended, or not started
        return INTERRUPTED
    finally:
        if handles:  # while Python shuts down, which would print a traceback
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def _handle_interrupts() -> bool:
    """Handle Ctrl-C from now on, unless it is ignored or handled already; return whether so."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, _interrupt)
    except ValueError:  # only a main thread may
        return False
    return True


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """End the process at once during an import; anywhere else raise KeyboardInterrupt.

    Packages catch or print what is raised in the middle of their imports, and torch's take seconds.
    """
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
