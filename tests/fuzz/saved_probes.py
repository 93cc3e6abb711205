"""Saved probes, whose JSON may say anything."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import torch

import rankwise
from tests.fuzz.values import damage_bytes, draw_integer, draw_text, encode_json, mutate_json


@cache
def _make_seed() -> str:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "conv.weight": torch.randn(4, 3, 3, 3, generator=generator),
        "fc.weight": torch.randn(5, 7, generator=generator) + 2,
        "fc.bias": torch.zeros(5),
        "nan": torch.full((3, 3), float("nan")),
    }
    return rankwise.probe(tensors, spectra=True).to_json()


def encode_saved_probe(rng: Random, *, broken: bool) -> bytes:
    """Return a saved probe with other numbers and names, or one whose structure is wrong."""
    data = json.loads(_make_seed())
    for _ in range(rng.choice((1, 1, 2, 4))):
        _mutate_row(rng.choice(data["layers"]), rng)
    if rng.random() < 0.2:
        data["notes"] = [draw_text(rng), draw_text(rng)]
    if not broken:
        return encode_json(data)
    for _ in range(rng.choice((1, 2, 4))):
        mutate_json(data, rng)
    content = encode_json(data, rng)
    return damage_bytes(content, rng) if rng.random() < 0.2 else content


def _mutate_row(row: dict[str, Any], rng: Random) -> None:
    """Change a row so that it can still be read."""
    match rng.randrange(7):
        case 0:
            row["name"] = draw_text(rng)
        case 1:
            row["reason"] = draw_text(rng)
        case 2:
            row["shape"] = [abs(draw_integer(rng)) for _ in range(rng.randrange(5))]
        case 3:
            row["parameters"] = abs(draw_integer(rng))
        case 4:
            metrics = [key for key, value in row.items() if isinstance(value, float)]
            if metrics:
                row[rng.choice(metrics)] = rng.choice((0, -1, 1e308, 1e-308, 2**70, -1e308))
        case 5 if row.get("modes"):
            mode = rng.choice(row["modes"])
            mode[rng.choice(("rows", "columns", "rank"))] = abs(draw_integer(rng))
        case _:
            row["status"] = rng.choice([status.value for status in rankwise.Status])
