"""A selection of layers as other tools take it: names, PEFT's options, axolotl's, one regex."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import asdict
from typing import Any, Literal

from rankwise._table import Cell, Column, Table, draw_bar
from rankwise._text import format_count, format_name, format_percent
from rankwise.adapters.extraction.peft_layout import make_lora_options, make_regex
from rankwise.adapters.selection.ranking import RankedLayer, Selection, get_sides
from rankwise.errors import ArgumentError

Format = Literal["list", "peft", "axolotl", "regex"]
_BAR_WIDTH = 8


def format_selection(selection: Selection, form: Format) -> str:
    """Return the chosen layers in the form of another tool."""
    if form == "list":
        return "".join(f"{layer.name}\n" for layer in selection.chosen)
    if form == "peft":
        return json.dumps(make_peft_options(selection), indent=2) + "\n"
    if form == "axolotl":
        return format_axolotl(selection)
    return f"{make_regex(layer.module or '' for layer in list_modules(selection))}\n"


def list_modules(selection: Selection) -> list[RankedLayer]:
    """Return the chosen layers that a LoRA can be put on: weights of modules, no stacks."""
    found = [layer for layer in selection.chosen if _is_module(layer)]
    if not found:
        raise ArgumentError(
            f"{selection.source}: none of the chosen layers is the weight of a module of its own "
            "(NAME.weight), which PEFT needs; use the format list."
        )
    return found


def list_others(selection: Selection) -> list[RankedLayer]:
    """Return the chosen layers that `list_modules` leaves out."""
    return [layer for layer in selection.chosen if not _is_module(layer)]


def _is_module(layer: RankedLayer) -> bool:
    return layer.module is not None and layer.kind != "stack"


def make_peft_options(selection: Selection) -> dict[str, Any]:
    """Return keyword arguments for `peft.LoraConfig`: the modules, r and α of each.

    α = r everywhere, so that every layer has the scale 1. PEFT takes names as the ends of modules'
    names: where one chosen name is the end of another layer's, a regular expression is returned.

    Example:
        >>> import torch
        >>> from rankwise.adapters import select_layers
        >>> weights = {f"h.{i}.fc.weight": torch.eye(8) + i for i in range(2)}
        >>> make_peft_options(select_layers(weights, 1.0, rank=2))["target_modules"]
        ['h.0.fc', 'h.1.fc']
    """
    ranks = {layer.module or "": layer.lora_rank for layer in list_modules(selection)}
    return make_lora_options(ranks, [layer.module for layer in selection.layers if layer.module])


def format_axolotl(selection: Selection) -> str:
    """Return the YAML of axolotl's `unfrozen_parameters`: a regular expression per weight."""
    names = (re.escape(layer.name).replace("'", "''") for layer in selection.chosen)
    return "unfrozen_parameters:\n" + "".join(f"  - '^{name}$'\n" for name in names)


def format_json(selection: Selection) -> str:
    """Return everything as JSON."""
    return json.dumps(asdict(selection), indent=2) + "\n"


def make_table(selection: Selection) -> Table:
    """Return the chosen layers with their criterion, as a table."""
    layers = selection.chosen
    return Table.from_columns(
        [
            (Column("layer", "left"), [Cell(format_name(x.name), "name") for x in layers]),
            (Column("signal"), [format_percent(x.signal) for x in layers]),
            (
                Column("", "left", 1),
                [Cell(draw_bar(x.signal, _BAR_WIDTH), "bar s") for x in layers],
            ),
            (Column("rank n'"), [f"{x.rank:g}" for x in layers]),
            (Column("LoRA r"), [str(x.lora_rank) for x in layers]),
        ]
    )


def describe_selection(selection: Selection) -> list[str]:
    """Return sentences that stand below the table."""
    chosen, layers = selection.chosen, selection.layers
    shapes = [get_sides(layer) for layer in chosen]
    lora = sum(layer.lora_rank * sum(sides) for layer, sides in zip(chosen, shapes, strict=True))
    share = sum(math.prod(x.shape) for x in chosen) / sum(math.prod(x.shape) for x in layers)
    sentences = [
        f"Chose {len(chosen)} of {format_count(len(layers), 'layer')} ({format_percent(share)} of "
        "their parameters): in each role and shape those with the largest share of signal, "
        f"‖Ŵ‖²/‖W‖². A LoRA with the ranks shown has {lora:,} parameters.",
    ]
    if selection.left_out:
        reasons = Counter(reason for _, reason in selection.left_out)
        listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        sentences.append(f"Did not compete: {listed}.")
    return sentences
