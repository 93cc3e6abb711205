"""What all charts share: named rows, colours that a page may change, and the selected layer.

Colours of text, lines and background are parameters of the chart, so that a page can turn a chart
from light to dark, or to paper, without drawing it again. The layer that a reader has selected is
one as well: where it is "", none is.

Many series in one chart get colours first, then dashes or shapes, and the rest are grey: seven
colours are all that eyes distinguish at a glance, so a second round of them is dashed, or has
another shape. Series beyond that are drawn without a name in the legend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import altair as alt

Chart = alt.Chart | alt.LayerChart | alt.FacetChart | alt.VConcatChart | alt.HConcatChart
Rows = Iterable[Mapping[str, Any]]
AnyChart = TypeVar("AnyChart", bound=Chart)

WIDTH = 640  # of a chart on its own; on a page it is as wide as there is room

# Okabe and Ito's colours, which colour-blind readers can distinguish; the light ones are darkened
# until all have a contrast of 3 with a light background and with a dark one.
CATEGORIES = ("#0072b2", "#c98500", "#009e73", "#c56c9d", "#3d9bd1", "#d55e00", "#8a8a8a")
SEQUENTIAL: Final = "viridis"

# A page sets these by name; the values here are those of a light background.
COLOURS: Mapping[str, str] = {
    "ink": "#1f2328",
    "faint": "#d8dce1",
    "paper": "#ffffff",
    "near": "#6391c2",
    "deep": "#08306b",
}
INK = alt.ExprRef("ink")
NEAR, DEEP = alt.ExprRef("near"), alt.ExprRef("deep")  # colours of the first and the last layer

# As many entries of a legend in a row as there is room for, on a phone as on a desktop.
LEGEND_COLUMNS = alt.ExprRef("max(1, floor(width / 110))")

SELECTED = "layer"  # the parameter that holds the selected layer's name
IS_SELECTED = "(datum.layer === layer)"  # whether a mark belongs to the selected layer
IS_SELECTED_OR_NONE = "(layer === '' || datum.layer === layer)"

DASHES = ([1, 0], [5, 3])
SHAPES = ("circle", "triangle-up")
PHONE = 310  # pixels
NAMED = len(CATEGORIES) * len(DASHES)  # how many series have a name in the legend
UNNAMED = alt.ExprRef("faint")  # the colour of those that have none


def start_chart(dataset: str, *, height: int = 220) -> alt.Chart:
    """Return an empty chart, which `finish_chart` gives its rows.

    Charts of one page whose dataset has the same name share their rows.
    """
    return alt.Chart(alt.NamedData(name=dataset), width=WIDTH, height=height)


def get_dataset(chart: Chart) -> str:
    """Return what a page calls the rows of a finished chart."""
    return str(cast("dict[str, str]", chart.usermeta)["rows"])


def get_least_width(chart: Chart) -> int:
    """Return the width in pixels that a finished chart needs; a narrower window scrolls."""
    return int(cast("dict[str, Any]", chart.usermeta)["leastWidth"])


def shows_one_layer(chart: Chart) -> bool:
    """Return whether a finished chart draws the rows of one layer only."""
    return bool(cast("dict[str, Any]", chart.usermeta)["oneLayer"])


def keep_default_layer(chart: Chart) -> Chart:
    """Return a finished chart with only those rows that it draws while no layer is selected."""
    if shows_one_layer(chart):
        data = alt.InlineData(values=[])
        values = cast("alt.InlineData", chart.data).values
        data.values = [row for row in cast("Rows", values) if row.get("default")]
        chart = chart.copy(deep=False)
        chart.data = data
    return chart


def finish_chart(
    chart: AnyChart, rows: Rows, description: str, *, least_width: int = 0, one_layer: bool = False
) -> AnyChart:
    """Return a chart with its rows, the parameters that a page sets, and our colours and fonts.

    Numbers in rows are finite or None, and a layer's name is called "layer" in every chart. The
    description is for those who can't see the chart. With `one_layer` a page gives the chart only
    the rows of the selected layer, or while none is those that are marked "default".
    """
    name = cast("alt.NamedData", chart.data).name
    # Rows come last, and unnamed: otherwise Altair copies and checks each of them many times.
    data = alt.InlineData(values=[])
    data.values = rows if isinstance(rows, list) else list(rows)
    params = [alt.param(name=name, value=value) for name, value in COLOURS.items()]
    text: dict[str, Any] = {"labelColor": INK, "titleColor": INK, "titleFontWeight": "normal"}
    lines = alt.ExprRef("faint")
    meta = {"rows": name, "leastWidth": least_width, "oneLayer": one_layer}
    chart = chart.properties(description=description, usermeta=meta)
    styled: AnyChart = chart.add_params(*params, alt.param(name=SELECTED, value="")).configure(
        background=alt.ExprRef("paper"),
        font="system-ui, sans-serif",
        axis=alt.AxisConfig(**text, domainColor=lines, gridColor=lines, tickColor=lines),
        header=alt.HeaderConfig(**text),
        legend=alt.LegendConfig(**text, orient="bottom", columns=LEGEND_COLUMNS),
        title=alt.TitleConfig(color=INK, anchor="start", fontSize=13),
        view=alt.ViewConfig(stroke=None),
        range=alt.RangeConfig(category=list(CATEGORIES)),
    )
    styled.data = data
    return styled


def encode_colour(names: Sequence[str], field: str, *, lines: bool = False) -> alt.Color:
    """Return the colour of each series, at most `NAMED`, in the legend's order.

    With `lines` the legend shows lines, as `encode_dash` does, otherwise points.
    """
    colours = [CATEGORIES[number % len(CATEGORIES)] for number in range(len(names))]
    scale = alt.Scale(domain=list(names), range=colours)
    return alt.Color(f"{field}:N", scale=scale, legend=_make_legend(names, lines=lines))


def encode_dash(names: Sequence[str], field: str) -> alt.StrokeDash:
    """Return how each series' line is dashed; it shares the legend of the colours."""
    legend = _make_legend(names, lines=True)
    return alt.StrokeDash(f"{field}:N", scale=_repeat(names, DASHES), legend=legend)


def encode_shape(names: Sequence[str], field: str) -> alt.Shape:
    """Return the shape of each series' points; it shares the legend of the colours."""
    legend = _make_legend(names, lines=False)
    return alt.Shape(f"{field}:N", scale=_repeat(names, SHAPES), legend=legend)


def number_series(rows: Rows, names: Sequence[str], field: str) -> list[dict[str, Any]]:
    """Return the rows with each series' place among the names, to sort and filter by.

    A filter by the names themselves would write them into an expression.
    """
    places = {name: place for place, name in enumerate(names)}
    return [{**row, "place": places[row[field]]} for row in rows]


def split_series(base: alt.Chart, names: Sequence[str]) -> tuple[alt.Chart, alt.Chart | None]:
    """Return the chart of the first `NAMED` numbered series, and of the others if any."""
    if len(names) <= NAMED:
        return base, None
    first = base.transform_filter(f"datum.place < {NAMED}")
    return first, base.transform_filter(f"datum.place >= {NAMED}")


def select_in_legend(field: str) -> alt.Parameter:
    """Return the series that a reader has clicked in the legend; all while none is."""
    return alt.selection_point(name="picked", fields=[field], bind="legend")


def _repeat(names: Sequence[str], kinds: Sequence[Any]) -> alt.Scale:
    """A scale that gives the first seven names the first kind, and the next seven the second."""
    range_ = [kinds[number // len(CATEGORIES)] for number in range(len(names))]
    return alt.Scale(domain=list(names), range=range_)


def _make_legend(names: Sequence[str], *, lines: bool) -> alt.Legend:
    """A legend in as many columns as a phone has room for.

    If the columns followed the width, the frame would not grow with the rows.
    """
    room = 7 * max(map(len, names), default=1) + 45
    symbol: dict[str, Any] = {"symbolType": "stroke", "symbolSize": 300} if lines else {}
    return alt.Legend(
        title=None,
        columns=max(1, PHONE // room),
        labelLimit=PHONE - 45,
        symbolOpacity=1,
        symbolStrokeWidth=2.5 if lines else 0,
        **symbol,
    )
