"""The change of the weights from a base to a tuned network → a section of the page of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rankwise._text import format_bytes, format_change, format_name, format_percent
from rankwise.adapters.deltas.change_records import ChangeStatus
from rankwise.adapters.deltas.change_text import describe_others, make_rows
from rankwise.charts.axes import METRICS
from rankwise.charts.weight_changes import draw_weight_changes
from rankwise.probes.text import clean_reason, format_shape
from rankwise.reports.layer_table import MOST_LAYERS, make_layer_cell
from rankwise.reports.page import (
    NO_VALUE,
    Cell,
    ChartPanel,
    Fact,
    Section,
    Table,
    Text,
    capitalize,
    format_number_cell,
    make_columns,
)

if TYPE_CHECKING:
    from rankwise.adapters.deltas.change_records import NetworkChange
    from rankwise.adapters.deltas.change_text import ChangeRow

CAPTIONS = {
    "change": "How far each weight moved, as a share of its norm: ‖ΔW‖/‖W‖.",
    "change_rank": "How many directions of ΔW stand out from noise: n' of EVBMF.",
    "low_rank_share": "How much of ‖ΔW‖² a LoRA of that rank holds; the rest looks like noise.",
}
HINTS = {
    "#": "The number of the layer in all charts.",
    "change": CAPTIONS["change"],
    "rank": CAPTIONS["change_rank"],
    "low-rank": CAPTIONS["low_rank_share"],
    "LoRA": "The parameters of a LoRA of that rank: n'·(out + in).",
    "of full": "These as a share of the layer's own parameters.",
}
_LISTED = (
    *(ChangeStatus.NOT_FINITE, ChangeStatus.RESHAPED, ChangeStatus.NOT_COMPARABLE),
    ChangeStatus.ROUNDING,
)


def list_change_facts(change: NetworkChange) -> Iterator[Fact]:
    """Yield a tile for each figure of the whole change."""
    compared = sum(tensor.norm is not None for tensor in change.tensors)
    yield Fact("Tensors that changed", f"{len(change.changed)} of {compared}", "more than rounding")
    if not change.matrices:
        return
    yield Fact("Change ‖ΔW‖/‖W‖", format_change(change.relative), "of all matrices")
    yield Fact("Low-rank share", format_percent(change.low_rank_share), "of ‖ΔW‖²")
    share = change.adapter_parameters / change.full_parameters
    yield Fact(
        "LoRA of these ranks",
        format_bytes(change.adapter_bytes),
        f"{change.adapter_parameters:,} parameters, {format_percent(share)} of the layers'",
    )


def make_change_sections(
    change: NetworkChange, layers: Sequence[str], order: str
) -> Iterator[Section]:
    """Yield charts and a table of the layers of a page, and what could not be compared.

    Args:
        change: What was measured.
        layers: The layers that the page numbers, from 1.
        order: How they are ordered, as the end of a title.
    """
    by_name = {row.name: row for row in make_rows(change)}
    numbered = [(number, by_name[n]) for number, n in enumerate(layers, 1) if n in by_name]
    text = Text(tuple(describe_others(change)))
    if not any(row.is_changed for _, row in numbered):
        yield Section("The change of the weights", (text,))
    else:
        rows = [row.make_chart_row(number) for number, row in numbered]
        panels = [
            ChartPanel(
                capitalize(METRICS[metric][0]),
                draw_weight_changes(rows, metric),
                caption,
                wide=metric == "change",
            )
            for metric, caption in CAPTIONS.items()
        ]
        table = _make_table(numbered, order)
        yield Section("The change of the weights", (text, *panels, table))
    if listed := change.select(*_LISTED)[:MOST_LAYERS]:
        caption = "Tensors that were not compared, or are the same but for rounding."
        cells = tuple(
            (
                Cell(format_name(x.name)),
                Cell(format_shape(x.shape), value=float(x.parameters)),
                Cell(x.status.value, "bad" if x.status is ChangeStatus.NOT_FINITE else ""),
                Cell(clean_reason(x), wraps=True),
            )
            for x in listed
        )
        columns = make_columns(("tensor", "shape", "status", "why"), left=("status", "why"))
        yield Section("Not compared", (Table(columns, cells, caption, len(cells) > 20),))


def _make_table(numbered: Sequence[tuple[int, ChangeRow]], order: str) -> Table:
    titles = ("#", "layer", "change", "rank", "low-rank", "LoRA", "of full", "shape")
    most = max((row.change or 0.0 for _, row in numbered), default=0.0) or 1.0
    return Table(
        make_columns(titles, name_column=1),
        tuple(_make_row(number, row, most) for number, row in numbered),
        f"The change of each weight, {order}; click a name to select the layer.",
        has_filter=True,
        name_column=1,
        hints=HINTS,
        name="weight-changes",
    )


def _make_row(number: int, row: ChangeRow, most: float) -> tuple[Cell, ...]:
    head = (Cell(str(number), "dim", float(number)), make_layer_cell(row.name))
    shape = Cell(format_shape(row.shape), value=float(row.parameters))
    change = NO_VALUE
    if row.change is not None:
        change = Cell(format_change(row.change), value=row.change, share=min(row.change / most, 1))
    if not row.is_changed:
        return (*head, change, NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE, shape)
    share = row.adapter_parameters / row.parameters
    low = row.low_rank_share
    return (
        *head,
        change,
        format_number_cell(row.rank, "g"),
        Cell(format_percent(low), value=low, share=low),
        format_number_cell(row.adapter_parameters, ","),
        Cell(format_percent(share), value=share),
        shape,
    )
