"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Exclude", "Exponent", "Include", "Key"]

Include = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Probe only tensors of such names; may be repeated."),
]
Exclude = Annotated[
    list[str] | None, typer.Option(metavar="GLOB", help="Leave such names out; may be repeated.")
]
Exponent = Annotated[
    float | None,
    typer.Option("--p", metavar="P", help="The exponent in the stable rank; 2 by default."),
]
Key = Annotated[
    str | None, typer.Option(metavar="KEY", help="Which part of a nested checkpoint to probe.")
]
