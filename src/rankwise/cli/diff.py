"""`rankwise diff`: what changed from a base to what was tuned from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwise._text import wrap
from rankwise.cli.output import (
    STDOUT,
    check_outputs,
    get_table_width,
    make_console,
    print_lines,
    print_sentences,
    print_text,
    write_output,
)
from rankwise.cli.probe import Json, Top
from rankwise.cli.resources import Jobs, Memory, NoCache, make_resources

DIFF_EXAMPLES = """\b
Examples:
  rankwise diff base.safetensors tuned.safetensors
  rankwise diff base.safetensors tuned.safetensors --sort -change --top 10
  rankwise diff hf://org/base hf://org/tuned --include '*.mlp.*'
  rankwise diff base.pt tuned.pt --json - | jq .weights.adapter_parameters
  rankwise diff epoch1.json epoch9.json --sort -stable_rank
  rankwise report base.pt tuned.pt -o changes.html
"""


def diff(
    before: Annotated[
        Path,
        typer.Argument(metavar="BASE", help="A checkpoint (file, folder, hf://) or saved probe."),
    ],
    after: Annotated[Path, typer.Argument(metavar="TUNED", help="Another one to compare with it.")],
    *,
    json: Json = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Sort by change, by rank or low_rank of the change, by how stable_rank, "
            "condition or quality changed, or by name, smallest first; with - in front "
            "(-change) largest first. Saved probes have no change and low_rank.",
        ),
    ] = None,
    top: Top = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Compare only tensors with matching names; repeatable."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Leave out tensors with matching names; repeatable."),
    ] = None,
    jobs: Jobs = None,
    memory: Memory = None,
    no_cache: NoCache = False,
) -> None:
    """Show what changed from BASE to TUNED, and its rank layer by layer.

    Of every layer: the size of its change, ‖ΔW‖/‖W‖, the rank that stands out from noise, its share
    of the change, and the parameters of a LoRA of that rank. Of saved probes, which hold no
    weights: how rank, s, κ and q changed.
    """
    from rankwise.adapters.deltas.change_text import ROW_SORT_KEYS
    from rankwise.adapters.deltas.comparison import diff as compare
    from rankwise.cli.progress import show_probing
    from rankwise.probes.diff_text import CHANGE_SORT_KEYS
    from rankwise.probes.results import is_saved_probe
    from rankwise.probes.text import check_sort

    has_saved = is_saved_probe(before) or is_saved_probe(after)
    check_sort(CHANGE_SORT_KEYS if has_saved else ROW_SORT_KEYS, sort, top)
    check_outputs([json] if json is not None else [], [before, after])
    resources = make_resources(jobs, memory, no_cache)
    with show_probing("Comparing", resumes=resources.cache is not False) as progress:
        result = compare(
            before,
            after,
            include=include or None,
            exclude=exclude or None,
            resources=resources,
            progress=progress,
        )
    if json is not None:
        write_output(json, (result.to_json(indent=2) + "\n").encode())
    if json == STDOUT:
        return
    console = make_console()
    width = get_table_width(console)
    lines = result.align_rows(sort=sort, top=top, width=width)
    if summary := result.describe():
        print_sentences(console, "\n".join(wrap(text, width) for text in summary))
        if lines:
            console.print()
    print_lines(console, lines)
    print_text(console, "\n".join(wrap(text, width) for text in result.describe_others()))
