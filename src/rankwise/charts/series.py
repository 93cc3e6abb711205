"""Many series in one figure: colours first, then dashes or shapes, and the rest in grey.

Seven colours are all that eyes tell apart at a glance; a second round of them is dashed, or has
another shape. What comes after that is drawn without a name in the legend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from rankwise.charts.style import CATEGORIES, Rows

__all__ = ["NAMED", "ORDINARY", "colour", "dash", "parted", "picked", "placed", "shape"]

_DASHES = ([1, 0], [5, 3])
_SHAPES = ("circle", "triangle-up")
_PHONE = 310  # pixels
NAMED = len(CATEGORIES) * len(_DASHES)  # how many series have a name in the legend
ORDINARY = alt.ExprRef("faint")  # the colour of those that have none


def _rounds(names: Sequence[str], kinds: Sequence[Any]) -> alt.Scale:
    """A scale that gives the first seven names the first kind, and the next seven the second."""
    kinds_of = [kinds[number // len(CATEGORIES)] for number in range(len(names))]
    return alt.Scale(domain=list(names), range=kinds_of)


def _legend(names: Sequence[str], *, lines: bool) -> alt.Legend:
    """A legend in as many columns as a phone has room for.

    Where the columns followed the width, the frame would not grow with the rows.
    """
    room = 7 * max(map(len, names), default=1) + 45
    symbol: dict[str, Any] = {"symbolType": "stroke", "symbolSize": 300} if lines else {}
    return alt.Legend(
        title=None,
        columns=max(1, _PHONE // room),
        labelLimit=_PHONE - 45,
        symbolOpacity=1,
        symbolStrokeWidth=2.5 if lines else 0,
        **symbol,
    )


def colour(names: Sequence[str], field: str = "setting", *, lines: bool = False) -> alt.Color:
    """The colour of each series.

    Args:
        names: Those to name, at most `NAMED`, in the legend's order.
        field: The rows' field that holds the name.
        lines: Whether the legend shows lines, as `dash` does, and not points, as `shape` does.
    """
    colours = [CATEGORIES[number % len(CATEGORIES)] for number in range(len(names))]
    scale = alt.Scale(domain=list(names), range=colours)
    return alt.Color(f"{field}:N", scale=scale, legend=_legend(names, lines=lines))


def dash(names: Sequence[str], field: str = "setting") -> alt.StrokeDash:
    """How each series' line is dashed; it shares the legend of the colours."""
    legend = _legend(names, lines=True)
    return alt.StrokeDash(f"{field}:N", scale=_rounds(names, _DASHES), legend=legend)


def shape(names: Sequence[str], field: str = "setting") -> alt.Shape:
    """The shape of each series' points; it shares the legend of the colours."""
    legend = _legend(names, lines=False)
    return alt.Shape(f"{field}:N", scale=_rounds(names, _SHAPES), legend=legend)


def placed(rows: Rows, names: Sequence[str], field: str = "setting") -> list[dict[str, Any]]:
    """The rows with each series' place among the names, by which a figure can sort and filter.

    A filter by names themselves would write them into an expression.
    """
    places = {name: place for place, name in enumerate(names)}
    return [{**row, "place": places[row[field]]} for row in rows]


def parted(base: alt.Chart, names: Sequence[str]) -> tuple[alt.Chart, alt.Chart | None]:
    """The chart with the placed rows of the first `NAMED` series, and of the others if any."""
    if len(names) <= NAMED:
        return base, None
    first = base.transform_filter(f"datum.place < {NAMED}")
    return first, base.transform_filter(f"datum.place >= {NAMED}")


def picked(field: str = "setting") -> alt.Parameter:
    """The series that a reader has picked by a click on the legend; all while none is."""
    return alt.selection_point(name="picked", fields=[field], bind="legend")
