"""`rankwise probe`: the layers of a checkpoint, what they learned, and a gate for CI."""

import math
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rankwise._text import sanitize, wrap
from rankwise.cli.console import print_lines, print_text, stdout_console, table_width
from rankwise.cli.guard import BELOW
from rankwise.cli.loading import ProbeOptions, load
from rankwise.cli.options import Exclude, Exponent, Include, Key
from rankwise.cli.output import (
    STDOUT,
    check_parquet,
    check_targets,
    format_csv,
    parquet_bytes,
    write,
)
from rankwise.errors import ArgumentError
from rankwise.probes.probe_result import Probe
from rankwise.probes.results import LayerMetrics
from rankwise.probes.show.table import (
    SORTS,
    check_view,
    format_skipped,
    format_summary,
    shape,
    table_lines,
)

__all__ = ["PROBE_EXAMPLES", "probe"]

PROBE_EXAMPLES = """\b
Examples:
  rankwise probe resnet18.pth
  rankwise probe model.safetensors --sort quality --top 10
  rankwise probe model.pt --include '*.[qkv]_proj.*' --exclude '*.bias'
  rankwise probe model.pt --json probe.json --csv probe.csv
  rankwise probe probe.json --sort -noise
  rankwise probe model.pt --fail-under 0.3    (exit code 2 if Q is below)
"""


class Modes(str, Enum):
    """The unfoldings of a convolution to look at."""

    both = "both"
    input = "input"
    output = "output"


def probe(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A checkpoint, or a probe saved as JSON.")
    ],
    *,
    json: Annotated[
        str | None, typer.Option(metavar="OUT", help="Write JSON; - for stdout.")
    ] = None,
    csv: Annotated[str | None, typer.Option(metavar="OUT", help="Write CSV; - for stdout.")] = None,
    parquet: Annotated[str | None, typer.Option(metavar="OUT", help="Write Parquet.")] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help=f"Sort by {', '.join(SORTS)}; smallest first, '-' in front for largest first.",
        ),
    ] = None,
    include: Include = None,
    exclude: Exclude = None,
    top: Annotated[
        int | None, typer.Option(metavar="N", help="Show the first N rows only.")
    ] = None,
    fail_under: Annotated[
        float | None,
        typer.Option(metavar="Q", help="Exit with 2 if network quality is below (0 to 1.571)."),
    ] = None,
    p: Exponent = None,
    modes: Annotated[
        Modes | None, typer.Option(help="Unfoldings of convolutions; both by default.")
    ] = None,
    split: Annotated[
        bool, typer.Option("--split", help="Probe gates and stacked q, k, v one by one.")
    ] = False,
    key: Key = None,
    spectra: Annotated[
        bool,
        typer.Option("--spectra", help="Keep every layer's singular values in the JSON."),
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="List each skipped tensor, and each caveat.")
    ] = False,
) -> None:
    """Show what every layer of a checkpoint has learned, from its weights alone."""
    check_view(SORTS, sort, top)
    _check_threshold(fail_under)
    targets = [target for target in (json, csv, parquet) if target is not None]
    check_targets(targets, [path])
    if parquet is not None:
        _check_parquet_target(parquet)
    options = ProbeOptions(
        tuple(include or ()), tuple(exclude or ()), p, modes and modes.value, split, key, spectra
    )
    found = load(path, options)
    if json is not None:
        write(json, (found.to_json(indent=2) + "\n").encode())
    if csv is not None:
        write(csv, format_csv(found).encode())
    if parquet is not None:
        write(parquet, parquet_bytes(found))
    if STDOUT not in targets:
        print_probe(found, sort=sort, top=top, show_all=show_all)
    if fail_under is not None and (found.quality is None or found.quality < fail_under):
        typer.echo(f"rankwise: {format_failure(found.quality, fail_under)}", err=True)
        raise typer.Exit(BELOW)


def print_probe(found: Probe, *, sort: str | None, top: int | None, show_all: bool) -> None:
    """Print a probe's table, summary, skipped tensors and notes."""
    console = stdout_console()
    width = table_width(console)
    lines = table_lines(found.layers, sort=sort, top=top, width=width)
    print_lines(console, lines)
    _print_words(console, found, width)
    if show_all:
        told = [layer for layer in found.layers if not layer.probed or layer.reason]
        rows = [wrap(format_row(layer), width) for layer in told]
        print_text(console, "\n".join(rows))


def _print_words(console: Console, found: Probe, width: int | None) -> None:
    print_text(console, format_summary(found.layers, found.quality, found.coverage, width=width))
    print_text(console, format_skipped(found.layers, width=width))
    notes = [wrap(f"Note: {sanitize(note)}", width) for note in found.notes]
    print_text(console, "\n".join(notes))


def format_row(layer: LayerMetrics) -> str:
    """A tensor's status and its reason in a line."""
    reason = f" ({sanitize(layer.reason)})" if layer.reason else ""
    return f"{sanitize(layer.name)}  {shape(layer.shape)}  {layer.status}{reason}"


def format_failure(quality: float | None, threshold: float) -> str:
    """Why the check of --fail-under failed."""
    if quality is None:
        return f"nothing was probed, so quality is not shown to reach {threshold:g}."
    return f"network quality {quality:.4g} is below {threshold:g}."


def _check_threshold(threshold: float | None) -> None:
    if threshold is not None and not 0 <= threshold <= math.pi / 2:
        raise ArgumentError(f"--fail-under must lie between 0 and 1.571 (π/2), not {threshold:g}.")


def _check_parquet_target(target: str) -> None:
    if target == STDOUT:
        raise ArgumentError("Parquet can't go to stdout; give --parquet a file.")
    check_parquet()
