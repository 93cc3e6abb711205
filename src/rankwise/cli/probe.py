"""`rankwise probe` and `explain`: the metrics of checkpoints, and what they mean."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankwise._text import (
    escape_formula,
    format_count,
    format_name,
    quote,
    wrap,
)
from rankwise.cli.output import (
    FAILED,
    STDOUT,
    Split,
    check_outputs,
    get_table_width,
    make_console,
    print_error,
    print_lines,
    print_text,
    write_output,
)
from rankwise.cli.resources import Jobs, Memory, NoCache, make_resources
from rankwise.errors import ArgumentError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankwise.probes.layer_metrics import LayerMetrics
    from rankwise.probes.results import Probe
    from rankwise.probes.workers import Resources

PROBE_EXAMPLES = """\b
Examples:
  rankwise probe resnet18.pth
  rankwise probe model.safetensors --sort stable_rank --top 10
  rankwise probe model.pt --include '*.[qkv]_proj.*' --exclude '*.bias'
  rankwise probe model.pt --json probe.json --csv probe.csv
  rankwise probe model.pt --split heads --include '*.attn.*'
  rankwise probe hf://org/name@main --memory 4GB
  rankwise probe probe.json --sort -noise

\b
Exit codes:
  0  at least one layer was probed
  1  none was, or the file could not be read
"""
EXPLAIN_EXAMPLES = """\b
Examples:
  rankwise explain
  rankwise explain stable_rank
  rankwise explain Q
"""

Modes = Literal["both", "input", "output"]
Include = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Probe only tensors with matching names; repeatable."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Do not probe tensors with matching names; repeatable."),
]
Exponent = Annotated[
    float | None,
    typer.Option("--p", metavar="P", help="Exponent in the stable rank; 2 by default."),
]
Top = Annotated[int | None, typer.Option(metavar="N", help="Show only the first N rows.")]
Json = Annotated[str | None, typer.Option(metavar="FILE", help="Write JSON; - for stdout.")]
Key = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="The part of a nested checkpoint that holds the weights."),
]


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Options for probing weights; None, False or empty if not given."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    p: float | None = None
    modes: Modes | None = None
    split: Split | None = None
    key: str | None = None
    spectra: bool = False

    def list_given(self) -> str:
        """Return the options that were given, as in "--include, --p"."""
        return ", ".join(f"--{field.name}" for field in fields(self) if getattr(self, field.name))


def load_probe(path: Path, options: ProbeOptions, resources: Resources) -> Probe:
    """Probe a checkpoint, or load a saved probe."""
    from rankwise.api import probe as probe_weights
    from rankwise.cli.progress import show_probing
    from rankwise.probes.results import Probe, is_saved_probe

    if is_saved_probe(path):
        if given := options.list_given():
            raise ArgumentError(
                f"{path} is a saved probe, which {given} can't change. Give the checkpoint instead."
            )
        return Probe.load(path)
    with show_probing(resumes=resources.cache is not False) as progress:
        return probe_weights(
            path,
            include=options.include or None,
            exclude=options.exclude or None,
            p=2.0 if options.p is None else options.p,
            modes=options.modes or "both",
            split=options.split or False,
            key=options.key,
            spectra=options.spectra,
            resources=resources,
            progress=progress,
        )


def probe(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A checkpoint: a file, a folder or hf://org/name; or a probe saved as JSON.",
        ),
    ],
    *,
    json: Json = None,
    csv: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write CSV; - for stdout.")
    ] = None,
    parquet: Annotated[str | None, typer.Option(metavar="FILE", help="Write Parquet.")] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Sort by rank, stable_rank, condition, quality, noise, prominence, name or size, "
            "smallest first; with - in front (-noise) largest first.",
        ),
    ] = None,
    include: Include = None,
    exclude: Exclude = None,
    top: Top = None,
    p: Exponent = None,
    modes: Annotated[
        Modes | None, typer.Option(help="Unfoldings of convolutions; both by default.")
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(
            metavar="[stacks|heads]",
            help="Probe the parts of a stacked weight separately: recurrent gates, stacked q, k, v "
            "and gate, up (stacks, if only --split is given), or every attention head (heads).",
        ),
    ] = None,
    key: Key = None,
    spectra: Annotated[
        bool,
        typer.Option("--spectra", help="Keep the singular values of every layer in the JSON."),
    ] = False,
    show_all: Annotated[
        bool,
        typer.Option("--all", help="List every layer, expert, skipped tensor and caveat."),
    ] = False,
    jobs: Jobs = None,
    memory: Memory = None,
    no_cache: NoCache = False,
) -> None:
    """Show the metrics of every layer of a checkpoint."""
    from rankwise.probes.text import LAYER_SORT_KEYS, check_sort

    check_sort(LAYER_SORT_KEYS, sort, top)
    outputs = [output for output in (json, csv, parquet) if output is not None]
    check_outputs(outputs, [path])
    if parquet is not None:
        _check_parquet(parquet)
    options = ProbeOptions(
        tuple(include or ()), tuple(exclude or ()), p, modes, split, key, spectra
    )
    result = load_probe(path, options, make_resources(jobs, memory, no_cache))
    if json is not None:
        write_output(json, (result.to_json(indent=2) + "\n").encode())
    if csv is not None:
        write_output(csv, format_csv(result).encode())
    if parquet is not None:
        buffer = io.BytesIO()
        result.to_frame().to_parquet(buffer)
        write_output(parquet, buffer.getvalue())
    if STDOUT not in outputs:
        _print_probe(result, sort=sort, top=top, show_all=show_all)
    fail_unmeasured([result], options)


def _complete_metric(incomplete: str) -> list[str]:
    from rankwise.probes.explain import EXPLANATIONS

    return [name for name in EXPLANATIONS if name.startswith(incomplete)]


def explain(
    metric: Annotated[
        str | None,
        typer.Argument(
            metavar="METRIC",
            help="A metric or its symbol; all are listed without it.",
            autocompletion=_complete_metric,
        ),
    ] = None,
) -> None:
    """Explain a metric: its formula, range and limits."""
    from rankwise.probes.explain import explain as explain_metric

    width = get_table_width(make_console())
    typer.echo(explain_metric(metric, width=min(width or 80, 100)))


def fail_unmeasured(probes: Sequence[Probe], options: ProbeOptions) -> None:
    """Exit with 1 if a probe has no layer with metrics, and say why."""
    unmeasured = [probe for probe in probes if not probe.probed]
    for probe in unmeasured:
        print_error(_describe_unmeasured(probe, options))
    if unmeasured:
        raise typer.Exit(FAILED)


def _describe_unmeasured(result: Probe, options: ProbeOptions) -> str:
    from rankwise.weights.tensor import Status

    filters = [f"--include {quote(glob)}" for glob in options.include]
    filters += [f"--exclude {quote(glob)}" for glob in options.exclude]
    filtered = sum(layer.status is Status.FILTERED for layer in result.layers)
    text = f"{result.source}: no layer could be measured"
    if filters and filtered:
        tensors = f"{filtered} of {format_count(len(result.layers), 'tensor')}"
        return f"{text}: {' '.join(filters)} left out {tensors}."
    return f"{text}; rankwise probe --all lists the reasons."


def format_csv(result: Probe) -> str:
    """Return a probe as CSV with one row per tensor; a shape reads 64x3x7x7.

    Texts that a spreadsheet would read as a formula get an apostrophe in front.
    """
    from rankwise.probes.layer_metrics import LayerMetrics

    columns = [field.name for field in fields(LayerMetrics) if field.name != "modes"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for layer in result.layers:
        row = layer.to_dict() | {"shape": "x".join(map(str, layer.shape))}
        writer.writerow({k: escape_formula(v) if isinstance(v, str) else v for k, v in row.items()})
    return text.getvalue()


def _check_parquet(target: str) -> None:
    if target == STDOUT:
        raise ArgumentError("Parquet can't be written to stdout; give --parquet a file name.")
    for package in ("pandas", "pyarrow"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "parquet", "Writing Parquet")


def _print_probe(result: Probe, *, sort: str | None, top: int | None, show_all: bool) -> None:
    from rankwise.probes.summary_text import format_summary
    from rankwise.probes.text import align_layers, format_skipped, list_notes

    console = make_console()
    width = get_table_width(console)
    lines = align_layers(result.layers, sort=sort, top=top, width=width, every=show_all)
    print_lines(console, lines)
    print_text(console, format_summary(result.layers, result.figures, width=width))
    print_text(console, format_skipped(result.layers, width=width))
    notes = list_notes(result.notes, result.order)
    print_text(console, "\n".join(wrap(note, width) for note in notes))
    if show_all:
        rows = [_format_layer(x) for x in result.layers if not x.is_probed or x.reason]
        print_text(console, "\n".join(wrap(row, width) for row in rows))


def _format_layer(layer: LayerMetrics) -> str:
    from rankwise.probes.text import clean_reason, format_shape

    reason = f" ({clean_reason(layer)})" if layer.reason else ""
    return f"{format_name(layer.name)}  {format_shape(layer.shape)}  {layer.status}{reason}"
