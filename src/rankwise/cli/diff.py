"""`rankwise diff`: what each layer gained or lost between two checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from rankwise._text import wrap
from rankwise.cli.console import print_lines, print_text, stdout_console, table_width
from rankwise.cli.loading import ProbeOptions, load
from rankwise.cli.output import STDOUT, check_targets, write
from rankwise.errors import ArgumentError
from rankwise.probes.diff import ProbeDiff
from rankwise.probes.probe_result import Probe, is_saved_probe
from rankwise.probes.show.changes import DIFF_SORTS, change_lines, format_verdict
from rankwise.probes.show.table import check_view

__all__ = ["DIFF_EXAMPLES", "diff"]

DIFF_EXAMPLES = """\b
Examples:
  rankwise diff pretrained.pth finetuned.pth
  rankwise diff epoch1.json epoch9.json --sort -quality --top 10
  rankwise diff a.safetensors b.safetensors --json - | jq .added
"""


def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A checkpoint or saved probe.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="What to compare it with.")],
    json: Annotated[
        str | None, typer.Option(metavar="OUT", help="Write JSON; - for stdout.")
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help=f"Sort by the change of {', '.join(DIFF_SORTS)}; '-' in front reverses.",
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(metavar="N", help="Show the first N rows only.")
    ] = None,
) -> None:
    """Show how rank, s, κ and q of every layer changed from A to B."""
    check_view(DIFF_SORTS, sort, top)
    check_targets([json] if json is not None else [], [before, after])
    first, second = load_pair(before, after)
    found = first.diff(second)
    if json is not None:
        write(json, (found.to_json(indent=2) + "\n").encode())
    if json != STDOUT:
        print_diff(found, format_network(first, second), sort=sort, top=top)


def load_pair(before: Path, after: Path) -> tuple[Probe, Probe]:
    """Both probes; weights beside a saved probe are probed with the exponent that one has.

    Raises:
        ArgumentError: If two saved probes have different exponents.
    """
    saved = {path: load(path, ProbeOptions()) for path in (before, after) if is_saved_probe(path)}
    exponents = {probe.p for probe in saved.values()}
    if len(exponents) > 1:
        raise ArgumentError(
            f"{before} has p = {saved[before].p:g} and {after} p = {saved[after].p:g}: "
            "their figures can't be compared. Probe both with the same --p."
        )
    options = ProbeOptions(p=exponents.pop() if exponents else None)
    first, second = (saved.get(path) or load(path, options) for path in (before, after))
    return first, second


def print_diff(found: ProbeDiff, network: str, *, sort: str | None, top: int | None) -> None:
    """Print the table of changes and what it means in words."""
    console = stdout_console()
    width = table_width(console)
    print_lines(console, change_lines(found, sort=sort, top=top, width=width))
    print_text(console, format_verdict(found, width=width) + "\n" + wrap(network, width))


def format_network(before: Probe, after: Probe) -> str:
    """The change of network quality in a sentence."""
    if before.quality is None or after.quality is None:
        return "Network quality Q: not known on both sides."
    change = after.quality - before.quality
    return f"Network quality Q: {before.quality:.3f} → {after.quality:.3f} ({change:+.3f})."
