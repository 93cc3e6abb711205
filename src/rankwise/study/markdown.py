"""What a study found as Markdown, as GitHub shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankwise._text import join_lines
from rankwise.study.findings import Findings
from rankwise.study.layout import Cell, Sheet, legend, notes, sheets

__all__ = ["to_markdown"]

_LEGEND = legend("**bold** ★", "*italic* ≈")
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~$&])")
_LIST = re.compile(r"^(\d*)([-+.)])(?= )")  # what would begin a list where it begins a line


def to_markdown(found: Findings) -> str:
    """Tables with the best in bold and what is close to it in italics, since there is no colour.

    Args:
        found: What to show.

    Example:
        >>> from rankwise.study.findings import findings
        >>> print(to_markdown(findings([])))
        - There are no runs to show yet.
        <BLANKLINE>
    """
    parts = [f"## {_escaped(join_lines(found.title))}"] if found.title else []
    parts += [_escaped(join_lines(found.about))] if found.about else []
    parts += [_table(sheet) for sheet in sheets(found)]
    marks = [_LEGEND] if found.table.entries else []
    # Their own marks stay, those in a name do not.
    texts = [*marks, *map(_escaped, notes(found))]
    parts.append("\n".join(f"- {text}" for text in texts))
    return "\n\n".join(parts) + "\n"


def _table(sheet: Sheet) -> str:
    rules = ["---" if place < sheet.words else "---:" for place in range(len(sheet.heads))]
    rows = [[_escaped(head) for head in sheet.heads], rules, *map(_row, sheet.rows)]
    return f"{sheet.caption}:\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(cells: Sequence[Cell]) -> list[str]:
    return [_cell(cell) for cell in cells]


def _cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    if cell.mark == "best":
        return f"**{text}** ★"
    return f"*{text}* ≈" if cell.mark == "close" else text


def _escaped(text: str) -> str:
    return _LIST.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", text))
