"""A diff in plain text: the table of the layers that changed, and a summary."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rankwise._table import Cell, Column, Table, align_cells
from rankwise._text import format_count, format_name, quote, wrap
from rankwise.probes.groups import find_groups, make_group
from rankwise.probes.text import (
    MOST_ROWS,
    Line,
    clean_reason,
    count_hidden,
    format_metric,
    format_shape,
    list_names,
    sort_rows,
)
from rankwise.weights.tensor import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rankwise.probes.diff import LayerChange, ProbeDiff
    from rankwise.probes.layer_metrics import LayerMetrics

_MAX_SENTENCES = 10  # of one kind

CHANGE_SORT_KEYS: Mapping[str, Callable[[LayerChange], float | str | None]] = {
    "quality": lambda change: change.quality,
    "stable_rank": lambda change: change.stable_rank,
    "condition": lambda change: change.condition,
    "rank": lambda change: change.rank,
    "name": lambda change: change.name,
}


def align_changes(
    diff: ProbeDiff, *, sort: str | None = None, top: int | None = None, width: int | None = 80
) -> list[Line]:
    """Return the table of the layers that changed, as lines of cells with their styles.

    Experts of one role and shape that changed are one row with their medians.
    """
    changed = group_changes([change for change in diff.changes if _has_changed(change)])
    is_limited = top is None and width is not None
    rows = sort_rows(changed, CHANGE_SORT_KEYS, sort, MOST_ROWS if is_limited else top)
    if not rows:
        return []
    table = Table.from_columns(
        [
            (Column("layer", "left", 9), [Cell(format_name(c.name), "name") for c in rows]),
            (Column("rank", priority=5), [_format_rank_change(c) for c in rows]),
            (Column("s", priority=3), [format_metric(c.after.stable_rank) for c in rows]),
            (Column("Δs", priority=8), [make_change_cell(c.stable_rank) for c in rows]),
            (Column("Δκ", priority=7), [make_change_cell(c.condition) for c in rows]),
            (Column("Δq", priority=6), [make_change_cell(c.quality) for c in rows]),
        ]
    )
    hidden = count_hidden(len(changed) - len(rows), "top shows more" if is_limited else "")
    return [*align_cells(table, width), *hidden]


def group_changes(changes: Sequence[LayerChange]) -> list[LayerChange]:
    """Return the changes with each group of experts as one: its medians before and after.

    Example:
        >>> import torch, rankwise
        >>> weights = {f"experts.{i}.w1.weight": torch.randn(8, 16) for i in range(8)}
        >>> before, after = rankwise.probe(weights), rankwise.probe(weights)
        >>> [change.name for change in group_changes(before.diff(after).changes)]
        ['experts.*.w1.weight ×8']
    """
    items = dict(enumerate(changes))
    places = [i for i, c in items.items() if c.is_comparable and not c.is_reshaped]
    for name, chosen in find_groups([changes[place].after for place in places]):
        first, *others = (places[i] for i in chosen)
        members = [items[first], *(items.pop(place) for place in others)]
        counted = f"{name} ×{len(members)}"
        items[first] = replace(
            members[0],
            name=counted,
            before=make_group(counted, [change.before for change in members]).median,
            after=make_group(counted, [change.after for change in members]).median,
        )
    return list(items.values())


def make_change_cell(value: float | None) -> Cell:
    """Return a change with its sign, styled by its direction: neither is better."""
    if value is None:
        return Cell("–", "dim")
    if value == 0:
        return Cell("0", "dim")
    return Cell(f"{value:+.4f}", "up" if value > 0 else "down")


def _has_changed(change: LayerChange) -> bool:
    """Return whether a layer belongs in the table: it changed, or one side has no metrics."""
    if change.is_comparable:
        moves = (change.rank, change.stable_rank, change.condition, change.quality)
        return change.is_reshaped or any(moves)
    return change.before.is_probed or change.after.is_probed


def _format_rank_change(change: LayerChange) -> str:
    ranks = (change.before.rank, change.after.rank)
    return " → ".join("–" if rank is None else f"{rank:g}" for rank in ranks)


def format_changes(diff: ProbeDiff, *, width: int | None = 80) -> str:
    """Summarise a diff: how many layers changed; which broke, were reshaped, added or removed."""
    sentences = _list_status_changes(diff.changes)
    if diff.renamed_prefix:
        sentences.append(describe_prefix(diff.renamed_prefix))
    sentences.append(count_moves(diff.changes))
    sentences += _cut_sentences(
        f"{format_name(c.name)}: {format_shape(c.before.shape)} → {format_shape(c.after.shape)} "
        "(another shape)."
        for c in diff.changes
        if c.is_reshaped
    )
    for layers, side in ((diff.added, "second"), (diff.removed, "first")):
        if layers:
            count = format_count(len(layers), "tensor")
            sentences.append(f"{count} only in the {side}: {list_names(layers)}.")
    return "\n".join(wrap(sentence, width) for sentence in sentences)


def describe_prefix(prefix: str) -> str:
    """Return what `ProbeDiff.renamed_prefix` means, in a sentence.

    Example:
        >>> describe_prefix("+model.")
        "Names were matched across a prefix: the second's gained 'model.'."
    """
    verb = "gained" if prefix.startswith("+") else "lost"
    return f"Names were matched across a prefix: the second's {verb} {quote(prefix[1:])}."


def _list_status_changes(changes: Sequence[LayerChange]) -> list[str]:
    changed = [c for c in changes if c.before.status is not c.after.status]
    changed.sort(key=lambda c: c.after.status is not Status.NOT_FINITE)
    return _cut_sentences(
        f"{'Warning: ' * (c.after.status is Status.NOT_FINITE)}{format_name(c.name)} was "
        f"{c.before.status} and is {c.after.status}{_explain_status(c.after)}."
        for c in changed
    )


def _explain_status(layer: LayerMetrics) -> str:
    reason = clean_reason(layer)
    return f" ({reason})" if reason and not layer.is_probed else ""


def _cut_sentences(sentences: Iterable[str]) -> list[str]:
    """Return the first few of many similar sentences, and how many more there are."""
    listed = list(sentences)
    hidden = len(listed) - _MAX_SENTENCES
    if hidden <= 0:
        return listed
    return [*listed[:_MAX_SENTENCES], f"… and {format_count(hidden, 'layer')} more like it."]


def count_moves(changes: Sequence[LayerChange]) -> str:
    """Return in how many layers s rose and fell."""
    compared = [change for change in changes if change.is_comparable]
    if not compared:
        return "No layer was probed on both sides."
    up = sum((change.stable_rank or 0.0) > 0 for change in compared)
    down = sum((change.stable_rank or 0.0) < 0 for change in compared)
    if not any(map(_has_changed, compared)):
        verb = "is" if len(compared) == 1 else "are"
        return f"No layer changed: the {len(compared)} that both have {verb} the same."
    same = len(compared) - up - down
    return f"Stable rank s: up in {format_count(up, 'layer')}, down in {down}, the same in {same}."
