"""The words and tables of a diff."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rankwise._table import Cell, Column, Table, align_cells
from rankwise._text import format_count, quote, sanitize, wrap
from rankwise.probes.show.summary import names
from rankwise.probes.show.table import check_view, more, number, ordered, shape
from rankwise.probes.tensor import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rankwise.probes.changes import Changes, LayerChange

__all__ = ["DIFF_SORTS", "change_lines", "format_verdict", "html_rows"]

MOST = 10  # sentences of one kind

DIFF_SORTS: Mapping[str, Callable[[LayerChange], float | str | None]] = {
    "quality": lambda change: change.quality,
    "stable_rank": lambda change: change.stable_rank,
    "condition": lambda change: change.condition,
    "rank": lambda change: change.rank,
    "name": lambda change: change.name,
}


def change_lines(
    diff: Changes, *, sort: str | None = None, top: int | None = None, width: int | None = 80
) -> list[tuple[Cell, ...]]:
    """The table of the layers that changed, as lines of cells with their styles.

    Raises:
        ArgumentError: If `sort` or `top` can't be met.
    """
    check_view(DIFF_SORTS, sort, top)
    changed = [change for change in diff.changes if _shown(change)]
    shown = ordered(changed, DIFF_SORTS, sort, top)
    if not shown:
        return []
    table = Table.from_columns(
        [
            (Column("layer", "left", 9), [Cell(sanitize(c.name), "name") for c in shown]),
            (Column("rank", priority=5), [_ranks(c) for c in shown]),
            (Column("Δs", priority=7), [signed(c.stable_rank) for c in shown]),
            (Column("Δκ", priority=6), [signed(c.condition, better=-1) for c in shown]),
            (Column("Δq", priority=8), [signed(c.quality) for c in shown]),
            (Column("q", priority=3), [number(c.after.quality) for c in shown]),
        ]
    )
    return [*align_cells(table, width), *more(len(changed) - len(shown), "layer")]


def format_verdict(diff: Changes, *, width: int | None = 80) -> str:
    """What changed in words: how many layers, which broke, changed shape, came or went."""
    sentences = [*_broken(diff.changes), *_prefix(diff.renamed_prefix), _moved(diff.changes)]
    sentences += _some(
        f"{sanitize(c.name)}: {shape(c.before.shape)} → {shape(c.after.shape)} (another shape)."
        for c in diff.changes
        if c.reshaped
    )
    for layers, what in ((diff.added, "only in the second"), (diff.removed, "only in the first")):
        if layers:
            sentences.append(f"{format_count(len(layers), 'tensor')} {what}: {names(layers)}.")
    return "\n".join(wrap(sentence, width) for sentence in sentences)


def html_rows(diff: Changes) -> tuple[list[str], list[str]]:
    """Titles and escaped rows of the table of a diff."""
    titles, *lines = change_lines(diff, width=None) or [()]
    heads = [cell.text.strip() for cell in titles[::2]]
    rows = (
        "".join(f"<td>{escape(cell.text.strip())}</td>" for cell in line[::2]) for line in lines
    )
    return heads, [f"<tr>{row}</tr>" for row in rows]


def signed(value: float | None, better: int = 1) -> Cell:
    """A change with its sign, styled by whether it is for the better."""
    if value is None:
        return Cell("–", "dim")
    if value == 0:
        return Cell("0", "dim")
    return Cell(f"{value:+.4f}", "good" if value * better > 0 else "bad")


def _shown(change: LayerChange) -> bool:
    """Whether a layer belongs in the table: it changed, or one side has no figures for it."""
    if change.compared:
        moves = (change.rank, change.stable_rank, change.condition, change.quality)
        return change.reshaped or any(moves)
    return change.before.probed or change.after.probed


def _ranks(change: LayerChange) -> str:
    before, after = (
        "–" if r is None else f"{r:g}" for r in (change.before.rank, change.after.rank)
    )
    return f"{before} → {after}"


def _broken(changes: Sequence[LayerChange]) -> list[str]:
    """A sentence for every layer that is probed on one side only, the broken ones first."""
    lost = [c for c in changes if c.before.status is not c.after.status]
    lost.sort(key=lambda c: c.after.status is not Status.NOT_FINITE)
    return _some(
        f"{'Warning: ' * (c.after.status is Status.NOT_FINITE)}{sanitize(c.name)} was "
        f"{c.before.status} and is {c.after.status}{_why(c)}."
        for c in lost
    )


def _some(sentences: Iterable[str]) -> list[str]:
    """The first few of many like sentences, and how many more there are."""
    told = list(sentences)
    hidden = len(told) - MOST
    return (
        told
        if hidden <= 0
        else [*told[:MOST], f"… and {format_count(hidden, 'layer')} more like it."]
    )


def _why(change: LayerChange) -> str:
    reason = sanitize(change.after.reason).rstrip(".")
    return f" ({reason})" if reason and not change.after.probed else ""


def _prefix(prefix: str) -> list[str]:
    if not prefix:
        return []
    verb = "gained" if prefix.startswith("+") else "lost"
    return [f"Names were matched across a prefix: the second's {verb} {quote(prefix[1:])}."]


def _moved(changes: Sequence[LayerChange]) -> str:
    compared = [change for change in changes if change.compared]
    if not compared:
        return "No layer was probed on both sides."
    rose = sum((change.quality or 0.0) > 0 for change in compared)
    fell = sum((change.quality or 0.0) < 0 for change in compared)
    if not any(map(_shown, compared)):
        verb = "is" if len(compared) == 1 else "are"
        return f"No layer changed: the {len(compared)} that both have {verb} the same."
    same = len(compared) - rose - fell
    return f"Quality q rose in {format_count(rose, 'layer')}, fell in {fell} and stayed in {same}."
