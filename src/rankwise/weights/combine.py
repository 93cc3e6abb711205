"""Stored tensors → the weights a network computes with.

What is stored need not be what the network computes with: weight norm stores a direction and a
length, pruning a mask, LoRA two thin factors, quantised formats codes and scales. Parts are matched
by their names; each part keeps a row that names the weight it belongs to.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence

from rankwise.weights.adapter_factors import ADAPTER_RULES
from rankwise.weights.adapter_scale import AlphaTable
from rankwise.weights.parts import Config, Context, Rule, Whole
from rankwise.weights.quantised import QUANTISED_RULES
from rankwise.weights.quantised.unknown import mark_orphans
from rankwise.weights.reparametrized import REPARAMETRIZATION_RULES
from rankwise.weights.tensor import Status, Weight

_RULES: tuple[Rule, ...] = (*QUANTISED_RULES, *REPARAMETRIZATION_RULES, *ADAPTER_RULES)
_OF_CODES = (Status.QUANTISED, Status.NO_DATA)
# What DDP, torch.compile, FSDP and activation checkpointing put into parameters' names.
_WRAPPERS = re.compile(
    r"(?:^module\.)|(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)


def strip_wrappers(weights: Sequence[Weight]) -> list[Weight]:
    """Remove wrappers' prefixes from the names, unless two names would become equal."""
    names = strip_names([weight.name for weight in weights])
    if len(set(names)) < len(names):
        return list(weights)
    return [dataclasses.replace(w, name=name) for w, name in zip(weights, names, strict=True)]


def strip_names(names: Iterable[str]) -> list[str]:
    """Return names of tensors or modules without those of wrappers.

    Example:
        >>> strip_names(["module.fc.weight", "_orig_mod.fc", "fc"])
        ['fc.weight', 'fc', 'fc']
    """
    return [_WRAPPERS.sub("", name) for name in names]


def combine_parts(weights: Sequence[Weight], config: Config | None = None) -> list[Weight]:
    """Insert each weight before the first of its parts, or in its place; mark the other parts."""
    settings = (config or {}).get("adapter_config")
    alphas = AlphaTable(settings) if isinstance(settings, Mapping) else None
    context = Context({weight.name: weight for weight in weights}, config or {}, alphas)
    rows: list[Weight] = []
    merged: dict[str, str] = {}
    wholes: dict[str, Weight] = {}  # those that are stored under the name of one of their parts
    for weight in weights:
        whole = _find_whole(weight, context) if weight.name not in merged else None
        if whole is not None:
            merged.update({part.name: whole.weight.name for part in whole.parts})
            if whole.weight.name in context.by_name:
                wholes[whole.weight.name] = whole.weight
            else:
                rows.append(whole.weight)
        rows.append(weight)
    return [
        wholes[row.name]
        if row.name in wholes
        else _mark_merged(row, merged[row.name])
        if row.name in merged
        else mark_orphans(row)
        for row in rows
    ]


def _find_whole(weight: Weight, context: Context) -> Whole | None:
    """Return the weight that this one is a part of, with all its parts; None if it is no part."""
    rules = _RULES
    if weight.obstacle is not None:
        # Codes whose type can't be probed as it is may be part of a weight that can.
        rules = QUANTISED_RULES if weight.obstacle[0] in _OF_CODES else ()
    for rule in rules:
        whole = rule(weight, context)
        # A reader that follows the computation itself has merged the parts already.
        if whole is not None and any(_is_merged(part) for part in whole.parts):
            continue
        # A name of another tensor means that the whole is stored as well.
        if whole is not None and (
            whole.weight.name not in context.by_name
            or any(part.name == whole.weight.name for part in whole.parts)
        ):
            return whole
    return None


def _is_merged(part: Weight) -> bool:
    return part.obstacle is not None and part.obstacle[0] is Status.MERGED


def _mark_merged(part: Weight, whole: str) -> Weight:
    return dataclasses.replace(part, obstacle=(Status.MERGED, f"part of {whole}"))


def mark_ties(weights: Iterable[Weight]) -> list[Weight]:
    """Mark every tensor that shares its memory with an earlier one that is to be probed."""
    first: dict[Hashable, str] = {}
    rows = []
    for weight in weights:
        if weight.identity is None or weight.obstacle is not None:
            rows.append(weight)
        elif weight.identity in first:
            obstacle = (Status.TIED, f"tied to {first[weight.identity]}")
            rows.append(dataclasses.replace(weight, obstacle=obstacle))
        else:
            first[weight.identity] = weight.name
            rows.append(weight)
    return rows
