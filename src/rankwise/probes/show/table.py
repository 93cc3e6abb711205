"""A probe in plain text: the table of its layers, a summary in words, what was skipped and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rankwise._table import Cell, Column, Style, Table, align_cells, draw_bar, join_cells
from rankwise._text import format_count, format_percent, sanitize
from rankwise.errors import ArgumentError
from rankwise.probes.show.summary import format_skipped, format_summary, lifted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankwise.probes.results import LayerMetrics

__all__ = ["SORTS", "format_skipped", "format_summary", "format_table"]

Item = TypeVar("Item")
Line = tuple[Cell, ...]

BAR = 4

SORTS: Mapping[str, Callable[[LayerMetrics], float | str | None]] = {
    "quality": lambda layer: layer.quality,
    "stable_rank": lambda layer: layer.stable_rank,
    "condition": lambda layer: layer.condition,
    "rank": lambda layer: layer.rank,
    "noise": lambda layer: layer.noise_fraction,
    "name": lambda layer: layer.name,
    "size": lambda layer: layer.parameters,
}


def format_table(
    layers: Sequence[LayerMetrics],
    *,
    sort: str | None = None,
    top: int | None = None,
    width: int | None = 80,
) -> str:
    """The probed layers as a plain table, one a line, never wider than `width`.

    Rank is n'/n, the mean over a convolution's two unfoldings; a star marks a q that an unfolding
    of rank 1 lifts. Bars set the layers side by side: a full one is the largest value among them.

    Args:
        layers: Rows of a probe; those not probed are left to `format_skipped`.
        sort: One of `SORTS`, ascending; with "-" in front descending; None for network order.
        top: How many rows to show.
        width: In terminal columns; None for as wide as needed, without bars.

    Raises:
        ArgumentError: If `sort` or `top` is none of these.

    Example:
        >>> import torch, rankwise
        >>> weight = torch.outer(torch.ones(8), torch.ones(9)) + torch.eye(8, 9)
        >>> print(format_table(rankwise.probe({"fc.weight": weight}).layers, width=None))
        layer      shape  rank      s      κ       q  noise
        fc.weight    8×9   1/8  0.125  0.000  1.571*    12%
    """
    return join_cells(table_lines(layers, sort=sort, top=top, width=width))


def ordered(
    items: Sequence[Item],
    keys: Mapping[str, Callable[[Item], float | str | None]],
    sort: str | None,
    top: int | None,
) -> list[Item]:
    """Items sorted by one of `keys`, those without a value last, and cut to the first `top`.

    Raises:
        ArgumentError: If `sort` is none of the keys or `top` is below 1.
    """
    check_view(keys, sort, top)
    if sort is None:
        return list(items[:top])
    key = keys[sort.removeprefix("-")]
    valued = [(key(item), item) for item in items]
    known = [(value, item) for value, item in valued if value is not None]
    known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    unknown = [item for value, item in valued if value is None]
    return [*(item for _, item in known), *unknown][:top]


def check_view(keys: Mapping[str, object], sort: str | None, top: int | None) -> None:
    """See that a table can be shown so, before the work behind it is done.

    Raises:
        ArgumentError: If `sort` is none of the keys or `top` is below 1.
    """
    if sort is not None and sort.removeprefix("-") not in keys:
        choices = ", ".join(sorted(keys))
        raise ArgumentError(f"sort must be one of {choices} ('-' in front reverses), not {sort!r}.")
    if top is not None and top < 1:
        raise ArgumentError(f"top must be 1 or more, not {top}.")


def table_lines(
    layers: Sequence[LayerMetrics],
    *,
    sort: str | None = None,
    top: int | None = None,
    width: int | None = 80,
) -> list[Line]:
    """The lines behind `format_table`, as cells with their styles."""
    probed = [layer for layer in layers if layer.probed]
    shown = ordered(probed, SORTS, sort, top)
    if not shown:
        return []
    table = _layer_table(shown, scale(probed, "stable_rank"), scale(probed, "quality"))
    if width is None:
        table = table.select(i for i, column in enumerate(table.columns) if column.title)
    return [*align_cells(table, width), *more(len(probed) - len(shown), "layer")]


def more(hidden: int, noun: str) -> list[Line]:
    """The line that says how many rows a table leaves out."""
    return [(Cell(f"… {format_count(hidden, f'more {noun}')}", "dim"),)] if hidden else []


def scale(layers: Sequence[LayerMetrics], metric: str) -> float:
    """What a full bar stands for: the largest value of layers that are not rank 1 somewhere.

    Trained layers have s and q of a few hundredths; against 1 and π/2 no bar would be seen.
    """
    values = (getattr(layer, metric) or 0.0 for layer in layers if not lifted(layer))
    return max(values, default=0.0) or 1.0


def _layer_table(layers: Sequence[LayerMetrics], most_s: float, most_q: float) -> Table:
    def column(
        title: str, priority: int, text: Callable[[LayerMetrics], str], style: Style = ""
    ) -> tuple[Column, list[Cell]]:
        cells = [Cell(text(row), "dim" if row.is_empty else style) for row in layers]
        return Column(title, "left" if style else "right", priority), cells

    columns = [
        column("layer", 9, lambda row: sanitize(row.name), "name"),
        column("shape", 1, lambda row: shape(row.shape)),
        column("rank", 5, ranks),
        column("s", 7, lambda row: number(row.stable_rank)),
        column("", 2, lambda row: draw_bar((row.stable_rank or 0.0) / most_s, BAR), "bar s"),
        column("κ", 6, lambda row: number(row.condition)),
        column("q", 8, lambda row: number(row.quality) + "*" * lifted(row)),
        column("", 3, lambda row: draw_bar((row.quality or 0.0) / most_q, BAR), "bar q"),
        column("noise", 4, lambda row: format_percent(row.noise_fraction).replace(" ", "")),
    ]
    return Table.from_columns(columns)


def shape(sides: Sequence[int]) -> str:
    """A shape as in 64×3×7×7."""
    return "×".join(map(str, sides)) or "scalar"


def ranks(layer: LayerMetrics) -> str:
    if layer.rank is None or not layer.modes:
        return number(layer.rank)
    return f"{layer.rank:g}/{sum(mode.rows for mode in layer.modes) / len(layer.modes):g}"


def number(value: float | None) -> str:
    """A metric with three decimals."""
    return "–" if value is None else f"{value:.3f}"
