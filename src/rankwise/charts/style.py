"""What all figures share: named rows, colours that a page may change, and the chosen layer.

Colours of text, lines and ground are parameters of the chart, so that a page can turn a figure
from light to dark, or to paper, without drawing it again. The layer that a reader has chosen is
one as well: where it is "", none is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, cast

import altair as alt

__all__ = [
    "CATEGORIES",
    "CHOSEN",
    "DEEP",
    "INK",
    "NEAR",
    "SEQUENTIAL",
    "WIDTH",
    "Figure",
    "Rows",
    "chart",
    "finished",
    "is_chosen",
    "rows_name",
    "short_labels",
]

Figure = alt.Chart | alt.LayerChart | alt.FacetChart | alt.VConcatChart | alt.HConcatChart
Rows = Iterable[Mapping[str, Any]]
AnyChart = TypeVar("AnyChart", bound=Figure)

WIDTH = 640  # of a figure on its own; on a page it is as wide as there is room

# Okabe and Ito's colours, told apart by colour-blind eyes; the light ones are darkened until all
# have a contrast of 3 with a light ground and with a dark one.
CATEGORIES = ("#0072b2", "#c98500", "#009e73", "#c56c9d", "#3d9bd1", "#d55e00", "#8a8a8a")
SEQUENTIAL: Final = "viridis"

# A page sets these by name; the values here are those of a light ground.
COLOURS: Mapping[str, str] = {
    "ink": "#1f2328",
    "faint": "#d8dce1",
    "paper": "#ffffff",
    "near": "#6391c2",
    "deep": "#08306b",
}
INK = alt.ExprRef("ink")
NEAR, DEEP = alt.ExprRef("near"), alt.ExprRef("deep")  # colours of the first and the last layer

# As many entries of a legend in a row as there is room for, on a phone as on a desk.
LEGEND_COLUMNS = alt.ExprRef("max(1, floor(width / 110))")

CHOSEN = "layer"  # the parameter that holds the chosen layer's name
NONE_CHOSEN = "layer === ''"


def chart(name: str, *, height: int = 220) -> alt.Chart:
    """The beginning of a figure; `finished` gives it its rows.

    Args:
        name: What a page calls the rows; figures of one page with the same name share them.
        height: In pixels.
    """
    return alt.Chart(alt.NamedData(name=name), width=WIDTH, height=height)


def rows_name(figure: Figure) -> str:
    """What a page calls the rows of a finished figure."""
    return str(cast("dict[str, str]", figure.usermeta)["rows"])


def is_chosen(*, or_none: bool = False) -> str:
    """The expression that tells whether a mark belongs to the chosen layer.

    Args:
        or_none: Whether it is also true while no layer is chosen.

    Example:
        >>> is_chosen(or_none=True)
        "(layer === '' || datum.layer === layer)"
    """
    return f"({NONE_CHOSEN} || datum.layer === layer)" if or_none else "(datum.layer === layer)"


def short_labels(length: int = 18) -> str:
    """An axis' `labelExpr` that keeps the ends of long names, which tell layers apart."""
    cut = f"'…' + slice(datum.label, {1 - length})"
    return f"length(datum.label) > {length} ? {cut} : datum.label"


def finished(figure: AnyChart, rows: Rows, description: str) -> AnyChart:
    """A figure with its rows, the parameters that a page sets, and our colours and type.

    Args:
        figure: What was drawn.
        rows: The data, numbers finite or None. A layer's name is called "layer" in every figure.
        description: The figure in a sentence, for those who can't see it.
    """
    name = cast("alt.NamedData", figure.data).name
    # Rows come last, and unnamed: else Altair copies and checks each of them, again and again.
    data = alt.InlineData(values=[])
    data.values = rows if isinstance(rows, list) else list(rows)
    styled = _styled(figure.properties(description=description, usermeta={"rows": name}))
    styled.data = data
    return styled


def _styled(figure: AnyChart) -> AnyChart:
    params = [alt.param(name=name, value=value) for name, value in COLOURS.items()]
    text: dict[str, Any] = {"labelColor": INK, "titleColor": INK, "titleFontWeight": "normal"}
    lines = alt.ExprRef("faint")
    figure = figure.add_params(*params, alt.param(name=CHOSEN, value=""))
    styled: AnyChart = figure.configure(
        background=alt.ExprRef("paper"),
        font="system-ui, sans-serif",
        axis=alt.AxisConfig(**text, domainColor=lines, gridColor=lines, tickColor=lines),
        header=alt.HeaderConfig(**text),
        legend=alt.LegendConfig(**text, orient="bottom", columns=LEGEND_COLUMNS),
        title=alt.TitleConfig(color=INK, anchor="start", fontSize=13),
        view=alt.ViewConfig(stroke=None),
        range=alt.RangeConfig(category=list(CATEGORIES)),
    )
    return styled
