"""What a page holds, as data: words, tiles, figures and tables, in sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwise.charts.style import Chart

__all__ = [
    "NOTHING",
    "Cell",
    "Fact",
    "Link",
    "Page",
    "Picture",
    "Section",
    "Table",
    "Words",
    "number_cell",
]


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of the whole in a tile: what it is, its value, and a remark below it."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """An address on the same server, and what to call it."""

    text: str
    address: str


@dataclass(frozen=True, slots=True)
class Words:
    """Paragraphs.

    Attributes:
        paragraphs: Each a text.
        tone: "" or "warning".
        summary: Where given, the paragraphs are folded away under this line.
    """

    paragraphs: tuple[str, ...]
    tone: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure and how to read it.

    Attributes:
        title: What it shows.
        chart: Its description is the text for those who can't see it.
        reading: How to read it, in a sentence or two.
        wide: Whether it takes the whole width; others stand two in a row where there is room.
    """

    title: str
    chart: Chart
    reading: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What is shown.
        value: What to sort by; the text itself where None.
        tone: "" or "best", "close" (within a standard deviation), "bad", "dim".
        share: 0 … 1, drawn as a bar behind the text; None for none.
        layer: The layer that the cell names; a click chooses it.
        link: An address on the same server.
    """

    text: str
    value: float | None = None
    tone: str = ""
    share: float | None = None
    layer: str = ""
    link: str = ""


NOTHING = Cell("–", tone="dim")


def number_cell(value: float | None, form: str, *, most: float | None = None) -> Cell:
    """A number in its format, with a bar for its share of the most it could be; or a dash."""
    if value is None:
        return NOTHING
    share = None if most is None else min(max(value / most, 0.0), 1.0)
    return Cell(f"{value:{form}}", float(value), share=share)


@dataclass(frozen=True, slots=True)
class Table:
    """A table that readers sort by its heads and filter by a text.

    Attributes:
        caption: What it shows.
        heads: The columns' names.
        rows: As many cells each.
        numeric: Which columns are set to the right; all but the first by default.
        filter: Whether there is a field to filter rows by.
        hints: What to say when a head is pointed at, by its name.
        name: How a live page finds the table, to bring it up to date.
        picks: The address that ticked rows are sent to, as "?run=…&run=…", each by its first
            cell's text; "" where rows can't be ticked.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: tuple[int, ...] | None = None
    filter: bool = False
    hints: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    picks: str = ""

    def is_number(self, column: int) -> bool:
        """Whether a column is set to the right."""
        return column > 0 if self.numeric is None else column in self.numeric


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page."""

    title: str
    items: tuple[Words | Picture | Table, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        title: Its head.
        verdict: The whole in plain words; it comes first.
        facts: Tiles.
        sections: Its parts.
        layers: The names that a reader can choose between; empty where there is nothing to choose.
        source: What it was made of: a path, a command.
        back: Where a served page leads back to.
        updates: The address that a served page asks for what is new; "" for a page that is done.
    """

    title: str
    verdict: tuple[str, ...]
    sections: tuple[Section, ...]
    facts: tuple[Fact, ...] = ()
    layers: tuple[str, ...] = ()
    source: str = ""
    back: Link | None = None
    updates: str = ""

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All its figures, in order."""
        items = (item for section in self.sections for item in section.items)
        return tuple(item for item in items if isinstance(item, Picture))
