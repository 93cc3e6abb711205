"""`rankwise select`: which layers of a checkpoint to fine-tune."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankwise._text import format_count, wrap
from rankwise.cli.output import (
    STDOUT,
    check_outputs,
    get_table_width,
    make_console,
    print_error,
    print_lines,
    print_text,
    write_output,
)
from rankwise.cli.probe import Exclude, Json, Key, ProbeOptions, load_probe
from rankwise.cli.resources import Jobs, Memory, NoCache, make_resources
from rankwise.errors import ArgumentError

if TYPE_CHECKING:
    from rankwise.adapters.selection.ranking import Selection

SELECT_EXAMPLES = """\b
Examples:
  rankwise select model.safetensors --budget 25%
  rankwise select model.safetensors --format peft > lora.json
  rankwise select hf://org/name --format axolotl >> axolotl.yaml
  rankwise select model.safetensors --include '*.mlp.*' --format list

\b
Use with PEFT:
  LoraConfig(**json.load(open("lora.json")))
"""


def select(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="A checkpoint: a file, a folder or hf://org/name; or a probe saved as JSON.",
        ),
    ],
    *,
    budget: Annotated[
        str, typer.Option(metavar="SHARE", help="How many of the layers, as in 25% or 0.25.")
    ] = "25%",
    form: Annotated[
        Literal["list", "peft", "axolotl", "regex"] | None,
        typer.Option(
            "--format",
            help="Print names, PEFT's options as JSON, axolotl's unfrozen_parameters, or one "
            "regular expression of modules; a table if not given.",
        ),
    ] = None,
    rank: Annotated[
        int,
        typer.Option(
            metavar="R",
            min=1,
            help="LoRA rank to distribute: as many parameters as with this rank everywhere.",
        ),
    ] = 16,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Choose among weights with matching names; repeatable."),
    ] = None,
    exclude: Exclude = None,
    json: Json = None,
    key: Key = None,
    jobs: Jobs = None,
    memory: Memory = None,
    no_cache: NoCache = False,
) -> None:
    """Choose layers to fine-tune; in our tests no better than random ones.

    On three small networks a quarter of the layers with the most signal gained no more than a
    quarter drawn at random, and less than all layers (docs/adapters.md).
    """
    from rankwise.adapters.selection.ranking import select_layers
    from rankwise.adapters.selection.selection_formats import (
        format_json,
        format_selection,
        list_others,
    )

    share = parse_share(budget)
    check_outputs([json] if json is not None else [], [path])
    if json == STDOUT and form is not None:
        raise ArgumentError("--json - and --format both print on stdout; give one of them.")
    options = ProbeOptions(tuple(include or ()), tuple(exclude or ()), key=key)
    probed = load_probe(path, options, make_resources(jobs, memory, no_cache))
    selection = select_layers(probed, share, rank=rank, alone=include is not None)
    if json is not None:
        write_output(json, format_json(selection).encode())
    if form is not None:
        write_output(STDOUT, format_selection(selection, form).encode())
        others = list_others(selection) if form in ("peft", "regex") else []
        if others:
            print_error(
                f"Warning: left out {format_count(len(others), 'layer')} that PEFT can't name as "
                "modules; --format list has them all."
            )
    elif json != STDOUT:
        _print_selection(selection)


def _print_selection(selection: Selection) -> None:
    from rankwise._table import align_cells
    from rankwise.adapters.selection.selection_formats import describe_selection, make_table

    console = make_console()
    width = get_table_width(console)
    print_lines(console, align_cells(make_table(selection), width))
    print_text(console, "\n".join(wrap(text, width) for text in describe_selection(selection)))


def parse_share(text: str, of: str = "the layers") -> float:
    """Return a share above 0 and at most 1; `of` is what it is a share of.

    Example:
        >>> from rankwise.cli.selection import parse_share
        >>> parse_share("25%"), parse_share("0.5")
        (0.25, 0.5)
    """
    match = re.fullmatch(r"(\d{0,9}(?:\.\d{0,9})?)\s*(%?)", text.strip())
    if match is None or not any(map(str.isdigit, match[1])):
        raise ArgumentError(f"Expected a share of {of} such as 25% or 0.25, got {text!r}.")
    share = float(match[1]) / (100 if match[2] else 1)
    if not 0 < share <= 1:
        raise ArgumentError(f"Expected a share of {of} above 0 and at most 100%, got {text!r}.")
    return share
