"""`rankwise report` and `rankwise watch`: pages about checkpoints, runs and studies."""

from __future__ import annotations

import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankwise._io import explain_missing
from rankwise.cli.output import STDOUT, check_outputs, print_error, write_output
from rankwise.cli.probe import (
    Exclude,
    Exponent,
    Include,
    Key,
    ProbeOptions,
    fail_unmeasured,
    load_probe,
)
from rankwise.cli.resources import Jobs, Memory, NoCache, make_resources
from rankwise.errors import ArgumentError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankwise.adapters.deltas.change_records import NetworkChange
    from rankwise.checks.findings import Findings
    from rankwise.probes.results import Probe
    from rankwise.reports.watch.server import WatchServer

REPORT_EXAMPLES = """\b
Examples:
  rankwise report model.safetensors
  rankwise report base.pt tuned.pt -o changes.html
  rankwise report checkpoints/epoch*.pt -o evolution.html
  rankwise report runs/resnet8-digits-rmsgd-1a2b3c4d-seed0 --open
  rankwise report runs -o study.html --images charts --image-format pdf

\b
Exit code 1 if a path could not be read; also, after the page is written,
if no layer of a checkpoint could be measured.
"""
WATCH_EXAMPLES = """\b
Examples:
  rankwise watch runs
  rankwise watch runs --port 9000 --open
  rankwise watch runs --host 0.0.0.0    (for other machines, with a token)

\b
To watch runs on another machine without opening a port:
  ssh -L 8765:localhost:8765 MACHINE
Ctrl-C stops the server with exit code 0. The folder is only read.
"""


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Checkpoints (files, folders, hf://) or probes, a run, or a folder of runs.",
        ),
    ],
    *,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Where to write; - for stdout.")
    ] = "report.html",
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the page.")] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write every chart as an image to this folder."),
    ] = None,
    image_format: Annotated[
        Literal["png", "svg", "pdf"], typer.Option(help="Format of these images.")
    ] = "png",
    include: Include = None,
    exclude: Exclude = None,
    p: Exponent = None,
    key: Key = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
    jobs: Jobs = None,
    memory: Memory = None,
    no_cache: NoCache = False,
) -> None:
    """Write an HTML page about checkpoints, a run or a study."""
    from rankwise.adapters.deltas.changes import measure_changes
    from rankwise.checks.check import check as check_weights
    from rankwise.cli.progress import show_probing
    from rankwise.probes.results import is_saved_probe
    from rankwise.reports.html import encode_page
    from rankwise.reports.report import build_page, write_images

    _check_outputs(out, images, open_browser, paths)
    options = ProbeOptions(tuple(include or ()), tuple(exclude or ()), p, key=key)
    probes: list[Probe] = []
    resources = make_resources(jobs, memory, no_cache)

    def load(path: Path, spectra: bool) -> Probe:
        if is_saved_probe(path):  # next to checkpoints, the options are for those
            result = load_probe(path, options if len(paths) == 1 else ProbeOptions(), resources)
        else:
            result = load_probe(path, replace(options, spectra=spectra), resources)
        probes.append(result)
        return result

    def check(path: Path) -> Findings:
        with show_probing("Checking", resumes=resources.cache is not False) as progress:
            findings = check_weights(path, key=key, resources=resources, progress=progress)
        probes.append(findings.probe)
        return findings

    def compare(base: Path, tuned: Path) -> NetworkChange:
        with show_probing("Comparing") as progress:
            return measure_changes(
                base,
                tuned,
                include=options.include or None,
                exclude=options.exclude or None,
                resources=resources,
                progress=progress,
            )

    # Findings are about the whole file: a part of it, or another p, gets a page without them.
    is_whole = not (options.include or options.exclude or options.p)
    page = build_page(
        paths, title=title, load=load, check=check if is_whole else None, compare=compare
    )
    if not probes and (given := options.list_given()):
        raise ArgumentError(f"{given} needs checkpoints; runs are measured while they train.")
    write_output(out, encode_page(page))
    if out != STDOUT:
        typer.echo(f"Written: {out}")
    if images is not None:
        written = write_images(page, images, image_format)
        typer.echo(f"Written: {len(written)} charts in {images}", err=out == STDOUT)
    if open_browser:
        webbrowser.open(Path(out).resolve().as_uri())
    fail_unmeasured(probes, options)


def _check_outputs(
    out: str, images: Path | None, open_browser: bool, paths: Sequence[Path]
) -> None:
    check_outputs([out], paths)
    if open_browser and out == STDOUT:
        raise ArgumentError("--open needs a file: give -o a name.")
    if images is not None and images.exists() and not images.is_dir():
        raise ArgumentError(f"{images}: --images names a folder, got a file.")


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder of runs, as --out of train.")
    ],
    *,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The name or address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=65535, help="The port; if taken, the next free."),
    ] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="What visitors must give; random by default if other machines can connect.",
            show_default=False,
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
) -> None:
    """Show the runs in a folder as live pages in a browser."""
    from rankwise.lab.records import is_run

    if not folder.exists():
        raise ArgumentError(explain_missing(folder))
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is not a folder; give the one that --out of train names.")
    if is_run(folder):
        raise ArgumentError(f"{folder} is a single run; give the folder that contains it.")
    if (folder / "config.json").exists():
        raise ArgumentError(
            f"{folder} holds a model, not runs; `rankwise report {folder}` writes a page about it."
        )
    watcher = _open_watcher(folder, host, port, token)
    if port and watcher.port != port:
        print_error(f"port {port} is taken; using {watcher.port}.")
    if watcher.is_open:
        typer.echo(
            f"Warning: other machines can open this page at port {watcher.port} with the token; "
            "the connection is not encrypted.",
            err=True,
        )
    typer.echo(f"Watching {folder} at {watcher.address} (Ctrl-C stops it)")
    if open_browser:
        webbrowser.open(watcher.address)
    watcher.run()


def _open_watcher(folder: Path, host: str, port: int, token: str | None) -> WatchServer:
    try:
        from rankwise.reports.watch.server import WatchServer
    except MissingExtraError:
        raise
    except ImportError as error:
        raise MissingExtraError(error.name or "starlette", "report", "Watching runs") from error
    return WatchServer(folder, host=host, port=port, token=token)
