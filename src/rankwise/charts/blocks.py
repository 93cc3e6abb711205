"""Layers of blocks that repeat, as in transformers: a column for each block, a row for each role.

A name such as "model.layers.12.self_attn.q_proj.weight" has a stack ("model.layers"), a block's
number in it (12) and a role within the block ("self_attn.q_proj"). Where most names of a network
are of this form, its layers fill a grid. Very many layers of another form fill rows of equal length
in their order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import altair as alt

from rankwise.charts.style import INK, IS_SELECTED, WIDTH

FEWEST_ROLES = 4  # fewer are drawn as bars, which are easier to read
MANY = 100  # layers, of which bars are too many to read: two roles are enough for a grid then
FEWEST_BLOCKS = 3
LINE = 50  # layers in a row where no blocks are known
NARROWEST = 10  # pixels of a column; a narrower window scrolls
LABEL_ROOM = 150  # pixels next to the columns
# On a phone a label keeps its end, which distinguishes roles.
SHORT_ROLE = (
    "windowSize()[0] < 500 && length(datum.label) > 16"
    " ? '…' + slice(datum.label, -15) : datum.label"
)
SIGN: dict[str, Any] = {"fontSize": 11, "aria": False}
# What most names share, also before the number of a group's members, as in "….weight ×128".
_ENDING = re.compile(r"\.weight(?=$| ×[0-9]+$)")
MOSTLY = 0.6  # of the layers that have to be in blocks, and of the grid that has to be filled


class BlockCell(TypedDict):
    """A layer's place in the grid."""

    role: str  # the row's label: the role, or the layer's number where it is in no block
    row: int
    block: str  # the column's label: the block's number
    column: int
    outside: bool  # whether it is in none of the blocks


@dataclass(frozen=True, slots=True)
class _Place:
    stack: str
    number: int
    role: str


def arrange_blocks(names: Sequence[str]) -> list[BlockCell] | None:
    """Return each layer's place in a grid of roles and blocks; None where there is no such grid.

    Layers in no block have a row of their own, above the roles or below as they come in the names.

    Example:
        >>> names = [f"h.{i}.{role}.weight" for i in range(3) for role in ("q", "k", "v", "o")]
        >>> cells = arrange_blocks(["embed.weight", *names])
        >>> cells[0]["role"], cells[0]["outside"], cells[-1]["block"], cells[-1]["role"]
        ('#1', True, '2', 'o')
    """
    which = find_block_number(names)
    if which is None:
        return None
    places = [_split(name, which) for name in names]
    inside = [place for place in places if place is not None]
    blocks = _sort_blocks(inside)
    columns = {block: column for column, block in enumerate(blocks)}
    labels = _label_blocks(blocks)
    first = next(i for i, place in enumerate(places) if place is not None)
    above = [i for i, place in enumerate(places) if place is None and i < first]
    below = [i for i, place in enumerate(places) if place is None and i > first]
    roles = dict.fromkeys(place.role for place in inside)
    rows = {role: len(above) + row for row, role in enumerate(roles)}
    own_rows = {i: row for row, i in enumerate(above)}
    own_rows |= {i: len(above) + len(roles) + row for row, i in enumerate(below)}
    return [
        BlockCell(
            role=f"#{i + 1}", row=own_rows[i], block=labels[blocks[0]], column=0, outside=True
        )
        if place is None
        else BlockCell(
            role=place.role,
            row=rows[place.role],
            block=labels[place.stack, place.number],
            column=columns[place.stack, place.number],
            outside=False,
        )
        for i, place in enumerate(places)
    ]


def arrange_lines(count: int) -> list[BlockCell]:
    """Return places for layers in rows of `LINE`, in their order.

    Example:
        >>> arrange_lines(51)[-1]
        {'role': 'from #51', 'row': 1, 'block': '1', 'column': 0, 'outside': False}
    """
    return [
        BlockCell(
            role=f"from #{number - number % LINE + 1}",
            row=number // LINE,
            block=str(number % LINE + 1),
            column=number % LINE,
            outside=False,
        )
        for number in range(count)
    ]


def find_block_number(names: Sequence[str]) -> int | None:
    """Return which number of a name is its block's, from 0; None where there is no grid.

    Example:
        >>> names = [f"stage.0.block.{i}.{role}.weight" for i in range(3) for role in "qkvo"]
        >>> find_block_number(names)
        1
    """
    options = {which: [_split(name, which) for name in names] for which in (0, 1)}
    grids = [which for which, places in options.items() if _is_grid(places)]
    return max(grids, key=lambda which: _measure_fill(options[which]), default=None)


def name_block(name: str, which: int) -> str:
    """Return the name of the block that a layer is in, "" for none.

    Args:
        name: The layer's.
        which: What `find_block_number` returned for all layers.

    Example:
        >>> name_block("model.layers.12.self_attn.q_proj.weight", 0), name_block("fc.weight", 0)
        ('model.layers.12', '')
    """
    place = _split(name, which)
    return (
        "" if place is None else ".".join([*([place.stack] * bool(place.stack)), str(place.number)])
    )


def draw_cells(
    base: alt.Chart,
    rows: Sequence[Mapping[str, Any]],
    field: str,
    colour: alt.Color,
    *,
    tooltip: list[alt.Tooltip],
    sign: str,
    is_light: str,
) -> alt.LayerChart:
    """Draw rows that have a `BlockCell` each as coloured cells.

    Args:
        base: An empty chart.
        rows: The layers.
        field: What the colour of a cell shows.
        colour: Its encoding.
        tooltip: What a cell's tooltip shows.
        sign: An expression for the text in a cell.
        is_light: An expression for whether a cell is so light that its text has to be dark.
    """
    count = len({row["row"] for row in rows})
    width = max(WIDTH, compute_least_width(rows))
    base = base.properties(width=width, height=choose_step(count) * count)
    by_row = alt.EncodingSortField(field="row", op="min", order="ascending")
    by_column = alt.EncodingSortField(field="column", op="min", order="ascending")
    bare: dict[str, Any] = {"ticks": False, "domain": False}
    down = alt.Axis(**bare, labelExpr=SHORT_ROLE, labelOverlap=True, labelLimit=200)
    y = alt.Y("role:N", title=None, sort=by_row, axis=down)
    longest = max((len(row["block"]) for row in rows), default=0)
    angle = 0 if longest <= 3 else -45
    across = alt.Axis(
        **bare, orient="top", labelAngle=angle, labelLimit=110, labelOverlap=True, labelSeparation=4
    )
    x = alt.X("block:N", title=None, sort=by_column, axis=across)
    look: dict[str, Any] = {"stroke": alt.ExprRef("paper"), "strokeWidth": 1}
    # A cell without a value is grey: a layer of zeros has no noise to stand out from.
    grey = base.mark_rect(color=alt.ExprRef("faint"), **look).encode(x, y, tooltip=tooltip)
    known = base.transform_filter(f"isValid(datum.{field})")
    cells = known.mark_rect(**look).encode(x, y, colour, tooltip=tooltip)
    texts = base.transform_calculate(sign=sign).transform_filter("datum.sign !== ''")
    unknown = texts.transform_filter(f"!isValid(datum.{field})").mark_text(color=INK, **SIGN)
    signs = texts.transform_filter(f"isValid(datum.{field})").mark_text(**SIGN)
    contrast = alt.condition(is_light, alt.value("#111111"), alt.value("#ffffff"))
    marks = [unknown.encode(x, y, text="sign:N")]
    marks.append(signs.encode(x, y, text="sign:N", color=contrast))
    names = base.transform_filter("datum.outside").mark_text(
        align="left", dx=6, color=INK, limit=alt.ExprRef("0.8 * width"), ellipsis="…", fontSize=10
    )
    listed = names.encode(
        alt.X("block:N", sort=by_column, bandPosition=1), y, text="layer:N", tooltip=tooltip
    )
    frame = base.transform_filter(IS_SELECTED).mark_rect(filled=False, stroke=INK, strokeWidth=2.5)
    return alt.LayerChart(layer=[grey, cells, *marks, listed, frame.encode(x, y)])


def compute_least_width(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the width in pixels below which the cells of a map can't be distinguished."""
    columns = len({row["column"] for row in rows})
    return LABEL_ROOM + NARROWEST * columns


def choose_step(count: int) -> int:
    """Return the height of a row in pixels: less for many, but never too little to read."""
    return 17 if count <= 30 else 14 if count <= 60 else 12


def _split(name: str, which: int) -> _Place | None:
    """A name's stack, number and role, by its first or second number; None without a role."""
    parts = _ENDING.sub("", name).split(".")
    numbers = [i for i, part in enumerate(parts) if re.fullmatch(r"[0-9]{1,6}", part)]
    if not numbers:
        return None
    at = numbers[min(which, len(numbers) - 1)]
    role = ".".join(parts[at + 1 :])
    return _Place(".".join(parts[:at]), int(parts[at]), role) if role else None


def _measure_fill(places: Sequence[_Place | None]) -> float:
    """How many layers are in blocks, less where the grid has gaps."""
    inside = [place for place in places if place is not None]
    size = len({(p.stack, p.number) for p in inside}) * len({p.role for p in inside})
    return len(inside) ** 2 / max(size, 1)


def _is_grid(places: Sequence[_Place | None]) -> bool:
    inside = [place for place in places if place is not None]
    blocks, roles = {(p.stack, p.number) for p in inside}, {p.role for p in inside}
    fewest = FEWEST_ROLES if len(places) <= MANY else 2
    if len(blocks) < FEWEST_BLOCKS or len(roles) < fewest:
        return False
    if len(set(inside)) < len(inside):  # two layers would share a cell
        return False
    return len(inside) >= MOSTLY * max(len(places), len(blocks) * len(roles))


def _sort_blocks(inside: Sequence[_Place]) -> list[tuple[str, int]]:
    stacks = {stack: i for i, stack in enumerate(dict.fromkeys(p.stack for p in inside))}
    blocks = {(p.stack, p.number) for p in inside}
    return sorted(blocks, key=lambda block: (stacks[block[0]], block[1]))


def _label_blocks(blocks: Sequence[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """A block's number; with several stacks, after the parts of their names that differ."""
    stacks = {stack: stack.split(".") if stack else [] for stack, _ in blocks}
    start = _count_shared(list(stacks.values()))
    end = _count_shared([parts[start:][::-1] for parts in stacks.values()])
    names = {stack: parts[start : len(parts) - end] for stack, parts in stacks.items()}
    return {(stack, number): ".".join([*names[stack], str(number)]) for stack, number in blocks}


def _count_shared(lists: Sequence[Sequence[str]]) -> int:
    """How many parts all lists begin with."""
    columns = list(zip(*lists, strict=False))
    return next((i for i, column in enumerate(columns) if len(set(column)) > 1), len(columns))
