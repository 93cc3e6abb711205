"""`rankwise lora extract`: the difference of two networks as an adapter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankwise._text import quote, wrap
from rankwise.cli.output import (
    STDOUT,
    check_outputs,
    get_table_width,
    make_console,
    print_lines,
    print_text,
    write_output,
)
from rankwise.cli.probe import Json
from rankwise.cli.resources import parse_size
from rankwise.errors import ArgumentError

if TYPE_CHECKING:
    from rankwise.adapters.extraction.extraction_files import Extraction
    from rankwise.adapters.extraction.extraction_plan import ExtractionPlan
    from rankwise.adapters.extraction.rank_budget import Rank

EXTRACT_EXAMPLES = """\b
Examples:
  rankwise lora extract base.safetensors tuned.safetensors -o adapter
  rankwise lora extract base/ tuned/ -o adapter --max-size 50MB
  rankwise lora extract base.pt tuned.pt -o adapter --rank 16
  rankwise lora extract base/ tuned/ --rank energy:0.9 --dry-run

\b
Use with PEFT:
  PeftModel.from_pretrained(base, "adapter").merge_and_unload()
"""


def extract(
    base: Annotated[
        Path, typer.Argument(metavar="BASE", help="The network that the adapter is for.")
    ],
    tuned: Annotated[
        Path, typer.Argument(metavar="TUNED", help="The network that was made from it.")
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="ADAPTER", help="The folder to make."),
    ] = None,
    rank: Annotated[
        str,
        typer.Option(
            metavar="auto|N|energy:SHARE",
            help="Rank of each layer: that of its change by EVBMF, the same number everywhere, or "
            "the least with this share of ‖Δ‖².",
        ),
    ] = "auto",
    max_rank: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="No layer gets more.")
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of the adapter's tensors, as in 50MB: ranks are cut evenly until it fits.",
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        typer.Option(help="Type of the factors; that of the tuned weights by default."),
    ] = None,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Shrink singular values by their noise, as EVBMF does.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what the adapter would keep.")
    ] = False,
    json: Json = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The part of a nested TUNED that holds the weights."),
    ] = None,
    base_key: Annotated[str | None, typer.Option(metavar="KEY", help="The same for BASE.")] = None,
) -> None:
    """Extract a LoRA: the difference of two networks, as a folder of PEFT.

    Layers get the rank of their change; norms and other small tensors are stored whole. Prints how
    much of the change is kept, in each layer and in all, before anything is written.
    """
    import torch

    from rankwise.adapters.extraction.extraction_files import write_adapter
    from rankwise.adapters.extraction.extraction_plan import ExtractionOptions
    from rankwise.adapters.extraction.extraction_text import format_json
    from rankwise.adapters.extraction.planning import plan_extraction
    from rankwise.adapters.stored.peft_folder import check_peft_folder
    from rankwise.cli.progress import ProgressBar

    if output is None and not dry_run:
        raise ArgumentError("Expected a folder for the adapter: -o ADAPTER, or --dry-run.")
    options = ExtractionOptions(
        rank=parse_rank(rank),
        max_rank=max_rank,
        max_size=None if max_size is None else parse_size(max_size),
        shrink=shrink,
        dtype=None if dtype is None else getattr(torch, dtype),
    )
    if output is not None:
        check_peft_folder(output, [base, tuned])
    check_outputs([json] if json is not None else [], [*_list_files(base), *_list_files(tuned)])
    with ProgressBar(delay=0.7) as bar:
        plan = plan_extraction(
            str(base),
            str(tuned),
            options,
            key=key,
            base_key=base_key,
            progress=lambda name, done, total: bar.update(
                "Measuring", done=done, total=total, note=name
            ),
        )
    if json != STDOUT:
        _print_plan(plan)
    extraction = None
    if output is not None and not dry_run:
        with ProgressBar(delay=0.7) as bar:
            extraction = write_adapter(
                plan,
                output,
                progress=lambda name, done, total: bar.update(
                    "Writing", done=done, total=total, note=name
                ),
            )
    if json is not None:
        write_output(json, format_json(plan, extraction).encode())
    if extraction is not None and json != STDOUT:
        _print_written(extraction)


def _list_files(path: Path) -> list[Path]:
    """Return a file, or a folder with all that is in it."""
    return [path, *path.iterdir()] if path.is_dir() else [path]


def _print_plan(plan: ExtractionPlan) -> None:
    from rankwise._table import align_cells
    from rankwise.adapters.extraction.extraction_text import describe_plan, make_extraction_table

    console = make_console()
    width = get_table_width(console)
    if plan.layers:
        print_lines(console, align_cells(make_extraction_table(plan), width))
    print_text(console, "\n".join(wrap(text, width) for text in describe_plan(plan)))


def _print_written(extraction: Extraction) -> None:
    from rankwise.adapters.extraction.extraction_text import describe_extraction

    console = make_console()
    print_text(console, wrap(describe_extraction(extraction), get_table_width(console)))


def parse_rank(text: str) -> Rank:
    """Return the rule that a text stands for.

    Raises:
        ArgumentError: If it is none.

    Example:
        >>> from rankwise.cli.lora.extract import parse_rank
        >>> parse_rank("auto"), parse_rank("16"), parse_rank("energy:0.9"), parse_rank("energy:95%")
        ('auto', 16, 0.9, 0.95)
    """
    if text == "auto":
        return "auto"
    if re.fullmatch(r"0*[1-9]\d{0,6}", text, re.ASCII):
        return int(text)
    match = re.fullmatch(r"energy:(\d{0,3}(?:\.\d{0,9})?)(%?)", text, re.ASCII)
    if match is not None and re.search(r"\d", match[1]):
        share = float(match[1]) / (100 if match[2] else 1)
        if 0 < share <= 1:
            return share
    raise ArgumentError(
        f"Expected auto, a number such as 16, or a share such as energy:0.9 as rank, got "
        f"{quote(text)}."
    )
