"""Options that several commands on studies have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DataRoot", "Out", "StudyFile"]

StudyFile = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The study.")]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="The folder that runs are in; runs/ by default.", show_default=False
    ),
]
DataRoot = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="The folder that data sets are in; data/ by default.",
        show_default=False,
    ),
]
