"""`rankwise study correlate`: which numbers from the weights rank networks by their accuracy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.output import (
    STDOUT,
    check_outputs,
    get_table_width,
    make_console,
    print_lines,
    print_text,
    write_output,
)
from rankwise.cli.progress import ProgressBar
from rankwise.errors import ArgumentError

if TYPE_CHECKING:
    from rankwise.study.zoo.networks import Columns, Zoo
    from rankwise.study.zoo.ranking import Ranking

__all__ = ["CORRELATE_EXAMPLES", "correlate"]

_MOST_RESAMPLES = 10_000  # all are held in memory at once
CORRELATE_EXAMPLES = """\b
Examples:
  rankwise study correlate zoo/index.csv
  rankwise study correlate runs --out ranking.html
  rankwise study correlate studies/cpu/correlation.toml --runs runs
  rankwise study correlate nets.csv --accuracy top1 --family arch
  rankwise study correlate nets.csv --json ranking.json --csv scores.csv

\b
A table has a line for each checkpoint: checkpoint (a path from the table's
folder), accuracy, and where known train_accuracy, family and group. Networks
of one family are ranked among each other; those of one group, such as trials
of one setting, are not independent.
"""


def correlate(
    index: Annotated[
        Path,
        typer.Argument(
            metavar="INDEX", help="A CSV of checkpoints, a folder of runs, or a study's TOML file."
        ),
    ],
    *,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Where a study's runs are.")] = Path(
        "runs"
    ),
    checkpoint: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of paths.")
    ] = None,
    accuracy: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of test accuracies.")
    ] = None,
    train_accuracy: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of training accuracies.")
    ] = None,
    family: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of families.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of groups.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="Write a page.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write everything; - for stdout.")
    ] = None,
    csv: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write all networks' scores; - for stdout.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of resamples and shuffles.")] = 0,
    resamples: Annotated[
        int, typer.Option(help="For an interval; ten times as many shuffles for a p.")
    ] = 1000,
) -> None:
    """See how well Q and other numbers rank networks by their accuracy."""
    from rankwise.cli.study.ranking_text import format_csv, format_json
    from rankwise.study.zoo.networks import Columns
    from rankwise.study.zoo.rank import rank_networks

    targets = [target for target in (out, json, csv) if target is not None]
    check_outputs(targets, [index])
    if not 1 <= resamples <= _MOST_RESAMPLES or seed < 0:
        raise ArgumentError(
            f"Expected --resamples of 1 to {_MOST_RESAMPLES} and --seed of 0 or more."
        )
    zoo = _read(index, runs, Columns(checkpoint, accuracy, train_accuracy, group, family))
    check_outputs(targets, [network.path for network in zoo.networks])
    with ProgressBar(delay=0.7) as bar:
        found = rank_networks(
            zoo,
            resamples=resamples,
            seed=seed,
            watch=lambda now: bar.update("Probing", done=now.done, total=now.total, note=now.name),
        )
    if out is not None:
        write_output(out, _page(found))
    if json is not None:
        write_output(json, format_json(found).encode())
    if csv is not None:
        write_output(csv, format_csv(found).encode())
    if STDOUT not in targets:
        print_ranking(found)


def _read(index: Path, runs: Path, columns: Columns) -> Zoo:
    from rankwise.study.zoo.networks import Columns
    from rankwise.study.zoo.runs import read_runs
    from rankwise.study.zoo.table import read_table

    is_study = index.suffix == ".toml"
    if not index.is_dir() and not is_study:
        return read_table(index, columns)
    if columns != Columns():
        raise ArgumentError(f"{index} leads to runs, which have no columns to name.")
    return _study_runs(index, runs) if is_study else read_runs(index)


def _study_runs(file: Path, runs: Path) -> Zoo:
    """The trials of a study; not what it was tuned by."""
    from rankwise.cli.study.source import readable_runs
    from rankwise.study.gather import gather
    from rankwise.study.grid import read_study
    from rankwise.study.zoo.runs import read_runs

    trials = gather(read_study(file), readable_runs(runs)).trials
    return replace(read_runs(runs, {run.folder.name for run in trials}), source=str(file))


def _page(found: Ranking) -> bytes:
    from rankwise.reports.correlation import correlation_page
    from rankwise.reports.html import page_bytes

    return page_bytes(correlation_page(found))


def print_ranking(found: Ranking) -> None:
    """Print the verdict, every family's tables, and how they came about."""
    from rankwise.cli.study.ranking_text import family_lines, format_method, format_verdict

    console = make_console()
    width = get_table_width(console)
    print_text(console, format_verdict(found, width))
    for family in found.families:
        for lines in family_lines(family, width):
            console.print()
            print_lines(console, lines)
    print_text(console, format_method(found, width))
