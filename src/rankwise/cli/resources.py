"""The options `--jobs`, `--memory` and `--no-cache` of every command that measures weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise._text import quote
from rankwise.errors import ArgumentError

if TYPE_CHECKING:
    from rankwise.probes.workers import Resources

_GROUP = "Time and memory"
Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Layers to measure at once; one per core by default.",
        rich_help_panel=_GROUP,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory for these layers together, as in 4GB; half of what is free by default.",
        rich_help_panel=_GROUP,
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Measure every layer again, and keep no results on disk.",
        rich_help_panel=_GROUP,
    ),
]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_PREFIXES = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def make_resources(jobs: int | None, memory: str | None, no_cache: bool) -> Resources:
    """Return what the options allow."""
    from rankwise.probes.workers import Resources

    return Resources(jobs, None if memory is None else parse_size(memory), cache=not no_cache)


def parse_size(text: str) -> int:
    """Return a size in bytes.

    Raises:
        ArgumentError: If it is no size, or less than one byte.

    Example:
        >>> from rankwise.cli.resources import parse_size
        >>> parse_size("1.5 GB"), parse_size("512MiB")
        (1500000000, 536870912)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(f"Expected a size such as 4GB or 512MiB, got {quote(text)}.")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _PREFIXES[prefix.upper()])
