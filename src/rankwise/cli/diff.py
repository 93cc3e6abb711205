"""`rankwise diff`: how the metrics of each layer changed between two checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise._text import wrap
from rankwise.cli.output import (
    STDOUT,
    check_outputs,
    get_table_width,
    make_console,
    print_lines,
    print_text,
    write_output,
)
from rankwise.cli.probe import Json, ProbeOptions, Top, load_probe
from rankwise.errors import ArgumentError

if TYPE_CHECKING:
    from rankwise.probes.results import Probe

__all__ = ["DIFF_EXAMPLES", "diff"]

DIFF_EXAMPLES = """\b
Examples:
  rankwise diff pretrained.pth finetuned.pth
  rankwise diff epoch1.json epoch9.json --sort -quality --top 10
  rankwise diff a.safetensors b.safetensors --json - | jq .added
"""


def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A checkpoint or saved probe.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another one to compare with it.")],
    json: Json = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Sort by the change of quality, stable_rank, condition or rank, or by name, "
            "smallest first; with - in front (-quality) largest first.",
        ),
    ] = None,
    top: Top = None,
) -> None:
    """Show how rank, s, κ and q of every layer changed from A to B."""
    from rankwise.probes.diff_text import CHANGE_SORT_KEYS, align_changes, format_changes
    from rankwise.probes.text import check_sort

    check_sort(CHANGE_SORT_KEYS, sort, top)
    check_outputs([json] if json is not None else [], [before, after])
    first, second = _load_pair(before, after)
    changes = first.diff(second)
    if json is not None:
        write_output(json, (changes.to_json(indent=2) + "\n").encode())
    if json == STDOUT:
        return
    console = make_console()
    width = get_table_width(console)
    print_lines(console, align_changes(changes, sort=sort, top=top, width=width))
    quality = wrap(_format_quality(first, second), width)
    print_text(console, f"{format_changes(changes, width=width)}\n{quality}")


def _load_pair(before: Path, after: Path) -> tuple[Probe, Probe]:
    """Load two probes; a checkpoint beside a saved probe is probed with the same exponent."""
    from rankwise.probes.results import is_saved_probe

    paths = (before, after)
    saved = {path: load_probe(path, ProbeOptions()) for path in paths if is_saved_probe(path)}
    exponents = {probe.p for probe in saved.values()}
    if len(exponents) > 1:
        raise ArgumentError(
            f"Expected probes with the same exponent, got p = {saved[before].p:g} in {before} and "
            f"p = {saved[after].p:g} in {after}. Probe both with the same --p."
        )
    options = ProbeOptions(p=exponents.pop() if exponents else None)
    first, second = (saved.get(path) or load_probe(path, options) for path in paths)
    return first, second


def _format_quality(before: Probe, after: Probe) -> str:
    if before.quality is None or after.quality is None:
        return "Network quality Q: not known for both."
    change = after.quality - before.quality
    return f"Network quality Q: {before.quality:.3f} → {after.quality:.3f} ({change:+.3f})."
