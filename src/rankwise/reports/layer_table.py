"""The layers of a probe that a page shows, and their table: groups of experts, and outliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rankwise._table import Style
from rankwise._text import format_count, format_name, format_percent, sanitize
from rankwise.charts.blocks import MANY
from rankwise.probes.chart_rows import find_worst
from rankwise.probes.explain import EXPLANATIONS
from rankwise.probes.groups import Item, LayerGroup, get_row, group_layers, list_outliers
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.summary_text import describe_outliers
from rankwise.probes.text import (
    find_bar_scale,
    format_metric,
    format_ranks,
    format_shape,
    name_item,
)
from rankwise.reports.layer_blocks import group_by_block, make_line
from rankwise.reports.page import Cell, Section, Table, Text, format_number_cell, make_columns

if TYPE_CHECKING:
    from rankwise.probes.results import Probe

MOST_LAYERS = 2000  # in tables and charts, so that a page stays below 5 MB
MOST_OUTLIERS = 100  # experts listed in addition to their groups
PROMINENCE = (
    "How far the strongest direction of a layer stands out from its noise: at 0 it is as strong as "
    "noise gets, at 1 it is 2.7 times as strong. It tells a layer from random weights; it does not "
    "say how good the layer is."
)
GROUPED = (
    "Experts of one role and shape are one row with their medians, and in brackets their range; "
    "experts unlike their siblings follow with rows of their own."
)
BLOCKS = (
    "Layers collapse by block. The line of a block has the medians of its layers, and the sum of "
    "their parameters. Sorting and filtering go through all layers."
)
COLUMNS = (
    *("#", "layer", "s", "rank", "share", "noise", "prominence", "against random", "κ", "q"),
    *("kind", "shape", "parameters"),
)
HINTS = {
    "#": "The number of the layer in all charts.",
    "rank": "n'/n: " + EXPLANATIONS["rank"].formula,
    "share": EXPLANATIONS["rank_fraction"].meaning,
    "s": EXPLANATIONS["stable_rank"].formula,
    "κ": EXPLANATIONS["condition"].formula,
    "q": EXPLANATIONS["quality"].formula + "; * where rank 1 inflates it",
    "noise": EXPLANATIONS["noise_fraction"].meaning,
    "prominence": PROMINENCE,
    "against random": "Whether the weights differ from independent random numbers.",
}


def select_items(probe: Probe, severities: Mapping[str, str]) -> tuple[list[Item], int]:
    """Return what has a row in tables and charts, and how many layers and groups have none.

    Groups of experts are followed by their outliers. Of very many layers, those with findings and
    the first others are taken.
    """
    items = group_layers(probe.layers)
    outliers = {one.layer.name for one in list_outliers(items)[:MOST_OUTLIERS]}
    room = MOST_LAYERS - sum(bool(find_worst(item, severities)) for item in items)
    selected: list[Item] = []
    for item in items:
        is_found = bool(find_worst(item, severities))
        room -= not is_found
        if room >= 0 or is_found:
            selected.append(item)
            if isinstance(item, LayerGroup):
                selected += [member for member in item.members if member.name in outliers]
    shown = selected[: 2 * MOST_LAYERS]
    return shown, len(items) - sum(item.name not in outliers for item in shown)


def count_hidden(hidden: int) -> str:
    """Return how many layers a page leaves out, in a sentence; "" for none."""
    if not hidden:
        return ""
    count = format_count(hidden, "more layer")
    return f"{count} would make the page too large; rankwise probe --csv lists all."


def make_layer_section(
    items: Sequence[Item], probe: Probe, hidden: int, severities: Mapping[str, str]
) -> Section:
    """Return the table with a row for each item; of many, they collapse by block.

    Args:
        items: The layers and groups of experts.
        probe: The whole.
        hidden: How many more there are.
        severities: The worst severity of what a check found, by the layer's name.
    """
    most = find_bar_scale(probe.probed, "stable_rank")
    blocks = group_by_block(items) if len(items) > MANY else []
    numbers = [number for block in blocks for number in block.numbers] or range(1, len(items) + 1)
    table = Table(
        make_columns(COLUMNS, left=("against random", "kind"), name_column=1),
        tuple(_make_row(number, items[number - 1], most) for number in numbers),
        f"The probed layers, {describe_order(probe)}; click a name to select the layer.",
        groups=tuple(make_line(block, items, severities, most) for block in blocks),
        has_filter=True,
        name_column=1,
        hints=HINTS,
        name="layers",
    )
    has_groups = any(isinstance(item, LayerGroup) for item in items)
    words = [GROUPED, *describe_outliers(probe.probed)] if has_groups else []
    words += [BLOCKS] if blocks else []
    words += [count_hidden(hidden)] if hidden else []
    return Section("All layers", (*([Text(tuple(words))] if words else []), table))


def _make_row(number: int, item: Item, most: float) -> tuple[Cell, ...]:
    layer = get_row(item)
    style: Style = "dim" if layer.is_empty else ""
    s, q, size = layer.stable_rank or 0.0, layer.quality or 0.0, float(layer.parameters)
    fraction, noise = layer.rank_fraction, layer.noise_fraction
    ranks = format_ranks(layer) + _format_range(item, lambda row: f"{row.rank:g}")
    range_of_s = _format_range(item, lambda row: format_metric(row.stable_rank))
    range_of_noise = _format_range(item, lambda row: format_percent(row.noise_fraction))
    return (
        Cell(str(number), "dim", float(number)),
        make_layer_cell(name_item(item), style),
        Cell(format_metric(s) + range_of_s, style, s, min(s / most, 1.0)),
        Cell(ranks, style, layer.rank),
        Cell(format_percent(fraction), style, fraction, fraction),
        Cell(format_percent(noise) + range_of_noise, style, noise, noise),
        format_number_cell(layer.prominence, ".2f", style=style),
        Cell("–" if layer.verdict is None else layer.verdict.value, style, wraps=True),
        Cell(format_metric(layer.condition), style, layer.condition),
        Cell(format_metric(q) + "*" * layer.has_inflated_quality, style, q),
        Cell(sanitize(layer.kind), style),
        Cell(format_shape(layer.shape), style, size),
        Cell(f"{layer.parameters:,}", style, size),
    )


def _format_range(item: Item, format_value: Callable[[LayerMetrics], str]) -> str:
    """The range of a metric in a group of experts, in brackets; "" for a layer."""
    if not isinstance(item, LayerGroup):
        return ""
    return f" ({format_value(item.low)} … {format_value(item.high)})"


def make_layer_cell(name: str, style: Style = "") -> Cell:
    """Return a cell that names a layer and selects it."""
    return Cell(format_name(name), style, layer=format_name(name))


def describe_order(probe: Probe) -> str:
    """Return how the layers of a probe are ordered, as the end of a title."""
    return "in network order" if probe.order == "network" else "by name"
