"""What changed in a network, in plain text: sentences for the whole, a table, and what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from rankwise._table import Cell, Column, Table, align_cells
from rankwise._text import format_bytes, format_change, format_count, format_name, format_percent
from rankwise.adapters.deltas.change_records import ChangeStatus, NetworkChange, TensorChange
from rankwise.probes.diff_text import describe_prefix, make_change_cell
from rankwise.probes.groups import find_groups
from rankwise.probes.text import (
    MOST_ROWS,
    Line,
    count_hidden,
    format_shape,
    list_names,
    list_notes,
    sort_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankwise.charts.weight_changes import WeightChangeRow
    from rankwise.probes.diff import LayerChange, ProbeDiff


# What tensors with a status are, after their number.
_TEXTS: Mapping[ChangeStatus, str] = {
    ChangeStatus.UNCHANGED: "the same",
    ChangeStatus.ROUNDING: "the same but for the rounding to another type",
    ChangeStatus.NEW: "only in the tuned network",
    ChangeStatus.MISSING: "only in the base",
    ChangeStatus.RESHAPED: "of another shape, so not compared",
    ChangeStatus.TIED: "tied to others, so counted once",
    ChangeStatus.NOT_COMPARABLE: "not comparable",
}
_WITH_REASONS = {ChangeStatus.RESHAPED, ChangeStatus.NOT_COMPARABLE, ChangeStatus.ROUNDING}


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A matrix that was compared, or a group of experts: a row of tables and charts.

    Attributes:
        name: The matrix's, or the group's with the number of its members.
        change: ‖ΔW‖/‖W‖; of a group for all members together, as the next two.
        low_rank_share: The share of ‖ΔW‖² in the low-rank part.
        adapter_parameters: Of a LoRA.
        rank: n' of ΔW; of a group the median.
        parameters: Of the matrix, or of all members.
        shape: As it is stored.
        is_changed: Whether it, or any member, changed by more than rounding.
        metrics: How its own metrics changed, where known; None for a group.
    """

    name: str
    change: float | None
    low_rank_share: float
    adapter_parameters: int
    rank: float
    parameters: int
    shape: tuple[int, ...]
    is_changed: bool
    metrics: LayerChange | None = None

    @property
    def stable_rank(self) -> float | None:
        """The change of s."""
        return None if self.metrics is None else self.metrics.stable_rank

    def make_chart_row(self, number: int) -> WeightChangeRow:
        """Return the row of a chart, with the layer's number."""
        return {
            "layer": format_name(self.name),
            "depth": number,
            "shape": format_shape(self.shape),
            "change": self.change,
            "change_rank": self.rank,
            "low_rank_share": self.low_rank_share if self.is_changed else None,
            "adapter_parameters": self.adapter_parameters,
        }


ROW_SORT_KEYS: Mapping[str, Callable[[ChangeRow], float | str | None]] = {
    "change": lambda row: row.change,
    "rank": lambda row: row.rank,
    "low_rank": lambda row: row.low_rank_share,
    "stable_rank": lambda row: row.stable_rank,
    "condition": lambda row: None if row.metrics is None else row.metrics.condition,
    "quality": lambda row: None if row.metrics is None else row.metrics.quality,
    "name": lambda row: row.name,
}


def make_rows(change: NetworkChange, metrics: ProbeDiff | None = None) -> list[ChangeRow]:
    """Return a row for each matrix that was compared, with each group of experts as one.

    Example:
        >>> import torch
        >>> from rankwise.adapters import measure_changes
        >>> change = measure_changes({"a": torch.zeros(4, 6)}, {"a": torch.ones(4, 6)})
        >>> [(row.name, row.rank, row.change) for row in make_rows(change)]
        [('a', 1, None)]
    """
    known = {one.name: one for one in metrics.changes} if metrics is not None else {}
    matrices = [x for x in change.tensors if x.form == "matrix" and x.norm is not None]
    rows = {i: _make_row(x.name, [x], known.get(x.name)) for i, x in enumerate(matrices)}
    for name, places in find_groups(matrices):
        first, *others = places
        for place in others:
            del rows[place]
        rows[first] = _make_row(f"{name} ×{len(places)}", [matrices[place] for place in places])
    return list(rows.values())


def _make_row(
    name: str, members: Sequence[TensorChange], metrics: LayerChange | None = None
) -> ChangeRow:
    whole = NetworkChange("", "", tuple(members))
    return ChangeRow(
        name,
        whole.relative,
        whole.low_rank_share or 0.0,
        whole.adapter_parameters,
        median(member.rank or 0 for member in members),
        sum(member.parameters for member in members),
        members[0].shape,
        bool(whole.changed),
        metrics,
    )


def align_rows(
    rows: Sequence[ChangeRow],
    *,
    sort: str | None = None,
    top: int | None = None,
    width: int | None = 80,
) -> list[Line]:
    """Return the table of the matrices that changed, as lines of cells with their styles."""
    rows = [row for row in rows if row.is_changed]
    is_limited = top is None and width is not None
    shown = sort_rows(rows, ROW_SORT_KEYS, sort, MOST_ROWS if is_limited else top)
    if not shown:
        return []
    columns = [
        (Column("layer", "left"), [Cell(format_name(row.name), "name") for row in shown]),
        (Column("change", priority=8), [Cell(format_change(row.change)) for row in shown]),
        (Column("rank", priority=7), [Cell(f"{row.rank:g}") for row in shown]),
        (
            Column("low-rank", priority=6),
            [Cell(format_percent(row.low_rank_share)) for row in shown],
        ),
        (Column("LoRA", priority=3), [Cell(f"{row.adapter_parameters:,}") for row in shown]),
    ]
    if any(row.metrics is not None for row in shown):
        cells = [make_change_cell(row.stable_rank) for row in shown]
        columns.append((Column("Δs", priority=2), cells))
    hidden = count_hidden(len(rows) - len(shown), "top shows more" if is_limited else "")
    return [*align_cells(Table.from_columns(columns), width), *hidden]


def describe_change(change: NetworkChange) -> list[str]:
    """Return the results in sentences: what changed, and how much of that is of low rank.

    Example:
        >>> import torch
        >>> from rankwise.adapters import measure_changes
        >>> weights = {"fc.weight": torch.eye(40)}
        >>> describe_change(measure_changes(weights, {"fc.weight": torch.eye(40) + 1}))[0]
        '1 of 1 tensor changed, the weights by 632 % of their norm.'
    """
    sentences = []
    if broken := change.select(ChangeStatus.NOT_FINITE):
        verb = "holds" if len(broken) == 1 else "hold"
        count, names = format_count(len(broken), "tensor"), list_names(broken, with_reasons=True)
        sentences.append(f"Warning: {count} {verb} NaN or infinity: {names}.")
    compared = [tensor for tensor in change.tensors if tensor.norm is not None]
    count = format_count(len(compared), "tensor")
    if not compared:
        return [*sentences, "No tensor could be compared."]
    if not change.changed:
        rounded = change.select(ChangeStatus.ROUNDING)
        how = " but for rounding" if rounded else ""
        verb = "is" if len(compared) == 1 else "are"
        return [*sentences, f"Nothing changed: {count} {verb} the same{how}."]
    by = f", the weights by {format_change(change.relative)} of their norm"
    measured = by if change.matrices and change.relative is not None else ""
    sentences.append(f"{len(change.changed)} of {count} changed{measured}.")
    return [*sentences, _describe_adapter(change)] if change.matrices else sentences


def _describe_adapter(change: NetworkChange) -> str:
    if not change.total_rank:
        return (
            "No direction of the change stands out from noise, so no LoRA of low rank holds it: it "
            f"takes all {change.full_parameters:,} parameters of the layers that changed."
        )
    size = f"{change.adapter_parameters:,} parameters ({format_bytes(change.adapter_bytes)})"
    ratio = change.adapter_parameters / change.full_parameters
    full = f"the {change.full_parameters:,} of the layers that changed"
    share = f"{format_percent(ratio)} of {full}" if ratio < 1 else f"no fewer than {full}"
    return (
        f"{format_percent(change.low_rank_share)} of this change, as ‖ΔW‖², is of low rank: a LoRA "
        f"with the rank of each layer has {size}, {share}."
    )


def describe_others(change: NetworkChange) -> list[str]:
    """Return sentences about all tensors that are in no row of the table, and notes.

    Example:
        >>> import torch
        >>> from rankwise.adapters import measure_changes
        >>> old, new = {"a": torch.ones(4), "b": torch.ones(4)}, {"b": torch.zeros(4, 1)}
        >>> describe_others(measure_changes(old, new))[0]
        '1 tensor is only in the base: a.'
    """
    sentences = []
    if vectors := [tensor for tensor in change.changed if tensor.form != "matrix"]:
        sentences.append(_describe_vectors(vectors))
    for status, text in _TEXTS.items():
        tensors = change.select(status)
        if tensors and (change.changed or status is not ChangeStatus.UNCHANGED):
            verb = "is" if len(tensors) == 1 else "are"
            names = list_names(tensors, with_reasons=status in _WITH_REASONS)
            count = format_count(len(tensors), "tensor")
            sentences.append(f"{count} {verb} {text}: {names}.")
    if quantised := [tensor for tensor in change.matrices if tensor.reason]:
        sentences.append(
            f"Note: the change of {list_names(quantised)} holds the rounding errors of "
            "quantisation, which can hide its rank."
        )
    if change.renamed_prefix:
        sentences.append(describe_prefix(change.renamed_prefix))
    return [*sentences, *list_notes(change.notes, "network")]


def _describe_vectors(vectors: Sequence[TensorChange]) -> str:
    """Describe changed tensors without a rank: how many, how large, and which changed most."""
    numbers = sum(tensor.parameters for tensor in vectors)
    most = max(vectors, key=lambda tensor: tensor.relative or 0.0)
    listed = list_names(vectors)
    if len(vectors) > 1 and most.relative is not None:
        listed = f"most {format_name(most.name)}, by {format_change(most.relative)}"
    verb = "has" if len(vectors) == 1 else "have"
    return (
        f"{format_count(len(vectors), 'tensor')} that changed {verb} no rank, such as biases, norm "
        f"scales and statistics ({numbers:,} {'number' if numbers == 1 else 'numbers'}): {listed}."
    )
