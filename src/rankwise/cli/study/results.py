"""`rankwise study table`, `export` and `import`: a study's results, and records of its runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from rankwise._io import explain_missing, refuse_overwrite, write_atomically
from rankwise._table import Cell, Table
from rankwise._text import display_width, format_count, join_lines, sanitize, wrap
from rankwise.cli.output import make_console, print_error, print_warnings
from rankwise.errors import ArgumentError, RunError
from rankwise.lab.records import Run, is_run, load_run
from rankwise.study.archive import pack, unpack
from rankwise.study.export import to_csv, to_json, to_latex, to_markdown
from rankwise.study.grid import read_study
from rankwise.study.results import StudyResults, collect_results
from rankwise.study.summary import build_tables, describe_marks, describe_results

_RECORDS = "records.jsonl"
_WRITERS = {"markdown": to_markdown, "latex": to_latex, "csv": to_csv, "json": to_json}
_STYLES = {"best": "bold green", "close": "yellow", "bad": "red"}
_SYMBOLS = {"best": "★ ", "close": "≈ "}
_MAX_NAME_WIDTH = 30  # longer names of settings are broken into lines
_GAP = 2
_PIPE_WIDTH = 80


def print_table(
    source: Path, out: Path | None, form: str, *, score: str | None, reference: str
) -> None:
    """Print a study's table in a format."""
    with _read_results(source, out, score=score, reference=reference) as results:
        if form == "text":
            _print_results(make_console(), results)
        else:
            typer.echo(_WRITERS[form](results), nl=False)
        _warn_of_missing_runs(results)


def export_results(source: Path, out: Path | None, to: Path, *, layers: bool) -> None:
    """Write a study's tables, its page and the records of its runs to a folder."""
    from rankwise.reports.html import encode_page
    from rankwise.reports.study import make_study_page

    if to.exists() and not to.is_dir():
        raise ArgumentError(f"{to}: --to names a folder, got a file.")
    refuse_overwrite(to / _RECORDS, [source, *([] if out is None else [out])])
    with _read_results(source, out) as results:
        if not results.runs:
            raise ArgumentError(f"{source}: it has no runs yet; nothing was written.")
        title = sanitize(results.title or f"Study: {source.name}")
        files = {
            "table.md": to_markdown(results).encode(),
            "table.tex": to_latex(results).encode(),
            "table.csv": to_csv(results).encode(),
            "table.json": to_json(results).encode(),
            _RECORDS: pack(results.runs, layers=layers).encode(),
            "report.html": encode_page(make_study_page(results.runs, title=title, study=results)),
        }
        to.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(to / name, content)
        _warn_of_missing_runs(results)
    typer.echo(f"Written: {', '.join(files)} in {sanitize(str(to))}")


def import_records(records: Sequence[Path], out: Path) -> None:
    """Turn exported records into runs; those that are there already are skipped."""
    for path in records:
        count = format_count(len(unpack(path, out, only_new=True)), "new run")
        typer.echo(f"{sanitize(str(path))}: {count} in {sanitize(str(out))}")


@contextmanager
def _read_results(
    source: Path, out: Path | None, *, score: str | None = None, reference: str = ""
) -> Iterator[StudyResults]:
    """Read a study's TOML file, a folder of runs or records; the runs can be read meanwhile."""
    study = read_study(source) if source.suffix == ".toml" and source.is_file() else None
    place = source if study is None else out or Path(study.points[0].config.out)
    if not place.exists() and (study is None or out is not None):
        raise ArgumentError(
            f"{explain_missing(place)} Expected a study's TOML file, a folder of runs or exported "
            "records."
        )
    with print_warnings(), tempfile.TemporaryDirectory() as folder:
        if not place.is_file():
            runs = read_runs(place)
        elif place.suffix == ".jsonl":
            runs = unpack(place, folder)
        else:
            raise ArgumentError(f"{place}: expected a .toml or .jsonl file, or a folder of runs.")
        yield collect_results(runs, study, score=score, reference=reference)


def read_runs(place: Path) -> list[Run]:
    """Read the runs in a folder; print those that are skipped: broken ones, and copies."""
    runs: dict[str, Run] = {}
    for folder in filter(is_run, sorted(place.glob("*/"))):
        try:
            run = load_run(folder)
        except RunError as error:  # one broken run must not hide the others
            print_error(f"Skipped: {error}")
            continue
        if run.config.name in runs:
            first = runs[run.config.name].folder
            print_error(f"Skipped: {folder} is the same run as {first}.")
        else:
            runs[run.config.name] = run
    return list(runs.values())


def _warn_of_missing_runs(results: StudyResults) -> None:
    if results.missing:
        runs = format_count(results.expected, "run")
        print_error(f"{results.missing} of {runs} not finished yet; the table has the others.")


def _print_results(console: Console, results: StudyResults) -> None:
    """Print all tables and notes: the best in green, what is close to it in orange."""
    width = console.width if console.is_terminal else _PIPE_WIDTH

    def print_sentence(text: str, style: str = "") -> None:
        console.print(Text(wrap(text, width), style), soft_wrap=True)

    if results.title:
        print_sentence(join_lines(results.title), "bold")
    if results.about:
        print_sentence(join_lines(results.about))
    if results.title or results.about:
        console.print()
    for table in build_tables(results):
        print_sentence(table.caption, "bold")
        for part in _split_table(table, width):
            console.print(_make_rich_table(part), width=width)
            console.print()
    marks = [describe_marks("★ and green", "≈ and orange")] if results.table.entries else []
    for text in [*marks, *describe_results(results)]:
        print_sentence(text)


def _is_all_text(table: Table) -> bool:
    """Return whether all columns hold words, which may be broken into lines; numbers may not."""
    return all(column.align == "left" for column in table.columns)


def _split_table(table: Table, width: int) -> Iterator[Table]:
    """Split columns of numbers into as many tables as needed, each with the names in front."""
    if _is_all_text(table):
        yield table
        return
    taken: list[int] = []
    first = used = _column_width(table, 0)
    for place in range(1, len(table.columns)):
        needed = _GAP + _column_width(table, place)
        if taken and used + needed > width:
            yield table.select([0, *taken])
            taken, used = [], first
        taken.append(place)
        used += needed
    yield table.select([0, *taken])


def _column_width(table: Table, place: int) -> int:
    """Return how wide a column is with its cells unbroken and its title broken into lines."""
    texts = [*table.columns[place].title.split(), *(_mark(row[place]) for row in table.rows)]
    widest = max(map(display_width, texts), default=1)
    return widest if place else min(_MAX_NAME_WIDTH, widest)


def _mark(cell: Cell) -> str:
    return _SYMBOLS.get(cell.style, "") + cell.text


def _make_rich_table(table: Table) -> RichTable:
    rich_table = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for place, column in enumerate(table.columns):
        rich_table.add_column(
            Text(column.title),
            justify=column.align,
            # Given, or rich would shorten numbers to make room for words.
            width=None if _is_all_text(table) else _column_width(table, place),
            overflow="fold",
        )
    for row in table.rows:
        # Text, not markup: a name such as "[red]" is printed as it is.
        rich_table.add_row(*(Text(_mark(cell), _STYLES.get(cell.style, "")) for cell in row))
    return rich_table
