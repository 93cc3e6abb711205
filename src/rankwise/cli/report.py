"""`rankwise report`: a checkpoint, several, a run or a study as one page."""

from __future__ import annotations

import webbrowser
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from rankwise.cli.loading import ProbeOptions, load
from rankwise.cli.options import Exclude, Exponent, Include, Key
from rankwise.cli.output import STDOUT, check_targets, write
from rankwise.errors import ArgumentError
from rankwise.probes.probe_result import Probe, is_saved_probe

__all__ = ["REPORT_EXAMPLES", "report"]

REPORT_EXAMPLES = """\b
Examples:
  rankwise report model.safetensors
  rankwise report before.pt after.pt -o changes.html
  rankwise report checkpoints/epoch*.pt -o evolution.html
  rankwise report runs/resnet18-cifar10-rmsgd-1a2b3c4d-seed0 --open
  rankwise report runs -o study.html --images figures --image-format pdf
"""


class ImageFormat(str, Enum):
    """What figures can be written as."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="A checkpoint or saved probe; two or more of them; a run; a folder of runs.",
        ),
    ],
    *,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="The page; - for stdout.")
    ] = "report.html",
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="The page's title.")] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write every figure as an image there."),
    ] = None,
    image_format: Annotated[ImageFormat, typer.Option(help="Of these images.")] = ImageFormat.png,
    include: Include = None,
    exclude: Exclude = None,
    p: Exponent = None,
    key: Key = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write one self-contained page about a checkpoint, several, a run or a study."""
    from rankwise.reports.build import build_page  # noqa: PLC0415 - an extra, and slow to import
    from rankwise.reports.html import page_bytes  # noqa: PLC0415
    from rankwise.reports.images import write_images  # noqa: PLC0415

    check_targets([out], paths)
    if show and out == STDOUT:
        raise ArgumentError("--open needs a file: give -o a name.")
    options = ProbeOptions(tuple(include or ()), tuple(exclude or ()), p, key=key)

    probed: list[Path] = []

    def read(path: Path, spectra: bool) -> Probe:
        probed.append(path)
        if is_saved_probe(path):  # options are for the weights beside it
            return load(path, options if len(paths) == 1 else ProbeOptions())
        return load(path, replace(options, spectra=spectra))

    page = build_page(paths, title=title, load=read)
    if options.given and not probed:
        raise ArgumentError(f"{', '.join(options.given)} is for checkpoints; a run is recorded.")
    write(out, page_bytes(page))
    if out != STDOUT:
        typer.echo(f"Written: {out}")
    if images is not None:
        written = write_images(page, images, image_format.value)
        typer.echo(f"Written: {len(written)} figures in {images}", err=out == STDOUT)
    if show:
        webbrowser.open(Path(out).resolve().as_uri())
