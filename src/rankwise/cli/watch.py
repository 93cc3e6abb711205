"""`rankwise watch`: the runs in a folder as pages in a browser, live while they are trained."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.errors import ArgumentError, MissingExtraError
from rankwise.lab.records import is_run

if TYPE_CHECKING:
    from rankwise.reports.watch.listening import Watcher

__all__ = ["WATCH_EXAMPLES", "watch"]

WATCH_EXAMPLES = """\b
Examples:
  rankwise watch runs
  rankwise watch runs --port 9000 --open
  rankwise watch runs --host 0.0.0.0    (for other machines; asks for a token)

\b
From afar, without opening a port: ssh -L 8765:localhost:8765 MACHINE
Ctrl-C ends it, with exit code 0. Nothing in the folder is ever changed.
"""


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="RUNS_DIR", help="The folder of runs, as --out of train.")
    ],
    *,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The name or address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The port, or the next free one.")
    ] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="What visitors must give; made up where other machines can reach the page.",
            show_default=False,
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Watch the runs in a folder: a list, a page for each, and some in the same charts, live."""
    _check_folder(folder)
    watcher = _watcher(folder, host, port, token)
    if port and watcher.port != port:
        typer.echo(f"rankwise: port {port} is taken; {watcher.port} is used.", err=True)
    if watcher.is_open:
        typer.echo(
            f"Warning: other machines can reach this page, at port {watcher.port} and with the "
            "token; what is sent is not encrypted.",
            err=True,
        )
    typer.echo(f"Watching {folder} at {watcher.address} (Ctrl-C ends it)")
    if open_browser:
        webbrowser.open(watcher.address)
    watcher.run()


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is not a folder; give the one that --out of train names.")
    if is_run(folder):
        raise ArgumentError(f"{folder} is a single run; give the folder it is in.")


def _watcher(folder: Path, host: str, port: int, token: str | None) -> Watcher:
    try:
        from rankwise.reports.watch.listening import Watcher  # noqa: PLC0415
    except MissingExtraError:
        raise
    except ImportError as error:
        package = (error.name or "starlette").partition(".")[0]
        raise MissingExtraError(package, "report", "Watching runs") from error
    return Watcher(folder, host=host, port=port, token=token)
