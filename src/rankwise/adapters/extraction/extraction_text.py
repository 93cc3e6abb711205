"""An extracted adapter as a table, sentences and JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rankwise._table import Cell, Column, Table, draw_bar
from rankwise._text import format_count, format_name, sanitize
from rankwise.adapters.extraction.extraction_files import Extraction
from rankwise.adapters.extraction.extraction_plan import ExtractionPlan, Place
from rankwise.adapters.extraction.model_card import format_share

_BAR_WIDTH = 8
_KINDS: tuple[tuple[Place, str], ...] = (
    ("module", "of norms and other modules"),
    ("bias", "biases"),
    ("tensor", "others"),
)
_MOST = 8  # names of a kind that are listed


def make_extraction_table(plan: ExtractionPlan) -> Table:
    """Return the layers that changed, with their ranks and what these keep."""
    layers = plan.layers
    return Table.from_columns(
        [
            (Column("layer", "left"), [Cell(format_name(x.module), "name") for x in layers]),
            (Column("‖Δ‖/‖W‖", priority=5), [f"{x.relative:.2g}" for x in layers]),
            (Column("n'", priority=6), [str(x.signal) for x in layers]),
            (Column("r"), [str(x.rank) for x in layers]),
            (Column("kept"), [format_share(x.kept) if x.rank else "0" for x in layers]),
            (
                Column("", "left", 1),
                [Cell(draw_bar(x.kept, _BAR_WIDTH), "bar s") for x in layers],
            ),
            (Column("parameters", priority=4), [f"{x.parameters:,}" for x in layers]),
        ]
    )


def describe_plan(plan: ExtractionPlan) -> list[str]:
    """Return sentences that stand below the table."""
    adapted, empty = plan.adapted, [x for x in plan.layers if not x.rank]
    changed = sum(math.prod(x.shape) for x in plan.layers)
    sentences = [
        f"Keeps {format_share(plan.kept)} of ‖Δ‖² in {format_bytes(plan.bytes)}: a LoRA on "
        f"{format_count(len(adapted), 'layer')} with {sum(x.parameters for x in adapted):,} "
        f"parameters ({changed:,} in the layers that changed)."
    ]
    counts = Counter(tensor.place for tensor in plan.copied)
    if counts:
        listed = ", ".join(f"{counts[place]} {kind}" for place, kind in _KINDS if counts[place])
        sentences.append(f"Stored whole: {format_count(len(plan.copied), 'tensor')} ({listed}).")
    if empty:
        sentences.append(
            f"Left out {format_count(len(empty), 'layer')} of rank 0, with "
            f"{format_share(math.fsum(x.energy for x in empty) / plan.energy)} of ‖Δ‖²: "
            f"{_list(x.module for x in empty)}."
        )
    by_reason: dict[str, list[str]] = {}
    for item in plan.left_out:
        by_reason.setdefault(sanitize(item.reason), []).append(item.name)
    for reason, names in by_reason.items():
        sentences.append(f"Left out, {reason}: {_list(names)}.")
    return [*sentences, *plan.notes]


def describe_extraction(extraction: Extraction) -> str:
    """Return a sentence on what was written."""
    return (
        f"Wrote {sanitize(str(extraction.folder))}. Measured on the stored numbers, it keeps "
        f"{format_share(extraction.measured)} of ‖Δ‖²."
    )


def format_bytes(size: int) -> str:
    """Return a size with a unit, as in "1.5 MB".

    Example:
        >>> format_bytes(1_500_000), format_bytes(800)
        ('1.5 MB', '800 bytes')
    """
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


def make_document(plan: ExtractionPlan, extraction: Extraction | None = None) -> dict[str, Any]:
    """Return everything as plain types; measured shares once the adapter is written."""
    shares = {} if extraction is None else extraction.shares
    return {
        "base": plan.pairing.base.source,
        "tuned": plan.pairing.tuned.source,
        "kept": plan.kept,
        "measured": None if extraction is None else extraction.measured,
        "parameters": plan.parameters,
        "bytes": plan.bytes,
        "unchanged": plan.unchanged,
        "layers": [
            {
                "name": x.name,
                "module": x.module,
                "form": x.form,
                "shape": list(x.shape),
                "rank": x.rank,
                "signal": x.signal,
                "energy": x.energy,
                "relative": x.relative if math.isfinite(x.relative) else None,
                "kept": x.kept,
                "measured": shares.get(x.name),
                "parameters": x.parameters,
                "dtype": str(x.dtype).removeprefix("torch."),
            }
            for x in plan.layers
        ],
        "copied": [{"name": t.name, "place": t.place, "energy": t.energy} for t in plan.copied],
        "left_out": [
            {"name": x.name, "reason": x.reason, "energy": x.energy} for x in plan.left_out
        ],
        "notes": list(plan.notes),
    }


def format_json(plan: ExtractionPlan, extraction: Extraction | None = None) -> str:
    """Return the same as JSON."""
    return json.dumps(make_document(plan, extraction), indent=2, allow_nan=False) + "\n"


def _list(names: Iterable[str]) -> str:
    shown = [format_name(name) for name in names]
    more = f" and {len(shown) - _MOST} more" if len(shown) > _MOST else ""
    return ", ".join(shown[:_MOST]) + more
