"""Options that several commands on studies have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DataRoot", "Out", "RunsOrRecords", "StudyFile", "StudySource"]

StudyFile = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The study.")]
StudySource = Annotated[
    Path,
    typer.Argument(
        metavar="STUDY", help="A study's TOML file, a folder of runs, or exported records."
    ),
]
RunsOrRecords = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Where the study's runs are, or their records; as the study says, else runs/.",
        show_default=False,
    ),
]
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
