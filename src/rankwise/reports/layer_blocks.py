"""The layers of a table by block: which rows collapse together, and the line above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from rankwise._text import format_count, format_name, format_percent
from rankwise.charts.blocks import LINE, find_block_number, name_block
from rankwise.charts.layers import SEVERITIES
from rankwise.numerics.randomness import Verdict
from rankwise.probes.chart_rows import find_worst
from rankwise.probes.groups import Item, LayerGroup, get_row
from rankwise.probes.text import format_metric
from rankwise.reports.page import NO_VALUE, Cell, RowGroup, format_number_cell

FEWEST = 3  # layers in no block that collapse; fewer stay visible


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a table that collapse together."""

    title: str  # "" for rows that stay visible
    numbers: tuple[int, ...]  # of the layers, from 1


def group_by_block(items: Sequence[Item]) -> list[Block]:
    """Return the blocks of a network; where its names show none, layers by the fifty.

    Every layer is in one of them. Layers in no block stay where they are between the blocks.
    """
    members = {one.name for item in items if isinstance(item, LayerGroup) for one in item.members}
    which = find_block_number([item.name for item in items if item.name not in members])
    if which is None:
        starts = range(1, len(items) + 1, LINE)
        return [_make_range(start, min(start + LINE - 1, len(items))) for start in starts]
    blocks: dict[tuple[str, int], list[int]] = {}
    # A block that the order of a file interrupts is still one; what is between two blocks is not.
    runs = groupby(enumerate(items, 1), key=lambda pair: name_block(pair[1].name, which))
    for place, (name, run) in enumerate(runs):
        numbers = [number for number, _ in run]
        blocks.setdefault((name, 0 if name else place), []).extend(numbers)
    return [
        Block(name or ("in no block" if len(numbers) >= FEWEST else ""), tuple(numbers))
        for (name, _), numbers in blocks.items()
    ]


def make_line(
    block: Block, items: Sequence[Item], severities: Mapping[str, str], most: float
) -> RowGroup:
    """Return the line of a block in a table of layers: medians, and the sum of parameters.

    Args:
        block: The block.
        items: All layers of the table.
        severities: The worst severity of what a check found, by the layer's name.
        most: The stable rank of the longest bar.
    """
    if not block.title:
        return RowGroup(len(block.numbers))
    inner = [items[number - 1] for number in block.numbers]
    rows = [get_row(item) for item in inner]
    found = [find_worst(item, severities) for item in inner]
    marks = [f"{sign} {found.count(kind)}" for kind, sign in SEVERITIES.items() if kind in found]
    differing = sum(row.verdict is Verdict.DIFFERS for row in rows)
    s, share, noise, prominence, condition, quality = (
        _find_median([getattr(row, metric) for row in rows])
        for metric in (
            *("stable_rank", "rank_fraction", "noise_fraction", "prominence"),
            *("condition", "quality"),
        )
    )
    first, last = min(block.numbers), max(block.numbers)
    return RowGroup(
        len(rows),
        (
            Cell(str(first) if first == last else f"{first}–{last}", "dim"),
            Cell(" ".join([format_name(block.title), *marks])),
            NO_VALUE if s is None else Cell(format_metric(s), "", s, min(s / most, 1.0)),
            Cell(format_count(len(rows), "layer")),
            NO_VALUE if share is None else Cell(format_percent(share), "", share, share),
            NO_VALUE if noise is None else Cell(format_percent(noise), "", noise, noise),
            format_number_cell(prominence, ".2f"),
            Cell(f"{differing} of {len(rows)} differ", wraps=True),
            Cell(format_metric(condition)),
            Cell(format_metric(quality)),
            Cell(""),
            Cell(""),
            Cell(f"{sum(row.parameters for row in rows):,}"),
        ),
    )


def _find_median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _make_range(first: int, last: int) -> Block:
    return Block(f"layers {first} to {last}", tuple(range(first, last + 1)))
