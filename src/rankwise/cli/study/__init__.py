"""`rankwise study`: run, status, table, export, import, correlate.

The commands' options are here; what they do is in the other modules, which need torch.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from rankwise.cli.command import CommandGroup
from rankwise.errors import ArgumentError

__all__ = ["study"]

EXAMPLES = """\b
Examples:
  rankwise study run study.toml
  rankwise study status study.toml
  rankwise study table study.toml --format markdown
  rankwise study export study.toml --to results
  rankwise study import results/records.jsonl
  rankwise study correlate zoo.csv --out zoo.html

\b
A study is a file such as this study.toml, which compares two optimizers:
  trials = 3
  [options]
  network = "resnet8"
  data = "digits"
  epochs = 5
  [[method]]
  optimizer = "rmsgd"
  [[method]]
  label = "SGD, cosine"
  optimizer = "sgd"
  schedule = "cosine"

\b
The studies of the paper's tables are in the folder studies of the project's
repository.
"""
RUN_EXAMPLES = """\b
Examples:
  rankwise study run study.toml
  rankwise study run study.toml --jobs 2 --out runs
  rankwise study run study.toml --dry-run
  rankwise study run study.toml --ray auto

\b
Finished runs are never repeated. If a study was stopped or killed, repeat
the command to continue.
Exit code: 0 if all runs are done, 1 if some are not, 130 after Ctrl-C.
"""
STATUS_EXAMPLES = """\b
Examples:
  rankwise study status study.toml
  rankwise study status study.toml --out runs --json
"""
TABLE_EXAMPLES = """\b
Examples:
  rankwise study table study.toml
  rankwise study table study.toml --format markdown > table.md
  rankwise study table study.toml --out results/records.jsonl
  rankwise study table study.toml --against "SGD, cosine"
  rankwise study table runs --score loss --format csv

\b
Best in green; within a standard deviation of it in orange. Each best is
compared with the second by a t-test over runs that share their seed.
"""
EXPORT_EXAMPLES = """\b
Examples:
  rankwise study export study.toml --to results
  rankwise study export runs --to results --layers
  rankwise study table study.toml --out results/records.jsonl

\b
Writes table.md, table.tex, table.csv, table.json, report.html and
records.jsonl. The last holds all that tables and pages need, without weights
and without paths of this machine, except in the name of a data set.
"""
IMPORT_EXAMPLES = """\b
Examples:
  rankwise study import results/records.jsonl
  rankwise study import results/*.jsonl --out runs
  rankwise study run study.toml

\b
Imported runs count as done and are not repeated. They have no weights: to
get those, remove a run's folder and run its study.
"""
CORRELATE_EXAMPLES = """\b
Examples:
  rankwise study correlate zoo/index.csv
  rankwise study correlate runs --out ranking.html
  rankwise study correlate study.toml --runs runs
  rankwise study correlate nets.csv --accuracy top1 --family arch
  rankwise study correlate nets.csv --json ranking.json --csv scores.csv

\b
A table has one line per checkpoint: checkpoint (a path from the table's
folder), accuracy, and where known train_accuracy, family and group. Networks
of one family are ranked among each other; those of one group, such as trials
of one setting, are not independent.
"""

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
        help="Folder of the study's runs, or exported records; runs/ by default.",
        show_default=False,
    ),
]
RunsFolder = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder of the runs; runs/ by default.", show_default=False),
]

study = typer.Typer(
    cls=CommandGroup,
    name="study",
    help="Run a whole table of experiments and show the results.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@study.command(epilog=RUN_EXAMPLES)
def run(
    file: StudyFile,
    *,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of runs at a time; by default as many as cores, or CUDA devices.",
            show_default=False,
        ),
    ] = None,
    out: RunsFolder = None,
    data_root: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Folder of the data sets; data/ by default.", show_default=False
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Attempts to repeat a run whose worker was lost."),
    ] = 2,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Train on a Ray cluster: auto, or HOST:PORT of its head node.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs that are left; train none.")
    ] = False,
) -> None:
    """Train what is left of a study: a grid of runs in a TOML file."""
    if ray is not None and jobs is not None:
        raise ArgumentError("Expected --jobs or --ray, got both: a cluster has its own cores.")
    from rankwise.cli.study.training import list_runs, train_study
    from rankwise.study import read_study

    study = read_study(file).with_folders(out=out, data_root=data_root)
    if dry_run:
        list_runs(study)
    else:
        train_study(study, out, jobs=jobs, retries=retries, ray=ray)


@study.command(epilog=STATUS_EXAMPLES)
def status(
    file: StudyFile,
    *,
    out: RunsFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how far a study is: counts, time left, and each grid point."""
    from rankwise.cli.study.training import print_status
    from rankwise.study import read_study

    print_status(read_study(file).with_folders(out=out), as_json=as_json)


class Format(str, Enum):
    """The formats of a table."""

    text = "text"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"
    json = "json"


@study.command(epilog=TABLE_EXAMPLES)
def table(
    source: StudySource,
    *,
    out: RunsOrRecords = None,
    form: Annotated[Format, typer.Option("--format", help="The format to print.")] = Format.text,
    score: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A test score, such as accuracy, top5 or loss."),
    ] = None,
    against: Annotated[
        str, typer.Option(metavar="ROW", help="Compare all with this row, not best with second.")
    ] = "",
) -> None:
    """Show means, standard deviations and tests of every setting."""
    from rankwise.cli.study.results import print_table

    print_table(source, out, form.value, score=score, reference=against)


@study.command(epilog=EXPORT_EXAMPLES)
def export(
    source: StudySource,
    *,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write to.")],
    out: RunsOrRecords = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Keep the layers of every epoch, not of the last.")
    ] = False,
) -> None:
    """Write a study's tables, its page and the records of its runs."""
    from rankwise.cli.study.results import export_results

    export_results(source, out, to, layers=layers)


@study.command("import", epilog=IMPORT_EXAMPLES)
def import_(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORDS", help="Files of exported records.")
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs.")] = Path("runs"),
) -> None:
    """Turn exported records into runs that a study continues from."""
    from rankwise.cli.study.results import import_records

    import_records(records, out)


def _column(text: str) -> object:
    return typer.Option(metavar="COLUMN", help=text)


@study.command(epilog=CORRELATE_EXAMPLES)
def correlate(
    index: Annotated[
        Path,
        typer.Argument(
            metavar="INDEX", help="A CSV of checkpoints, a folder of runs, or a study's TOML file."
        ),
    ],
    *,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Folder of a study's runs.")] = Path(
        "runs"
    ),
    checkpoint: Annotated[str | None, _column("The column of paths.")] = None,
    accuracy: Annotated[str | None, _column("The column of test accuracies.")] = None,
    train_accuracy: Annotated[str | None, _column("The column of training accuracies.")] = None,
    family: Annotated[str | None, _column("The column of families.")] = None,
    group: Annotated[str | None, _column("The column of groups.")] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="Write a page.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write everything; - for stdout.")
    ] = None,
    csv: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write all networks' scores; - for stdout.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of resamples and shuffles.")] = 0,
    resamples: Annotated[
        int,
        typer.Option(
            metavar="N", help="Resamples for an interval; ten times as many shuffles for p."
        ),
    ] = 1000,
) -> None:
    """Show how well scores such as Q rank networks by accuracy."""
    from rankwise.cli.study.ranking import rank_index
    from rankwise.study.zoo.networks import Columns

    columns = Columns(checkpoint, accuracy, train_accuracy, group, family)
    outputs = {"html": out, "json": json, "csv": csv}
    targets = {form: target for form, target in outputs.items() if target is not None}
    rank_index(index, runs, columns, targets, resamples=resamples, seed=seed)
