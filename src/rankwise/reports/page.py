"""What a page holds, as data: text, tiles, charts and tables, in sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from rankwise import _table
from rankwise._table import Column, Style
from rankwise.charts.style import Chart, get_least_width
from rankwise.lab.scores import format_score

HALF = 560  # pixels of a chart of which two come in a row


@dataclass(frozen=True, slots=True)
class Fact:
    """A tile: what it is, its value, and a remark below it."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """An address on the same server, and its text."""

    text: str
    address: str


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs."""

    paragraphs: tuple[str, ...]
    style: str = ""  # "" or "warning"
    collapsed_under: str = ""  # a line under which the paragraphs are collapsed; "" to show them


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """A chart and how to read it."""

    title: str
    chart: Chart
    caption: str = ""  # how to read it, in a sentence or two
    wide: bool = False  # takes the whole width; others come two in a row where there is room

    @property
    def least_width(self) -> int:
        """The pixels that the chart needs; a narrower window scrolls."""
        return get_least_width(self.chart)

    @property
    def is_wide(self) -> bool:
        """Whether it takes the whole width."""
        return self.wide or self.least_width > HALF


@dataclass(frozen=True, slots=True)
class Cell(_table.Cell):
    """A cell of a table on a page."""

    value: float | None = None  # what to sort by; the text itself where None
    share: float | None = None  # 0 … 1, drawn as a bar behind the text; None for none
    layer: str = ""  # the layer that the cell names; a click selects it
    link: str = ""  # an address on the same server
    wraps: bool = False  # whether the text may take several lines


NO_VALUE = Cell("–", "dim")


def format_number_cell(
    value: float | None, form: str, *, most: float | None = None, style: Style = ""
) -> Cell:
    """Return a number in its format, with a bar for its share of `most`; or a dash."""
    if value is None:
        return NO_VALUE
    share = None if most is None else min(max(value / most, 0.0), 1.0)
    return Cell(f"{value:{form}}", style, float(value), share)


def format_score_cell(value: float | None, score: str) -> Cell:
    """Return a score as people write it, or a dash."""
    return NO_VALUE if value is None else Cell(format_score([value], score), value=value)


def capitalize(text: str) -> str:
    """Return a text as the beginning of a sentence; names in it stay as they are."""
    return text[:1].upper() + text[1:]


def make_columns(
    titles: Sequence[str], *, left: Sequence[str] = (), name_column: int = 0
) -> tuple[Column, ...]:
    """Return columns of numbers; the one of names, and those of the titles given, hold words."""
    return tuple(
        Column(title, "left" if place == name_column or title in left else "right")
        for place, title in enumerate(titles)
    )


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that collapse under a line of their own."""

    count: int  # of rows
    cells: tuple[Cell, ...] = ()  # the line, a cell for each column; () for rows that stay visible


@dataclass(frozen=True, slots=True)
class Table(_table.Table):
    """A table that readers sort by its columns and filter by a text."""

    rows: tuple[tuple[Cell, ...], ...]
    has_filter: bool = False
    name_column: int = 0  # the column that names the rows
    hints: Mapping[str, str] = field(default_factory=dict)  # tooltips of columns, by title
    name: str = ""  # how a live page finds the table, to update it
    groups: tuple[RowGroup, ...] = ()  # of all rows, in their order; none where nothing collapses
    # Where ticked rows are sent, as "?run=…&run=…", each by its first cell's text; "" where rows
    # can't be ticked.
    compare_address: str = ""

    @property
    def grouped_rows(self) -> Iterator[tuple[RowGroup, tuple[tuple[Cell, ...], ...]]]:
        """Each group with its rows; without groups, all rows as one that has no line."""
        start = 0
        for group in self.groups or (RowGroup(len(self.rows)),):
            yield group, self.rows[start : start + group.count]
            start += group.count

    @property
    def lines(self) -> int:
        """How many groups have a line under which they collapse."""
        return sum(bool(group.cells) for group in self.groups)


@dataclass(frozen=True, slots=True)
class FoundLayer:
    """A layer with a problem."""

    name: str
    number: int | None  # as in tables and charts; None where these don't have the layer


@dataclass(frozen=True, slots=True)
class FindingCard:
    """A problem: how bad it is, where, and what to check."""

    severity: str  # "error", "warning" or "note"
    kind: str  # its stable name
    title: str  # what is wrong, in a few words
    layers: tuple[FoundLayer, ...]  # none where it is about the whole file
    message: str
    confidence: str  # how often healthy networks show the same; "" where that is not known
    advice: str
    hidden: int = 0  # how many more layers have it


@dataclass(frozen=True, slots=True)
class FindingList:
    """What a check found, with the worst first; the page begins with it."""

    summary: str  # all of it in a sentence
    cards: tuple[FindingCard, ...]

    @property
    def problems(self) -> tuple[FindingCard, ...]:
        """Errors and warnings."""
        return tuple(card for card in self.cards if card.severity != "note")

    @property
    def notes(self) -> tuple[FindingCard, ...]:
        """What proves nothing, and is collapsed."""
        return tuple(card for card in self.cards if card.severity == "note")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page."""

    title: str
    items: tuple[Text | ChartPanel | Table, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A page."""

    title: str
    summary: tuple[str, ...]  # the results in plain words; it comes first
    sections: tuple[Section, ...]
    findings: FindingList | None = None
    facts: tuple[Fact, ...] = ()
    layers: tuple[str, ...] = ()  # the names that a reader can select
    source: str = ""  # what it was made of: a path, a command
    back: Link | None = None  # where a served page leads back to
    updates: str = ""  # the address that a served page asks for updates; "" if it is final

    @property
    def charts(self) -> tuple[ChartPanel, ...]:
        """All its charts, in order."""
        items = (item for section in self.sections for item in section.items)
        return tuple(item for item in items if isinstance(item, ChartPanel))


class Update(TypedDict, total=False):
    """What page.js takes to update an open page.

    reload: Whether the page has to be loaded again; then all else is left out.
    updates: The address to ask next; "" when nothing more will come.
    summary, facts: In place of those shown.
    datasets: New rows by the dataset's name.
    tables: All rows of a table as HTML, by its name.
    """

    reload: bool
    updates: str
    summary: Sequence[str]
    facts: Sequence[tuple[str, str, str]]
    datasets: Mapping[str, Sequence[Mapping[str, Any]]]
    tables: Mapping[str, str]
