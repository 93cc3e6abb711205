"""A probe in plain text: the table of its layers, what was skipped and why."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from rankwise._table import Cell, Column, Style, Table, align_cells, draw_bar, join_cells
from rankwise._text import (
    format_count,
    format_name,
    format_percent,
    sanitize,
    shorten,
    suggest_names,
    wrap,
)
from rankwise.errors import ArgumentError
from rankwise.probes.groups import LayerGroup, get_row, group_layers
from rankwise.weights.tensor import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankwise.probes.groups import Item
    from rankwise.probes.layer_metrics import LayerMetrics
    from rankwise.weights.tensor import Order

Row = TypeVar("Row")
Line = tuple[Cell, ...]

BY_NAME = "layers are listed by name; their order in the network is not known"
MOST_ROWS = 1000  # of a table for people to read
_MAX_NAMES = 4  # names listed before "and 12 more"
_LONGEST_SENTENCE = 1000  # characters
_BAR_WIDTH = 4
_TABLE_METRICS = attrgetter("rank", "stable_rank", "condition", "quality", "noise_fraction")

LAYER_SORT_KEYS: Mapping[str, Callable[[LayerMetrics], float | str | None]] = {
    "quality": lambda layer: layer.quality,
    "stable_rank": lambda layer: layer.stable_rank,
    "condition": lambda layer: layer.condition,
    "rank": lambda layer: layer.rank,
    "noise": lambda layer: layer.noise_fraction,
    "prominence": lambda layer: layer.prominence,
    "name": lambda layer: layer.name,
    "size": lambda layer: layer.parameters,
}
# How each status is called for one tensor and for several.
_LABELS: Mapping[Status, tuple[str, str]] = {
    Status.VECTOR: ("vector (bias or norm scale)", "vectors (biases, norm scales)"),
    Status.NOT_A_WEIGHT: ("not a weight", "not weights"),
    Status.MERGED: ("merged into another", "merged into others"),
    Status.FILTERED: ("filtered out", "filtered out"),
    Status.INTEGER: ("integer tensor", "integer tensors"),
    Status.NO_DATA: ("without data", "without data"),
}
_SELF_EXPLAINING = {Status.VECTOR, Status.FILTERED}


class Named(Protocol):
    """What a sentence can name: a layer, or a tensor that changed."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def reason(self) -> str:
        """Why it was left out, or a caveat."""


class _TableRow(NamedTuple):
    """A line of the table: of a layer, or of a group's medians, minima or maxima."""

    name: str
    of: LayerMetrics
    is_extreme: bool = False

    @property
    def is_faint(self) -> bool:
        return self.is_extreme or self.of.is_empty


def format_layers(
    layers: Sequence[LayerMetrics],
    *,
    sort: str | None = None,
    top: int | None = None,
    width: int | None = 80,
) -> str:
    """Return the probed layers as a plain table, one per line, never wider than `width`.

    Rank is n'/n, the mean over a convolution's two unfoldings; a star marks a q that an unfolding
    of rank 1 inflates. A full bar stands for the largest s in the table. Experts of one role and
    shape are one row with the median of each metric, then their minima and maxima.

    Example:
        >>> import torch, rankwise
        >>> weight = torch.outer(torch.ones(8), torch.ones(9)) + torch.eye(8, 9)
        >>> print(format_layers(rankwise.probe({"fc.weight": weight}).layers, width=None))
        layer      shape  rank      s      κ       q  noise
        fc.weight    8×9   1/8  0.125  0.000  1.571*    12%
    """
    return join_cells(align_layers(layers, sort=sort, top=top, width=width))


def align_layers(
    layers: Sequence[LayerMetrics],
    *,
    sort: str | None = None,
    top: int | None = None,
    width: int | None = 80,
    every: bool = False,
) -> list[Line]:
    """Return the lines of `format_layers` as cells with their styles.

    Args:
        layers: The layers.
        sort: As in `LAYER_SORT_KEYS`; groups of experts by their medians.
        top: How many layers and groups to show; a table with a width has 1,000 by default.
        width: The width of the terminal; None where nothing limits it.
        every: Whether every expert has a row of its own, and all are shown.
    """
    probed = [layer for layer in layers if layer.is_probed]
    items: list[Item] = [*probed] if every else group_layers(probed)
    is_limited = top is None and width is not None and not every
    shown = _sort_items(items, sort, MOST_ROWS if is_limited else top)
    if not shown:
        return []
    rows = [row for item in shown for row in _list_table_rows(item)]
    table = _make_layer_table(rows, find_bar_scale(probed, "stable_rank"))
    if width is None:
        table = table.select(i for i, column in enumerate(table.columns) if column.title)
    hidden = count_hidden(len(items) - len(shown), "--all or top shows more" if is_limited else "")
    return [*align_cells(table, width), *hidden]


def _sort_items(items: Sequence[Item], sort: str | None, top: int | None) -> list[Item]:
    def apply(
        key: Callable[[LayerMetrics], float | str | None],
    ) -> Callable[[Item], float | str | None]:
        return lambda item: key(get_row(item))

    keys = {name: apply(key) for name, key in LAYER_SORT_KEYS.items()}
    return sort_rows(items, keys, sort, top)


def name_item(item: Item) -> str:
    """Return the name of a layer, or that of a group and how many members it has."""
    name = format_name(item.name)
    return f"{name} ×{len(item.members)}" if isinstance(item, LayerGroup) else name


def _list_table_rows(item: Item) -> list[_TableRow]:
    head = _TableRow(name_item(item), get_row(item))
    if not isinstance(item, LayerGroup) or _TABLE_METRICS(item.low) == _TABLE_METRICS(item.high):
        return [head]
    return [head, _TableRow("  min", item.low, True), _TableRow("  max", item.high, True)]


def _make_layer_table(rows: Sequence[_TableRow], s_scale: float) -> Table:
    def column(
        title: str, priority: int, text: Callable[[_TableRow], str], style: Style = ""
    ) -> tuple[Column, list[Cell]]:
        cells = [Cell(text(row), "dim" if row.is_faint else style) for row in rows]
        return Column(title, "left" if style else "right", priority), cells

    def draw_share(row: _TableRow) -> str:
        share = 0.0 if row.is_extreme else (row.of.stable_rank or 0.0) / s_scale
        return draw_bar(share, _BAR_WIDTH)

    def format_quality(row: _TableRow) -> str:
        star = row.of.has_inflated_quality and not row.is_extreme
        return format_metric(row.of.quality) + "*" * star

    columns = [
        column("layer", 9, lambda row: row.name, "name"),
        column("shape", 1, lambda row: "" if row.is_extreme else format_shape(row.of.shape)),
        column("rank", 5, lambda row: format_ranks(row.of)),
        column("s", 7, lambda row: format_metric(row.of.stable_rank)),
        column("", 2, draw_share, "bar s"),
        column("κ", 6, lambda row: format_metric(row.of.condition)),
        column("q", 8, format_quality),
        column("noise", 4, lambda row: format_percent(row.of.noise_fraction).replace(" ", "")),
    ]
    return Table.from_columns(columns)


def find_bar_scale(layers: Sequence[LayerMetrics], metric: str) -> float:
    """Return what a full bar stands for: the largest value of layers without inflated quality.

    Trained layers have s and q of a few hundredths; with bars up to 1 and π/2 none would be seen.
    """
    values = (getattr(layer, metric) or 0.0 for layer in layers if not layer.has_inflated_quality)
    return max(values, default=0.0) or 1.0


def check_sort(keys: Mapping[str, object], sort: str | None, top: int | None) -> None:
    """Check the options of a table before the work behind it is done."""
    if sort is not None and sort.removeprefix("-") not in keys:
        hint = suggest_names(sort.removeprefix("-"), keys)
        raise ArgumentError(
            f"Expected sort to be one of {', '.join(sorted(keys))}, or one with - in front, got "
            f"{sort!r}.{hint}"
        )
    if top is not None and top < 1:
        raise ArgumentError(f"Expected top of 1 or more, got {top}.")


def sort_rows(
    rows: Sequence[Row],
    keys: Mapping[str, Callable[[Row], float | str | None]],
    sort: str | None,
    top: int | None,
) -> list[Row]:
    """Return the first `top` rows, sorted by one of `keys`; those without a value come last."""
    check_sort(keys, sort, top)
    if sort is None:
        return list(rows[:top])
    key = keys[sort.removeprefix("-")]
    pairs = [(key(row), row) for row in rows]
    known = [(value, row) for value, row in pairs if value is not None]
    known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    unknown = [row for value, row in pairs if value is None]
    return [*(row for _, row in known), *unknown][:top]


def count_hidden(hidden: int, advice: str = "") -> list[Line]:
    """Return the line that says how many rows a table leaves out, and how to see them."""
    how = f" ({advice})" if advice else ""
    return [(Cell(f"… {format_count(hidden, 'more layer')}{how}", "dim"),)] if hidden else []


def format_shape(sides: Sequence[int]) -> str:
    """Return a shape as in 64×3×7×7."""
    return "×".join(map(str, sides)) or "scalar"


def format_ranks(layer: LayerMetrics) -> str:
    """Return n'/n."""
    if layer.rank is None or not layer.modes:
        return format_metric(layer.rank)
    return f"{layer.rank:g}/{sum(mode.rows for mode in layer.modes) / len(layer.modes):g}"


def format_metric(value: float | None) -> str:
    """Return a metric with three decimals."""
    return "–" if value is None else f"{value:.3f}"


def format_total_rank(total: float | None) -> str:
    """Return Σ n'; it ends in .5 where a convolution's two unfoldings differ by an odd number.

    Example:
        >>> format_total_rank(12345.5), format_total_rank(7.0)
        ('12,345.5', '7')
    """
    return "–" if total is None else f"{total:,.1f}".removesuffix(".0")


def format_skipped(layers: Sequence[LayerMetrics], *, width: int | None = 80) -> str:
    """List what was not probed and why, a line for each status; the counts add up to all tensors.

    Example:
        >>> import rankwise, torch
        >>> print(format_skipped(rankwise.probe({"fc.bias": torch.ones(8)}).layers))
        0 of 1 tensor probed; not probed:
          1 vector (bias or norm scale): fc.bias
    """
    groups: dict[Status, list[LayerMetrics]] = {}
    for layer in layers:
        groups.setdefault(layer.status, []).append(layer)
    probed = len(groups.pop(Status.PROBED, []))
    if not groups:
        only = "The only tensor was probed." if probed else ""
        return f"All {probed} tensors were probed." if probed > 1 else only
    head = f"{probed} of {format_count(len(layers), 'tensor')} probed; not probed:"
    lines = [wrap(_describe_group(s, group), width, "      ") for s, group in groups.items()]
    return "\n".join([wrap(head, width), *lines])


def _describe_group(status: Status, group: Sequence[LayerMetrics]) -> str:
    label = _LABELS.get(status, (status.value, status.value))[len(group) != 1]
    reasons = {clean_reason(layer) for layer in group}
    if status in _SELF_EXPLAINING or reasons == {""}:
        listed = list_names(group)
    elif len(reasons) == 1 and len(group) > 1:
        listed = f"{list_names(group)} ({reasons.pop()})"
    else:
        listed = list_names(group, with_reasons=True)
    return f"  {len(group)} {label}: {listed}"


def list_notes(notes: Sequence[str], order: Order) -> list[str]:
    """Return the notes of a probe, and one on the order of its layers where that is not known.

    Example:
        >>> list_notes(("weights taken from 'model'",), "network")
        ["Note: weights taken from 'model'"]
    """
    by_name = (BY_NAME,) if order == "name" else ()
    return [f"Note: {_cut(note)}" for note in (*notes, *by_name)]


def clean_reason(layer: Named) -> str:
    """Return the reason of a row's status, safe to print within a sentence."""
    return _cut(layer.reason).rstrip(".")


def _cut(text: str) -> str:
    """Return a sentence that may quote names from a file, safe and no longer than a paragraph."""
    return shorten(sanitize(text), _LONGEST_SENTENCE)


def list_names(layers: Sequence[Named], *, with_reasons: bool = False) -> str:
    """Return the first few names, and how many more there are."""
    texts = [
        format_name(layer.name)
        + (f" ({clean_reason(layer)})" if with_reasons and layer.reason else "")
        for layer in layers[:_MAX_NAMES]
    ]
    hidden = len(layers) - _MAX_NAMES
    return ", ".join(texts) + (f" and {hidden} more" if hidden > 0 else "")
