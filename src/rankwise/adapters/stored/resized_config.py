"""The configuration of a resized LoRA: its ranks, and an α for each that keeps the scale."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import PurePath
from typing import Any

from rankwise._text import format_name, join_lines
from rankwise.adapters.extraction.model_card import format_share
from rankwise.adapters.stored.lora_folder import LoraFolder

_INSIDE = ".base_layer."  # of modules whose rank is that of the module around them


def make_config(
    config: Mapping[str, object], ranks: Mapping[str, int], scales: Mapping[str, float]
) -> dict[str, object]:
    """Return the options of PEFT for new ranks.

    The usual options hold for the highest rank, `rank_pattern` and `alpha_pattern` name the others,
    `exclude_modules` those of rank 0.

    Args:
        config: The options before.
        ranks: Of each module.
        scales: α/r of each module, or α/√r if the options say so.

    Example:
        >>> made = make_config({"r": 8}, {"q": 2, "k": 1, "v": 0}, dict.fromkeys("qkv", 2.0))
        >>> made["r"], made["lora_alpha"], made["rank_pattern"], made["alpha_pattern"]
        (2, 4, {'k': 1}, {'k': 2})
        >>> made["exclude_modules"]
        'v'
    """
    rslora = config.get("use_rslora") is True
    alphas = {
        name: _compute_alpha(scales[name], rank, rslora=rslora)
        for name, rank in ranks.items()
        if rank and _INSIDE not in name
    }
    highest = max(ranks[name] for name in alphas)
    alpha = next(alpha for name, alpha in alphas.items() if ranks[name] == highest)
    keys = _make_keys(alphas)
    made = dict(config)
    made["r"], made["lora_alpha"] = highest, alpha
    made["rank_pattern"] = {keys[n]: ranks[n] for n in alphas if ranks[n] != highest}
    made["alpha_pattern"] = {keys[n]: a for n, a in alphas.items() if a != alpha}
    excluded = [re.escape(name) for name, rank in ranks.items() if rank == 0]
    if excluded:
        made["exclude_modules"] = "|".join((*_write_excluded(config), *excluded))
    return made


def _compute_alpha(scale: float, rank: int, *, rslora: bool) -> float | int:
    """Return the α that gives a scale: a whole number where it is one."""
    alpha = scale * (math.sqrt(rank) if rslora else rank)
    nearest = round(alpha)
    return nearest if math.isclose(alpha, nearest, rel_tol=1e-12) else alpha


def _make_keys(names: Collection[str]) -> dict[str, str]:
    """Return a regular expression for each name; PEFT matches it with the ends of names."""
    endings = Counter(
        ".".join(steps[place:])
        for steps in (name.split(".") for name in names)
        for place in range(len(steps))
    )
    return {name: ("^" if endings[name] > 1 else "") + re.escape(name) for name in names}


def _write_excluded(config: Mapping[str, object]) -> list[str]:
    """Return the modules that were excluded before as regular expressions."""
    given = config.get("exclude_modules")
    if isinstance(given, str) and given:
        return [f"(?:{given})"]
    if isinstance(given, list | tuple) and given:
        return [rf"(?:.*\.)?(?:{'|'.join(re.escape(str(name)) for name in given)})"]
    return []


def make_readme(folder: LoraFolder, record: Mapping[str, Any]) -> str:
    """Return the text of README.md: what the adapter was made from, and what was left out."""
    base = folder.config.get("base_model_name_or_path")
    lines = ["---"]
    if isinstance(base, str) and base:
        lines.append(f"base_model: {json.dumps(join_lines(base))}")
    if folder.licence is not None:
        lines.append(f"license: {json.dumps(folder.licence)}")
    lines += ["library_name: peft", "tags:", "- lora", "- rankwise", "---", ""]
    lines += ["# A resized LoRA", ""]
    layers = record["layers"]
    ranks = [sum(layer[key] for layer in layers) for key in ("rank", "new_rank")]
    lines.append(
        f"Made by `rankwise lora resize` from {_code(_name_source(folder.source))}: each layer has "
        f"the least rank whose error is at most {100 * record['error']:g} % of ‖ΔW‖², unless a "
        "highest rank was given."
    )
    lines += [
        "",
        "| | before | after |",
        "|---|---|---|",
        f"| bytes | {record['old_bytes']:,} | {record['new_bytes']:,} |",
        f"| sum of ranks | {ranks[0]:,} | {ranks[1]:,} |",
        f"| layers | {len(layers)} | {sum(layer['new_rank'] > 0 for layer in layers)} |",
        "",
        f"Kept of Σ‖ΔW‖² over all layers: {format_share(record['kept'])}.",
    ]
    left_out = [layer["name"] for layer in layers if not layer["new_rank"]]
    if left_out:
        names = ", ".join(_code(format_name(name)) for name in left_out)
        lines += ["", f"Layers without any change, which were left out: {names}."]
    return "\n".join(lines) + "\n"


def _name_source(source: str) -> str:
    """Return the folder's own name, not where it lies on this machine."""
    return source if source.startswith("hf://") else PurePath(source).name or source


def _code(text: str) -> str:
    return f"`{join_lines(text).replace('`', '')}`"
