"""The singular values of one layer: what EVBMF kept, what it took for noise, and where it cut.

A page holds the values of all layers and shows those of the layer that is selected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from rankwise.charts.axes import NUMBER
from rankwise.charts.style import CATEGORIES, INK, WIDTH, Chart, Rows, finish_chart, start_chart
from rankwise.errors import ArgumentError

MOST_ROWS = 120_000  # of all layers together, so that a page stays small
FEWEST = 8  # of one unfolding

KEPT, SHRUNK, NOISE, RANDOM = "kept", "kept, after shrinkage", "noise", "random weights"
THRESHOLD = "noise threshold"
LOOKS: Mapping[str, tuple[Any, str]] = {
    KEPT: (CATEGORIES[0], "circle"),
    SHRUNK: (CATEGORIES[1], "diamond"),
    NOISE: (CATEGORIES[6], "circle"),
    THRESHOLD: (CATEGORIES[5], "stroke"),
    RANDOM: (INK, "stroke"),
}
IS_SHOWN = "layer === '' ? datum.default : datum.layer === layer"
DESCRIPTION = "Singular values of a layer, largest first: those kept, and those taken for noise."


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The singular values of one unfolding of a layer."""

    layer: str
    depth: int  # the layer's number, as in tables and other charts
    side: str  # "output" for matrices; of a convolution, the channels that it is unfolded by
    values: Sequence[float]  # all singular values, largest first
    kept: Sequence[float]  # those above the threshold, after shrinkage
    threshold: float  # where EVBMF cut
    random: Sequence[float] = ()  # those of random weights of the same shape, where known


def make_spectrum_rows(spectra: Sequence[Spectrum], most: int = 200) -> list[dict[str, Any]]:
    """Return a row for every singular value that is drawn, `most` of one unfolding.

    Long spectra are thinned, further where there are very many layers; the ends, the values around
    the threshold and the largest kept ones, a third of all that are drawn, always stay. Spectra of
    one layer come one after the other.

    Example:
        >>> rows = make_spectrum_rows([Spectrum("fc", 1, "output", (37.0, 1.0), (36.9,), 9.0)])
        >>> [(row["index"], row["value"], row["part"]) for row in rows]
        [(1, 37.0, 'kept'), (2, 1.0, 'noise')]
    """
    layers: dict[str, list[Spectrum]] = {}
    for spectrum in spectra:
        layers.setdefault(spectrum.layer, []).append(spectrum)
    most = compute_most(len(spectra), most)
    default = max(layers, key=lambda name: _mean_rank(layers[name]), default=None)
    return [
        {"layer": name, **({"default": True} if name == default else {}), **row}
        for name, unfoldings in layers.items()
        for spectrum in unfoldings
        for row in _value_rows(spectrum, most, is_only=len(unfoldings) == 1)
    ]


def compute_most(count: int, most: int = 200) -> int:
    """Return how many values are drawn of each of `count` spectra; `most` at most."""
    return max(FEWEST, min(most, MOST_ROWS // max(count, 1)))


def count_exact(most: int) -> int:
    """Return how many of the largest kept values are all among the `most` that are drawn."""
    return most // 3


def draw_spectrum(rows: Rows, side: str = "output") -> alt.LayerChart:
    """Draw the spectrum of the selected layer, or of that of highest rank where none is selected.

    Example:
        >>> draw_spectrum([]).to_dict()["description"]
        'Singular values of a layer, largest first: those kept, and those taken for noise.'
    """
    rows = list(rows)
    chart = _draw_side(start_chart("spectra", height=260), rows, side)
    return finish_chart(chart, rows, DESCRIPTION, one_layer=True)


def draw_spectra(rows: Rows) -> Chart:
    """Draw the spectra of one layer, one below the other: for notebooks and image files."""
    rows = list(rows)
    if not rows:
        raise ArgumentError(
            "This probe holds no singular values of the layer; probe with spectra=True."
        )
    sides = list_sides(rows)
    if len(sides) == 1:
        return draw_spectrum(rows, sides[0])
    base = alt.Chart(width=WIDTH, height=220)
    charts = [_draw_side(base, rows, s).properties(title=f"by {s} channels") for s in sides]
    return finish_chart(alt.vconcat(*charts, data=start_chart("spectra").data), rows, DESCRIPTION)


def list_sides(rows: Rows) -> list[str]:
    """Return the sides, "output" and "input", that there are values of."""
    present = {row["side"] for row in rows}
    return [side for side in ("output", "input") if side in present]


def _mean_rank(unfoldings: Sequence[Spectrum]) -> float:
    return sum(len(spectrum.kept) for spectrum in unfoldings) / len(unfoldings)


def _value_rows(spectrum: Spectrum, most: int, *, is_only: bool) -> Iterator[dict[str, Any]]:
    """The drawn values of one unfolding; zeros have no place on a logarithmic axis."""
    rank = len(spectrum.kept)
    for index in _thin(len(spectrum.values), rank, most):
        value = spectrum.values[index]
        row: dict[str, Any] = {"side": spectrum.side, "index": index + 1}
        row |= {"value": _round(value)} if value > 0 else {}
        row["part"] = KEPT if index < rank else NOISE
        if index < rank:
            row["shrunk"] = _round(spectrum.kept[index])
        if index < len(spectrum.random) and spectrum.random[index] > 0:
            row["random"] = _round(spectrum.random[index])
        if index == 0:
            row |= {"threshold": _round(spectrum.threshold)} if spectrum.threshold > 0 else {}
            row |= {"only_side": is_only, "depth": spectrum.depth}
        yield row


def _round(value: float) -> float:
    """Five digits, which is more than a picture shows and keeps pages small."""
    return float(f"{value:.5g}")


def _thin(length: int, cut: int, most: int) -> list[int]:
    """Places to draw, even along a root axis: the ends and the cut among them."""
    if length <= most:
        return list(range(length))
    sure = {0, length - 1, *(i for i in range(cut - 2, cut + 2) if 0 <= i < length)}
    sure |= set(range(min(cut, count_exact(most))))
    even = np.linspace(0.0, np.sqrt(length - 1), max(most - len(sure), 0)) ** 2
    return sorted(sure | {int(place) for place in even})


def _draw_side(base: alt.Chart, rows: Sequence[Mapping[str, Any]], side: str) -> alt.LayerChart:
    shown = base.transform_filter(IS_SHOWN).transform_filter(alt.datum.side == side)
    x = alt.X(
        "index:Q",
        title="singular values, largest first (root scale)",
        scale=alt.Scale(type="sqrt", nice=False, padding=6),
        axis=alt.Axis(format="d", tickMinStep=1, tickCount=6, grid=False),
    )
    y = alt.Y(
        "value:Q",
        title="singular value (log scale)",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=alt.Axis(format=NUMBER, tickCount=4, grid=False),
    )
    has_random = any("random" in row for row in rows)
    look = _encode_look([name for name in LOOKS if has_random or name != RANDOM])
    lines = [_random_line(shown, look).encode(x)] if has_random else []
    points = [point.encode(x) for point in _points(shown, y, look)]
    is_alone = len({row["layer"] for row in rows}) == 1
    texts = (_layer_name(shown, numbered=not is_alone), _other_side_note(base, side))
    lines.append(_threshold_line(shown, look))
    return alt.LayerChart(layer=[*lines, *points, *texts])


def _label(base: alt.Chart, name: str) -> alt.Chart:
    """Marks that the legend calls by one of our own names."""
    return base.transform_calculate(named=repr(name))


def _encode_look(names: Sequence[str]) -> dict[str, Any]:
    """Encodings that share one legend: a line's stroke, a point's fill, stroke and shape."""
    colours = alt.Scale(domain=names, range=[LOOKS[name][0] for name in names])
    shapes = alt.Scale(domain=names, range=[LOOKS[name][1] for name in names])
    # A fixed number of columns: rows that appear when the width changes would be cut off.
    legend = alt.Legend(title=None, columns=2)
    return {
        "fill": alt.Fill("named:N", scale=colours, legend=legend),
        "stroke": alt.Stroke("named:N", scale=colours, legend=legend),
        "shape": alt.Shape("named:N", scale=shapes, legend=legend),
    }


def _random_line(shown: alt.Chart, look: Mapping[str, Any]) -> alt.Chart:
    known = _label(shown.transform_filter("isValid(datum.random)"), RANDOM)
    line = known.mark_line(strokeDash=[5, 3], opacity=0.6, aria=False)
    return line.encode(y=alt.Y("random:Q"), stroke=look["stroke"])


def _threshold_line(shown: alt.Chart, look: Mapping[str, Any]) -> alt.Chart:
    """Where EVBMF cut; the legend names it, since a text next to it would cover values."""
    first = shown.transform_filter("datum.index === 1 && isValid(datum.threshold)")
    rule = _label(first, THRESHOLD).mark_rule(strokeWidth=1.5, aria=False)
    return rule.encode(y=alt.Y("threshold:Q"), stroke=look["stroke"])


def _points(shown: alt.Chart, y: alt.Y, look: Mapping[str, Any]) -> list[alt.Chart]:
    tooltip = [
        alt.Tooltip("layer:N", title="layer"),
        alt.Tooltip("index:Q", title="singular value no."),
        alt.Tooltip("value:Q", title="value", format=".4g"),
        alt.Tooltip("part:N", title="taken for"),
        alt.Tooltip("shrunk:Q", title="after shrinkage", format=".4g"),
        alt.Tooltip("random:Q", title="random weights", format=".4g"),
    ]
    marks = []
    for name, field in ((NOISE, "value"), (KEPT, "value"), (SHRUNK, "shrunk")):
        known = f"isValid(datum.{field}) && datum.part === '{NOISE if name == NOISE else KEPT}'"
        labelled = _label(shown.transform_filter(known), name)
        point = labelled.mark_point(filled=True, size=34, opacity=1)
        height = y if field == "value" else alt.Y("shrunk:Q")
        marks.append(point.encode(height, **look, tooltip=tooltip))
    return marks


def _layer_name(shown: alt.Chart, *, numbered: bool) -> alt.Chart:
    """The layer's number and name, above the frame, where they cover nothing."""
    title = "datum.depth + '  ' + datum.layer" if numbered else "datum.layer"
    first = shown.transform_filter("datum.index === 1").transform_calculate(title=title)
    text = first.mark_text(align="left", color=INK, limit=alt.ExprRef("width"), ellipsis="…")
    return text.encode(x=alt.value(0), y=alt.value(-10), text="title:N")


def _other_side_note(base: alt.Chart, side: str) -> alt.Chart:
    """What to say where the selected layer's only unfolding is the other one."""
    here = base.transform_filter(IS_SHOWN).transform_filter("datum.only_side === true")
    return (
        here.transform_filter(alt.datum.side != side)
        .mark_text(text="This layer has the other unfolding only.", align="left", color=INK)
        .encode(x=alt.value(8), y=alt.value(20))
    )
