"""One metric of every layer, each by its number and name: bars, or a map of repeated blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import altair as alt

from rankwise._text import format_count, shorten_all
from rankwise.charts.axes import METRICS, NUMBER, get_metric_title
from rankwise.charts.blocks import (
    MANY,
    arrange_blocks,
    arrange_lines,
    choose_step,
    compute_least_width,
    draw_cells,
)
from rankwise.charts.style import (
    CATEGORIES,
    INK,
    IS_SELECTED,
    IS_SELECTED_OR_NONE,
    SEQUENTIAL,
    WIDTH,
    Chart,
    finish_chart,
    start_chart,
)
from rankwise.errors import ArgumentError

LAYER_METRICS = (
    *("prominence", "stable_rank", "rank_fraction", "noise_fraction"),
    *("condition", "quality"),  # the paper's
)
SHARES = ("noise_fraction", "condition", "low_rank_share")  # drawn from 0 to 1, whatever the values

DIFFERS, FLAT = "differs from random", "flatter than random"
NORMS_ONLY = "differs only in its filters' norms"
SAME_AS_RANDOM, TOO_SMALL = "no direction stands out", "too small to tell"
NOT_COMPARED = "not compared with random"
RANDOM = "random weights of its shape"
# Each state's colour in a bar, and its sign in a cell of a map.
STATES: Mapping[str, tuple[str, str]] = {
    DIFFERS: (CATEGORIES[0], ""),
    FLAT: (CATEGORIES[4], "="),
    NORMS_ONLY: (CATEGORIES[3], "~"),
    SAME_AS_RANDOM: (CATEGORIES[1], "○"),
    TOO_SMALL: (CATEGORIES[6], "?"),
    NOT_COMPARED: (CATEGORIES[6], ""),
}
SEVERITIES = {"error": "✖", "warning": "▲"}  # how a layer with a finding is marked
OUTLIERS = ("≠", "with experts unlike the others")  # how a group is marked, and what that means

LABEL = 40  # characters of a name next to a bar; tooltips have the whole
TALLEST = 12_000  # pixels
# On a phone a label keeps its number and its end, which distinguishes layers.
SHORT_LABEL = (
    "windowSize()[0] < 500 && length(datum.label) > 24"
    " ? split(datum.label, ' ')[0] + ' …' + slice(datum.label, -18) : datum.label"
)


class RandomMetrics(TypedDict, total=False):
    """What random weights of a layer's shape show, where known."""

    random_prominence: float | None
    random_quality: float | None
    random_stable_rank: float | None
    random_condition: float | None
    random_rank_fraction: float | None
    random_noise_fraction: float | None


class LayerRow(RandomMetrics):
    """A probed layer, or a group of experts by its medians."""

    layer: str
    depth: int  # its number, from 1; tables have it too
    kind: str
    shape: str
    ranks: str
    state: str  # one of `STATES`
    finding: str  # the severity of the worst finding, one of `SEVERITIES`; "" where there is none
    is_member: bool  # whether a group in the rows contains it; maps leave such a layer out
    has_outliers: bool  # whether it is a group with members unlike the others
    rank_one: bool  # whether an unfolding has rank 1, which puts q at its maximum
    prominence: float | None
    quality: float | None
    stable_rank: float | None
    condition: float | None
    rank_fraction: float | None
    noise_fraction: float | None


def draw_layers(rows: Iterable[LayerRow], metric: str) -> alt.LayerChart:
    """Draw one of `LAYER_METRICS` of every layer, with its number and name.

    Where the names show blocks that repeat, as in transformers, a map has a column for each block
    and a row for each kind of layer; otherwise every layer has a bar, or where these are very many,
    a cell of a map in the layers' order.

    Example:
        >>> draw_layers([], "quality").to_dict()["description"]
        'quality q of 0 layers.'
    """
    title, listed = get_metric_title(metric, LAYER_METRICS), list(rows)
    base, fields = start_chart("layers"), _place_rows(listed)
    least_width = 0 if fields is None else compute_least_width(fields)
    if fields is None:
        fields = label_rows(listed)
        chart = _draw_bars(base.properties(height=compute_height(len(listed))), fields, metric)
    else:
        chart = _draw_map(base, fields, metric)
    description = f"{title} of {format_count(len(listed), 'layer')}."
    return finish_chart(chart, fields, description, least_width=least_width)


def draw_all_metrics(rows: Iterable[LayerRow]) -> Chart:
    """Draw all metrics of every layer in one picture: for notebooks and image files."""
    listed = list(rows)
    if not listed:
        raise ArgumentError("No layer was probed, so there is nothing to draw.")
    fields = _place_rows(listed)
    titles = ", ".join(METRICS[metric][0] for metric in LAYER_METRICS)
    description = f"{titles} of {format_count(len(listed), 'layer')}."
    data = start_chart("layers").data
    if fields is None:
        fields = label_rows(listed)
        base = alt.Chart(width=WIDTH // 4, height=compute_height(len(listed)))
        bars = [
            _draw_bars(base, fields, metric, names=place == 0)
            for place, metric in enumerate(LAYER_METRICS)
        ]
        return finish_chart(alt.hconcat(*bars, data=data, spacing=12), fields, description)
    maps = [_draw_map(alt.Chart(width=WIDTH), fields, metric) for metric in LAYER_METRICS]
    stacked = alt.vconcat(*maps, data=data).resolve_scale(color="independent")
    return finish_chart(stacked, fields, description)


def describe_marks(rows: Sequence[LayerRow]) -> str:
    """Return what the marks mean that charts of these rows have; "" where there are none.

    Example:
        >>> describe_marks([])
        ''
    """
    marks = {sign: severity for severity, sign in SEVERITIES.items()}
    shown = {SEVERITIES[row["finding"]] for row in rows if row["finding"]}
    marks |= dict([OUTLIERS])
    shown |= {OUTLIERS[0] for row in rows if row["has_outliers"]}
    if _place_rows(rows) is not None:
        marks |= {sign: state for state, (_, sign) in STATES.items() if sign}
        shown |= {STATES[row["state"]][1] for row in rows}
    texts = [f"{sign} {text}" for sign, text in marks.items() if sign in shown]
    return f"Marks: {', '.join(texts)}." if texts else ""


def describe_places(rows: Sequence[LayerRow]) -> str:
    """Return what rows and columns of a map of these layers are; "" where they have bars.

    Example:
        >>> describe_places([])
        ''
    """
    if _place_rows(rows) is None:
        return ""
    if arrange_blocks([row["layer"] for row in rows if not row["is_member"]]) is None:
        return "Each cell of a map is a layer; rows are read like text."
    return "A column of a map is a block, a row is a kind of layer."


def _place_rows(rows: Sequence[LayerRow]) -> list[dict[str, Any]] | None:
    """Return labelled rows with their places in a map; None where bars are easier to read."""
    inner = [row for row in label_rows(rows) if not row["is_member"]]
    cells = arrange_blocks([row["layer"] for row in inner])
    if cells is None:
        if len(rows) <= MANY:
            return None
        # Every one, also members of groups: numbers count them, and a row begins with its number.
        inner, cells = label_rows(rows), arrange_lines(len(rows))
    placed = ({**row, **cell} for row, cell in zip(inner, cells, strict=True))
    # Layers in no block have their own number, which counts members of groups too.
    return [{**row, "role": f"#{row['depth']}"} if row["outside"] else row for row in placed]


def make_labels(names: Sequence[str]) -> list[str]:
    """Return every layer's number and name, short enough to stand next to a bar.

    Example:
        >>> make_labels(["conv1.weight", "fc.weight"])
        ['1 conv1', '2 fc']
    """
    ending = ".weight" if all(name.endswith(".weight") for name in names) else ""
    short = shorten_all([name.removesuffix(ending) or name for name in names], LABEL)
    return [f"{number} {name}" for number, name in enumerate(short, 1)]


def label_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with each layer's number and name as an axis shows them."""
    labels = make_labels([row["layer"] for row in rows])
    return [{**row, "label": label} for row, label in zip(rows, labels, strict=True)]


def compute_height(count: int) -> int:
    """Return the height of a chart with a row for each layer."""
    return min(max(choose_step(count) * count, 40), TALLEST)


def make_layer_axis(count: int, *, names: bool = True) -> alt.Y:
    """Return the axis of rows that `label_rows` has labelled, in the order of their numbers."""
    axis = alt.Axis(
        labelExpr=SHORT_LABEL,
        labelLimit=320,
        labelFontSize=9 if count > 60 else 10,
        labelOverlap=choose_step(count) * count > TALLEST,
        labelPadding=5,
        ticks=False,
        domain=False,
    )
    by_number = alt.EncodingSortField(field="depth", op="min", order="ascending")
    return alt.Y("label:N", title=None, sort=by_number, axis=axis if names else None)


def make_metric_axis(field: str, metric: str, values: Sequence[float | None]) -> alt.X:
    """Return the axis of a metric that spans the values given; others are drawn on its edge.

    Where rank 1 raises q to its maximum by definition, the bars of the other layers would vanish
    next to it; so the axis is made for these alone.
    """
    title, form = METRICS[metric]
    # At the top, since a chart of many layers is taller than a window.
    axis = alt.Axis(format="%" if "%" in form else NUMBER, tickCount=5, orient="top")
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    bottom = min((value for value in values if value is not None), default=0.0)
    if metric in SHARES:
        top = 1.0
    scale = alt.Scale(domain=[min(bottom, 0.0), top], clamp=True, nice=top != 1.0)
    return alt.X(f"{field}:Q", title=title, axis=axis, scale=scale)


def _draw_bars(
    base: alt.Chart, rows: Sequence[Mapping[str, Any]], metric: str, *, names: bool = True
) -> alt.LayerChart:
    random = [row[f"random_{metric}"] for row in rows if row.get(f"random_{metric}") is not None]
    values = [row[metric] for row in rows if not (metric == "quality" and row["rank_one"])]
    x = make_metric_axis(metric, metric, values + (random if metric != "quality" else []))
    y = make_layer_axis(len(rows), names=names)
    states = [state for state in STATES if any(row["state"] == state for row in rows)]
    opacity = alt.condition(IS_SELECTED_OR_NONE, alt.value(1), alt.value(0.3))
    bar = base.mark_bar(height=alt.RelativeBandSize(band=0.72)).encode(
        x,
        y,
        opacity=opacity,
        color=_encode_state([*states, RANDOM] if random else states),
        tooltip=list_tooltips(metric, random=bool(random)),
    )
    marks = [bar, *([_random_ticks(base, x, y, metric)] if random else [])]
    signs = _sign(base, _find_urgent_sign()).mark_text(
        align="left", dx=4, color=INK, clip=False, aria=False
    )
    selected = base.transform_filter(IS_SELECTED).mark_rule(color=INK, opacity=0.5).encode(y)
    return alt.LayerChart(layer=[selected, *marks, signs.encode(x, y, text="sign:N")])


def _random_ticks(base: alt.Chart, x: alt.X, y: alt.Y, metric: str) -> alt.Chart:
    """What random weights would show; the legend calls them by their name."""
    named = base.transform_calculate(state=repr(RANDOM))
    tick = named.mark_tick(orient="vertical", thickness=2, aria=False)
    return tick.encode(x, y, color=alt.Color("state:N")).encode(x=alt.X(f"random_{metric}:Q"))


def _draw_map(base: alt.Chart, rows: Sequence[Mapping[str, Any]], metric: str) -> alt.LayerChart:
    colour, is_light = encode_cells(rows, metric)
    signs = {state: sign for state, (_, sign) in STATES.items()}
    # A finding or an outlier is more urgent than a state, so its sign is the one that is shown.
    sign = f"{_find_urgent_sign()} || {_match(signs, 'state')}"
    tooltip = list_tooltips(metric, random=any(f"random_{metric}" in row for row in rows))
    return draw_cells(base, rows, metric, colour, tooltip=tooltip, sign=sign, is_light=is_light)


def encode_cells(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[alt.Color, str]:
    """Return the colour of the cells of a map, and an expression for whether one is light.

    Args:
        rows: The layers, each with a `BlockCell`.
        metric: What the colour shows.
    """
    title, form = METRICS[metric]
    inner = [row[metric] for row in rows if not row["outside"] and row[metric] is not None]
    top = 1.0 if metric in SHARES else _find_top(inner)
    # Most layers are near 0 and a few far from it: a root scale distinguishes both.
    kind: Literal["linear", "sqrt"] = "linear" if metric in (*SHARES, "prominence") else "sqrt"
    colour = alt.Color(
        f"{metric}:Q",
        scale=alt.Scale(type=kind, domain=[0, top], clamp=True, scheme=SEQUENTIAL, nice=True),
        legend=alt.Legend(
            title=title, gradientLength=160, format="%" if "%" in form else NUMBER, tickCount=3
        ),
    )
    return colour, f"datum.{metric} > {0.6 * top if kind == 'linear' else 0.36 * top}"


def _find_top(values: Sequence[float]) -> float:
    """The end of a colour scale; a single layer far beyond the others does not set it."""
    if not values:
        return 1.0
    high = sorted(values)[int(0.9 * (len(values) - 1))]
    return min(max(values), 2.0 * high) if high > 0 else max(*values, 0.0) or 1.0


def _match(signs: Mapping[str, str], field: str) -> str:
    """An expression for the sign that belongs to a field's value, "" where there is none."""
    return (
        "(" + " || ".join(f"(datum.{field} === {k!r} ? {v!r} : '')" for k, v in signs.items()) + ")"
    )


def _find_urgent_sign() -> str:
    """An expression for the sign of a finding, or else of a group with outliers."""
    return f"({_match(SEVERITIES, 'finding')} || (datum.has_outliers ? {OUTLIERS[0]!r} : ''))"


def _sign(base: alt.Chart, expression: str) -> alt.Chart:
    return base.transform_calculate(sign=expression).transform_filter("datum.sign !== ''")


def _encode_state(states: Sequence[str]) -> alt.Color:
    colours: list[Any] = [STATES[state][0] if state in STATES else INK for state in states]
    legend = alt.Legend(
        orient="top",
        title=None,
        columns=alt.ExprRef("windowSize()[0] < 500 ? 2 : 3"),
        labelLimit=200,
        symbolOpacity=1,
        symbolType="square",
    )
    scale = alt.Scale(domain=list(states), range=colours)
    return alt.Color("state:N", scale=scale, legend=legend)


def list_tooltips(metric: str, *, random: bool) -> list[alt.Tooltip]:
    """Return a layer's tooltip: its number, its name, all its metrics."""
    names = {
        "depth": "#",
        "layer": "layer",
        "kind": "kind",
        "shape": "shape",
        "ranks": "rank",
        "state": "state",
        "finding": "finding",
    }
    tooltip = [alt.Tooltip(f"{field}:N", title=title) for field, title in names.items()]
    for name in LAYER_METRICS:
        title, form = METRICS[name]
        tooltip.append(alt.Tooltip(f"{name}:Q", title=title, format=form))
    if random:
        title, form = METRICS[metric]
        tooltip.append(
            alt.Tooltip(f"random_{metric}:Q", title=f"{title}, random weights", format=form)
        )
    return tooltip
