"""Aligned columns of text: display width, shortened names, small bars, wrapped sentences."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "Cell",
    "Column",
    "align",
    "bar",
    "display_width",
    "join",
    "shorten",
    "shorten_all",
    "wrap",
]

ELLIPSIS = "…"
COMFORTABLE = 24  # columns are dropped before names get less room than this
ESSENTIAL = 4  # columns kept from here on stay, even if names get alike when shortened
NARROWEST = 20
COMMON = ".weight"
EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text and the tone a terminal may give it ("good", "bad", "bar", …)."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A titled column; the first of a table holds names and is the one that shrinks.

    Attributes:
        title: What stands on top of it.
        cells: One a row.
        keep: The column with the smallest value is the first to go where room is short.
        left: Aligned to the left instead of the right.
    """

    title: str
    cells: tuple[Cell, ...]
    keep: int
    left: bool = False

    @property
    def width(self) -> int:
        """How wide its widest cell is."""
        return max(display_width(text) for text in (self.title, *(c.text for c in self.cells)))


@lru_cache(maxsize=4096)
def _character_width(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def display_width(text: str) -> int:
    """How many terminal columns a text takes: wide characters two, combining marks none.

    Example:
        >>> display_width("conv"), display_width("層")
        (4, 2)
    """
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _head(text: str, width: int) -> str:
    """The longest start of a text that is at most `width` wide."""
    if text.isascii():
        return text[:width]
    used = 0
    for index, character in enumerate(text):
        used += _character_width(character)
        if used > width:
            return text[:index]
    return text


def shorten(text: str, width: int, head: int | None = None) -> str:
    """A text cut in its middle to at most `width`; `head` columns of its start are kept.

    Example:
        >>> shorten("encoder.layer.0.query.weight", 15)
        'encoder….weight'
    """
    if display_width(text) <= width:
        return text
    if width < 1:
        return ""
    head = (width - 1) // 2 if head is None else min(head, width - 1)
    start = _head(text, head)
    end = _head(text[::-1], width - 1 - display_width(start))[::-1]
    return start + ELLIPSIS + end


def shorten_all(names: Sequence[str], width: int) -> list[str]:
    """Names cut to `width` at the place that leaves the most of them different.

    Cutting `encoder.layer.0.query.weight` and `encoder.layer.1.query.weight` in the very middle
    would make one name of the two; the cut is moved off the middle only as far as it helps.

    Example:
        >>> shorten_all(["encoder.layer.0.query.weight", "encoder.layer.1.query.weight"], 14)
        ['encod…0.query…', 'encod…1.query…']
    """
    if all(display_width(name) <= width for name in names):
        return list(names)
    trimmed = [_trimmed(name, width) for name in names]
    middle = (width - 1) // 2
    heads = sorted({*range(0, width, max(width // 8, 1)), middle}, key=lambda h: abs(h - middle))
    best: list[str] = []
    for head in heads:
        cut = [shorten(name, width, head) for name in trimmed]
        best = max(best, cut, key=lambda names: len(set(names)))
        if len(set(best)) == len(set(names)):
            break
    return best


def _trimmed(name: str, width: int) -> str:
    """A name that is too long without the ending that half of all names have."""
    if display_width(name) <= width or not name.endswith(COMMON):
        return name
    return name.removesuffix(COMMON) + ELLIPSIS


def bar(share: float, width: int) -> str:
    """A share between 0 and 1 as a bar of eighths.

    Example:
        >>> bar(0.5, 3)
        '█▌ '
    """
    if not share > 0:  # not `share <= 0`, which a NaN would pass by
        return " " * width
    eighths = max(round(min(share, 1.0) * width * 8), 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def _fit(columns: Sequence[Column], width: int) -> tuple[list[Column], int, int]:
    """The columns that fit, the width left for the first, and the gap between them.

    Columns that are only nice to have also go where that keeps shortened names apart.
    """
    names = [cell.text for cell in columns[0].cells]
    fitting = _fitting(columns, width)
    best = next(fitting)
    option: tuple[list[Column], int, int] | None = best
    while option is not None and all(c in option[0] for c in columns if c.keep >= ESSENTIAL):
        if len(set(shorten_all(names, option[1]))) == len(set(names)):
            return option
        option = next(fitting, None)
    return best


def _fitting(columns: Sequence[Column], width: int) -> Iterator[tuple[list[Column], int, int]]:
    """Ever fewer columns that leave the names comfortable room; the names alone at the end."""
    kept = list(columns)
    wanted = min(columns[0].width, COMFORTABLE)
    while len(kept) > 1:
        for gap in (2, 1):
            room = width - sum(column.width + gap for column in kept[1:])
            if room >= wanted:
                yield kept[:], min(room, columns[0].width), gap
        kept.remove(min(kept[1:], key=lambda column: column.keep))
    yield kept, min(width, columns[0].width), 1


def _pad(cell: Cell, width: int, *, left: bool) -> Cell:
    blank = " " * (width - display_width(cell.text))
    return Cell(cell.text + blank if left else blank + cell.text, cell.tone)


def align(columns: Sequence[Column], width: int | None) -> list[tuple[Cell, ...]]:
    """Lines of padded cells, the titles first, none wider than `width` (None: as wide as needed).

    Args:
        columns: The first holds the names; the others go, least kept first, where room is short.
        width: In terminal columns; less than 20 counts as 20.

    Example:
        >>> name = Column("layer", (Cell("conv1"), Cell("fc")), keep=9, left=True)
        >>> print(join(align([name, Column("q", (Cell("0.5"), Cell("1.25")), keep=8)], 80)))
        layer     q
        conv1   0.5
        fc     1.25
    """
    natural = sum(column.width + 2 for column in columns)
    kept, room, gap = _fit(columns, natural if width is None else max(width, NARROWEST))
    first = shorten_all([cell.text for cell in kept[0].cells], room)
    names = tuple(Cell(text, cell.tone) for text, cell in zip(first, kept[0].cells, strict=True))
    kept[0] = Column(shorten(kept[0].title, room), names, kept[0].keep, kept[0].left)
    widths = [room, *(column.width for column in kept[1:])]
    rows = zip(*((Cell(c.title, "title"), *c.cells) for c in kept), strict=True)
    space = Cell(" " * gap)
    lines = []
    for row in rows:
        padded = [
            _pad(cell, wide, left=column.left)
            for cell, wide, column in zip(row, widths, kept, strict=True)
        ]
        lines.append(tuple(piece for cell in padded for piece in (space, cell))[1:])
    return lines


def join(lines: Iterable[Iterable[Cell]]) -> str:
    """Lines of cells as plain text."""
    return "\n".join("".join(cell.text for cell in line).rstrip() for line in lines)


def wrap(text: str, width: int | None, indent: str = "  ") -> str:
    """A sentence broken at spaces into lines of at most `width`, the later ones indented.

    Words wider than a line are cut in their middle.

    Example:
        >>> print(wrap("31 of 52 layers hold structure.", 20))
        31 of 52 layers hold
          structure.
    """
    if width is None:
        return text
    room = max(width - len(indent), 1)
    line, *words = (shorten(word, room) for word in text.split(" "))
    lines = []
    for word in words:
        if display_width(line) + 1 + display_width(word) > width:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}"
    return "\n".join([*lines, line])
