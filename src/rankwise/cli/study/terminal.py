"""What a study found → the terminal: the best in green, what is close to it in orange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankwise._text import join_lines, wrap
from rankwise.study.findings import Findings
from rankwise.study.layout import Cell, Sheet, legend, notes, sheets

__all__ = ["print_findings"]

_STYLES = {"best": "bold green", "close": "yellow", "lost": "red"}
_SYMBOLS = {"best": "★ ", "close": "≈ "}
_LEGEND = legend("★ and green", "≈ and orange")
_NAMES = 30  # the widest that settings get before they are broken into lines
_GAP = 2
_PIPE = 80


def print_findings(console: Console, found: Findings) -> None:
    """Print all tables and what there is to say about them; wide tables in several parts."""
    width = console.width if console.is_terminal else _PIPE
    if found.title:
        _print(console, join_lines(found.title), width, "bold")
    if found.about:
        _print(console, join_lines(found.about), width)
    if found.title or found.about:
        console.print()
    for sheet in sheets(found):
        _print(console, sheet.caption, width, "bold")
        for part in _parts(sheet, width):
            console.print(_table(part), width=width)
            console.print()
    marks = [_LEGEND] if found.table.entries else []
    for text in [*marks, *notes(found)]:
        _print(console, text, width)


def _print(console: Console, text: str, width: int, style: str = "") -> None:
    console.print(Text(wrap(text, width), style), soft_wrap=True)


def _parts(sheet: Sheet, width: int) -> Iterator[Sheet]:
    """The columns of numbers in as many tables as it takes, each with the names in front."""
    if sheet.words > 1:  # words can be broken into lines, numbers should not
        yield sheet
        return
    taken: list[int] = []
    first = used = _width(sheet, 0)
    for place in range(1, len(sheet.heads)):
        need = _GAP + _width(sheet, place)
        if taken and used + need > width:
            yield _part(sheet, taken)
            taken, used = [], first
        taken.append(place)
        used += need
    yield _part(sheet, taken)


def _width(sheet: Sheet, place: int) -> int:
    """How wide a column is with its cells whole and its head broken into lines."""
    words = (cell_len(word) for word in sheet.heads[place].split())
    needed = max((*words, *(cell_len(_shown(row[place])) for row in sheet.rows)), default=1)
    return needed if place else min(_NAMES, needed)


def _part(sheet: Sheet, places: Sequence[int]) -> Sheet:
    kept = (0, *places)
    rows = tuple(tuple(row[place] for place in kept) for row in sheet.rows)
    return replace(sheet, heads=tuple(sheet.heads[place] for place in kept), rows=rows)


def _shown(cell: Cell) -> str:
    return _SYMBOLS.get(cell.mark, "") + cell.text


def _table(sheet: Sheet) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for place, head in enumerate(sheet.heads):
        words = place < sheet.words
        table.add_column(
            Text(head),
            justify="left" if words else "right",
            # Given, or rich would shorten numbers to make room for words.
            width=None if sheet.words > 1 else _width(sheet, place),
            overflow="fold",
        )
    for row in sheet.rows:
        # Text, never markup: a name such as "[red]" is printed as it is.
        table.add_row(*(Text(_shown(cell), _STYLES.get(cell.mark, "")) for cell in row))
    return table
