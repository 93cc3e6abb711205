"""One model of a table, and its renderer in plain text; Markdown, LaTeX and CSV are in `study`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rankwise._text import LONGEST_NAME, display_width, shorten, shorten_all

# What a renderer may show as a colour, weight or symbol; plain text ignores it.
Style = Literal[
    "", "title", "name", "dim", "good", "bad", "up", "down", "warning", "best", "close", "bar s"
]

_COMFORTABLE = 24  # columns are dropped before the first one gets less room than this
_ESSENTIAL = 4  # columns of this priority or more stay, even if shortened names become equal
_NARROWEST = 20
_WIDEST_PADDING = 150  # where nothing limits the width, names longer than this pad no other row
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its style."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title and how to lay it out.

    Attributes:
        title: The text of its head.
        align: "left" for words, "right" for numbers.
        priority: Where room is short, the column of the lowest priority is dropped first.
    """

    title: str
    align: Literal["left", "right"] = "right"
    priority: int = 9


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of cells. The first column holds names: it is never dropped but shortened.

    Attributes:
        columns: Titles and layout.
        rows: As many cells each as there are columns.
        caption: What the table shows, where a renderer prints it.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    @classmethod
    def from_columns(
        cls, columns: Iterable[tuple[Column, Iterable[Cell | str]]], caption: str = ""
    ) -> Table:
        """Build a table column by column.

        Example:
            >>> table = Table.from_columns(
            ...     [(Column("layer", "left"), ["conv1", "fc"]), (Column("q"), ["0.5", "1.25"])]
            ... )
            >>> print(table.format())
            layer     q
            conv1   0.5
            fc     1.25
        """
        heads, contents = zip(*columns, strict=True)
        rows = zip(*contents, strict=True)
        cells = (tuple(c if isinstance(c, Cell) else Cell(c) for c in row) for row in rows)
        return cls(heads, tuple(cells), caption)

    def select(self, places: Iterable[int]) -> Table:
        """Return the table with only the columns at these places."""
        kept = tuple(places)
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        return Table(tuple(self.columns[place] for place in kept), rows, self.caption)

    def width(self, place: int) -> int:
        """Return how many terminal columns the widest text of a column takes."""
        texts = (self.columns[place].title, *(row[place].text for row in self.rows))
        return max(map(display_width, texts))

    def format(self, width: int | None = None) -> str:
        """Return the table as plain text, the titles on the first line.

        Args:
            width: The widest a line may be; None for no limit.
        """
        return join_cells(align_cells(self, width))


def align_cells(table: Table, width: int | None) -> list[tuple[Cell, ...]]:
    """Lay a table out as lines of padded cells, titles first, for a renderer that adds colour.

    Where room is short, columns are dropped by priority and names are shortened.

    Args:
        table: What to lay out.
        width: In terminal columns, less than 20 counts as 20; None for as wide as needed, with
            only names of more than 300 characters shortened.
    """
    widths = [table.width(place) for place in range(len(table.columns))]
    if width is None:
        kept, room, gap = list(range(len(widths))), min(widths[0], LONGEST_NAME), 2
        all_widths = (display_width(row[0].text) for row in table.rows)
        usual = max((wide for wide in all_widths if wide <= _WIDEST_PADDING), default=0)
        first = max(usual, display_width(table.columns[0].title))
    else:
        kept, room, gap = _fit(table, widths, max(width, _NARROWEST))
        first = room
    table, widths = table.select(kept), [first, *(widths[place] for place in kept[1:])]
    names = shorten_all([row[0].text for row in table.rows], room)
    titles = [Cell(column.title, "title") for column in table.columns]
    lines = [[Cell(shorten(titles[0].text, room), "title"), *titles[1:]]]
    lines += [
        [Cell(name, row[0].style), *row[1:]] for name, row in zip(names, table.rows, strict=True)
    ]
    space = Cell(" " * gap)
    return [
        tuple(
            piece
            for cell, column, wide in zip(line, table.columns, widths, strict=True)
            for piece in (space, _pad(cell, wide, column.align))
        )[1:]
        for line in lines
    ]


def join_cells(lines: Iterable[Iterable[Cell]]) -> str:
    """Join lines of cells to plain text."""
    return "\n".join("".join(cell.text for cell in line).rstrip() for line in lines)


def draw_bar(share: float, width: int) -> str:
    """Draw a share between 0 and 1 as a bar of eighths.

    Example:
        >>> draw_bar(0.5, 3)
        '█▌ '
    """
    if not share > 0:  # not `share <= 0`, which is false for NaN
        return " " * width
    eighths = max(round(min(share, 1.0) * width * 8), 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def _pad(cell: Cell, width: int, align: str) -> Cell:
    blank = " " * (width - display_width(cell.text))
    return Cell(cell.text + blank if align == "left" else blank + cell.text, cell.style)


def _fit(table: Table, widths: Sequence[int], width: int) -> tuple[list[int], int, int]:
    """Return the columns that fit, the width left for the first, and the gap between them.

    Columns that are not essential are also dropped where that keeps shortened names different.
    """
    names = [row[0].text for row in table.rows]
    essential = {i for i, column in enumerate(table.columns) if column.priority >= _ESSENTIAL}
    options = _list_fits(table, widths, width)
    best = next(options)
    option: tuple[list[int], int, int] | None = best
    while option is not None and essential <= set(option[0]):
        if len(set(shorten_all(names, option[1]))) == len(set(names)):
            return option
        option = next(options, None)
    return best


def _list_fits(
    table: Table, widths: Sequence[int], width: int
) -> Iterator[tuple[list[int], int, int]]:
    """Yield ever fewer columns that leave the first one comfortable room; at last it alone."""
    kept = list(range(len(widths)))
    wanted = min(widths[0], _COMFORTABLE)
    while len(kept) > 1:
        for gap in (2, 1):
            room = width - sum(widths[place] + gap for place in kept[1:])
            if room >= wanted:
                yield kept[:], min(room, widths[0]), gap
        kept.remove(min(kept[1:], key=lambda place: table.columns[place].priority))
    yield kept, min(width, widths[0]), 1
