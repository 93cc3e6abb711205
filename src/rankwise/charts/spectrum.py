"""The singular values of one layer: what EVBMF kept, what it took for noise, and where it cut.

A page holds the values of all layers and shows those of the layer that is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from rankwise._text import sanitize
from rankwise.charts.style import CATEGORIES, INK, WIDTH, Figure, Rows, chart, finished
from rankwise.errors import ArgumentError
from rankwise.probes.results import LayerMetrics, LayerSpectrum, ModeMetrics

__all__ = ["MOST_ROWS", "sides", "spectra_figure", "spectrum_figure", "spectrum_rows"]

MOST_ROWS = 20_000  # of all layers together, so that a page stays small
FEWEST = 8  # of one unfolding

KEPT, SHRUNK, NOISE, RANDOM = "kept", "kept, noise taken off", "noise", "random weights"
LOOKS: Mapping[str, tuple[Any, str]] = {
    KEPT: (CATEGORIES[0], "circle"),
    SHRUNK: (CATEGORIES[1], "diamond"),
    NOISE: (CATEGORIES[6], "circle"),
    RANDOM: (INK, "stroke"),
}
SHOWN = "layer === '' ? datum.default : datum.layer === layer"
DESCRIPTION = "Singular values of a layer, largest first: those kept, and those taken for noise."

# A matrix's rows are its outputs, as are those of a convolution's second unfolding.
SIDES = {"matrix": "output", "output": "output", "input": "input"}


def spectrum_rows(
    layers: Iterable[LayerMetrics], random: Iterable[LayerMetrics] = (), most: int = 200
) -> list[dict[str, Any]]:
    """A row for every singular value that is drawn, of every layer that has a spectrum.

    Long spectra are thinned; the ends, and the values around the threshold, always stay.

    Args:
        layers: Rows of a probe taken with `spectra=True`, or that probe.
        random: The same layers with random weights.
        most: How many values of one unfolding to draw; fewer where there are very many layers.

    Example:
        >>> import torch, rankwise
        >>> found = rankwise.probe({"fc.weight": torch.eye(4) + 9}, spectra=True)
        >>> [(row["index"], round(row["value"], 3), row["part"]) for row in spectrum_rows(found)]
        [(1, 37.0, 'kept'), (2, 1.0, 'noise'), (3, 1.0, 'noise'), (4, 1.0, 'noise')]
    """
    shown = [layer for layer in layers if any(mode.spectrum for mode in layer.modes)]
    drawn = {layer.name: {m.mode: m.spectrum for m in layer.modes} for layer in random}
    unfoldings = sum(len(layer.modes) for layer in shown)
    most = max(FEWEST, min(most, MOST_ROWS // max(unfoldings, 1)))
    default = max(shown, key=lambda layer: layer.rank or 0.0, default=None)
    rows: list[dict[str, Any]] = []
    for layer in shown:
        constant: dict[str, Any] = {"layer": sanitize(layer.name)}
        if layer is default:
            constant["default"] = True
        for mode in layer.modes:
            beside = drawn.get(layer.name, {}).get(mode.mode)
            rows += ({**constant, **row} for row in _values(mode, len(layer.modes), beside, most))
    return rows


def spectrum_figure(rows: Rows, side: str = "output", *, name: str = "spectra") -> alt.LayerChart:
    """The spectrum of the chosen layer, or of the most interesting one where none is chosen.

    Args:
        rows: As `spectrum_rows` gives them.
        side: "output" for matrices and for convolutions unfolded by output channels, "input" for
            convolutions unfolded by input channels.
        name: What a page calls the rows.

    Example:
        >>> spectrum_figure([]).to_dict()["description"]
        'Singular values of a layer, largest first: those kept, and those taken for noise.'
    """
    rows = list(rows)
    return finished(_drawn(chart(name, height=260), rows, side), rows, DESCRIPTION)


def spectra_figure(rows: Rows) -> Figure:
    """The spectra of one layer, one below the other: for notebooks and image files.

    Raises:
        ArgumentError: If there are no values to draw.
    """
    rows = list(rows)
    if not rows:
        raise ArgumentError(
            "This probe holds no singular values of the layer; probe with spectra=True."
        )
    found = sides(rows)
    if len(found) == 1:
        return spectrum_figure(rows, found[0])
    base = alt.Chart(width=WIDTH, height=220)
    charts = [_drawn(base, rows, side).properties(title=f"by {side} channels") for side in found]
    return finished(alt.vconcat(*charts, data=chart("spectra").data), rows, DESCRIPTION)


def sides(rows: Rows) -> list[str]:
    """Which of a layer's sides there are values of."""
    present = {row["side"] for row in rows}
    return [side for side in ("output", "input") if side in present]


def _values(
    mode: ModeMetrics, siblings: int, random: LayerSpectrum | None, most: int
) -> Iterator[dict[str, Any]]:
    """The drawn values of one unfolding; zeros have no place on a logarithmic axis."""
    spectrum = mode.spectrum
    if spectrum is None:
        return
    for index in _thinned(len(spectrum.values), len(spectrum.kept), most):
        value = spectrum.values[index]
        row: dict[str, Any] = {"side": SIDES.get(mode.mode, "output"), "index": index + 1}
        row |= {"value": _short(value)} if value > 0 else {}
        row["part"] = KEPT if index < len(spectrum.kept) else NOISE
        if index < len(spectrum.kept):
            row["shrunk"] = _short(spectrum.kept[index])
        if random is not None and index < len(random.values) and random.values[index] > 0:
            row["random"] = _short(random.values[index])
        if index == 0:
            row |= {"threshold": _short(spectrum.threshold)} if spectrum.threshold > 0 else {}
            row["lone"] = siblings == 1
        yield row


def _short(value: float) -> float:
    """Five digits, which is more than a picture shows and keeps pages small."""
    return float(f"{value:.5g}")


def _thinned(length: int, cut: int, most: int) -> list[int]:
    """Places to draw, even along an axis that shows roots: the ends and the cut among them."""
    if length <= most:
        return list(range(length))
    sure = {0, length - 1, *(i for i in range(cut - 2, cut + 2) if 0 <= i < length)}
    even = np.linspace(0.0, np.sqrt(length - 1), max(most - len(sure), 0)) ** 2
    return sorted(sure | {int(place) for place in even})


def _drawn(base: alt.Chart, rows: Sequence[Mapping[str, Any]], side: str) -> alt.LayerChart:
    here = base.transform_filter(SHOWN).transform_filter(alt.datum.side == side)
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
        axis=alt.Axis(format="~g", tickCount=4, grid=False),
    )
    random = any("random" in row for row in rows)
    look = _look([name for name in LOOKS if random or name != RANDOM])
    lines = [_random(here, look).encode(x)] if random else []
    points = [point.encode(x) for point in _points(here, y, look)]
    words = (_whose(here), _alone(base, side))
    return alt.LayerChart(layer=[*lines, *_threshold(here), *points, *words])


def _named(base: alt.Chart, name: str) -> alt.Chart:
    """Marks that a legend calls by one of our own names."""
    return base.transform_calculate(named=repr(name))


def _look(names: Sequence[str]) -> dict[str, Any]:
    """Encodings that share one legend: a line's stroke, a point's fill, stroke and shape."""
    colours = alt.Scale(domain=names, range=[LOOKS[name][0] for name in names])
    shapes = alt.Scale(domain=names, range=[LOOKS[name][1] for name in names])
    return {
        "fill": alt.Fill("named:N", scale=colours, title=None),
        "stroke": alt.Stroke("named:N", scale=colours, title=None),
        "shape": alt.Shape("named:N", scale=shapes, title=None),
    }


def _random(here: alt.Chart, look: Mapping[str, Any]) -> alt.Chart:
    known = _named(here.transform_filter("isValid(datum.random)"), RANDOM)
    line = known.mark_line(strokeDash=[5, 3], opacity=0.6, aria=False)
    return line.encode(y=alt.Y("random:Q"), stroke=look["stroke"])


def _threshold(here: alt.Chart) -> list[alt.Chart]:
    first = here.transform_filter("datum.index === 1 && isValid(datum.threshold)")
    level = alt.Y("threshold:Q")
    rule = first.mark_rule(color=CATEGORIES[5], strokeWidth=1.5).encode(y=level)
    # At the right end, where the values lie below the line.
    label = first.mark_text(text="noise threshold", align="right", dy=-7, color=INK)
    return [rule, label.encode(x=alt.value("width"), y=level)]


def _points(here: alt.Chart, y: alt.Y, look: Mapping[str, Any]) -> list[alt.Chart]:
    tips = [
        alt.Tooltip("layer:N", title="layer"),
        alt.Tooltip("index:Q", title="singular value no."),
        alt.Tooltip("value:Q", title="its value", format=".4g"),
        alt.Tooltip("part:N", title="taken for"),
        alt.Tooltip("shrunk:Q", title="with noise taken off", format=".4g"),
        alt.Tooltip("random:Q", title="at random", format=".4g"),
    ]
    point: dict[str, Any] = {"filled": True, "size": 34, "opacity": 1}
    marks = []
    for name, field in ((NOISE, "value"), (KEPT, "value"), (SHRUNK, "shrunk")):
        known = f"isValid(datum.{field}) && datum.part === '{NOISE if name == NOISE else KEPT}'"
        of_kind = _named(here.transform_filter(known), name).mark_point(**point)
        height = y if field == "value" else alt.Y("shrunk:Q")
        marks.append(of_kind.encode(height, **look, tooltip=tips))
    return marks


def _whose(here: alt.Chart) -> alt.Chart:
    """The name of the layer, in the corner that a falling curve leaves free."""
    one = here.transform_filter("datum.index === 1")
    text = one.mark_text(align="right", baseline="top", color=INK, limit=260, ellipsis="…")
    return text.encode(x=alt.value("width"), y=alt.value(0), text="layer:N")


def _alone(base: alt.Chart, side: str) -> alt.Chart:
    """What to say where the chosen layer's only unfolding is the other one."""
    here = base.transform_filter(SHOWN).transform_filter("datum.lone === true")
    return (
        here.transform_filter(alt.datum.side != side)
        .mark_text(text="This layer has the other unfolding only.", align="left", color=INK)
        .encode(x=alt.value(8), y=alt.value(20))
    )
