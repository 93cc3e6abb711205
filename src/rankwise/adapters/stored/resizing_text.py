"""A resized adapter as a table and sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rankwise._table import Cell, Column, Table
from rankwise._text import format_count, format_name, format_percent
from rankwise.adapters.extraction.model_card import format_share
from rankwise.adapters.stored.resizing import Resizing


def make_resizing_table(resizing: Resizing) -> Table:
    """Return the ranks of each layer, and what is kept of its change."""
    layers = resizing.layers
    return Table.from_columns(
        [
            (Column("layer", "left"), [Cell(format_name(x.name), "name") for x in layers]),
            (Column("rank"), [str(x.rank) for x in layers]),
            (Column("new"), [str(x.new_rank) for x in layers]),
            (Column("kept"), [format_share(x.kept) for x in layers]),
            (Column("bytes", priority=3), [f"{x.old_bytes:,}" for x in layers]),
            (Column("new bytes", priority=3), [f"{x.new_bytes:,}" for x in layers]),
        ]
    )


def describe_resizing(resizing: Resizing) -> Iterator[str]:
    """Yield sentences that stand below the table."""
    layers = resizing.layers
    before, after = (sum(x.rank for x in layers), sum(x.new_rank for x in layers))
    share = resizing.new_bytes / max(1, resizing.old_bytes)
    yield (
        f"{format_count(len(layers), 'layer')}: {before} ranks to {after}, "
        f"{resizing.old_bytes:,} bytes to {resizing.new_bytes:,} ({format_percent(share)}); kept "
        f"{format_share(resizing.kept)} of all layers' ‖ΔW‖²."
    )
    if left_out := resizing.left_out:
        yield f"Left out {format_count(len(left_out), 'layer')} whose change is zero."
    over = [x for x in layers if 1 - x.kept > resizing.error]
    if over:
        yield (
            f"Warning: {format_count(len(over), 'layer')} lost more than "
            f"{100 * resizing.error:g} %, as a highest rank was given."
        )
    if resizing.folder.config.get("use_dora") is True:
        yield (
            "DoRA: the norms of the rows are kept as they are, so only the directions change; the "
            "shares are those of the directions' change."
        )
    if carried := resizing.folder.others:
        yield f"Kept as they are: {format_count(len(carried), 'other tensor')}."
    if resizing.folder.grouped:
        grouped = format_count(len(resizing.folder.grouped), "grouped convolution")
        yield f"Kept as they are: the factors of {grouped}."


def format_resizing_json(resizing: Resizing) -> str:
    """Return everything but the factors as JSON."""
    return json.dumps(resizing.to_dict(), indent=2, allow_nan=False) + "\n"
