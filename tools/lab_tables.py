"""Writes the tables in docs/lab.md: options, networks, optimizers, as the code has them.

Run with `.venv/bin/python -m tools.lab_tables`.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path

import torch

from rankwise.lab.config import Config
from rankwise.lab.defaults import get_defaults
from rankwise.lab.networks import IMAGE_NETWORKS, NetworkSpec
from rankwise.lab.optimizers import OPTIMIZERS
from tools.marks import fill_marks

PAGE = Path(__file__).parents[1] / "docs" / "lab.md"


def options() -> str:
    """Every option of a run."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in fields(Config):
        default = "" if option.default in (None, MISSING, "") else f"`{option.default}`"
        rows.append(f"| `{option.name}` | {default} | {option.metadata['help']} |")
    return "\n".join(rows)


def networks() -> str:
    """Every image network with its parameters."""
    rows = ["| network | parameters |", "|---|---|"]
    for name, build in IMAGE_NETWORKS.items():
        large = name.endswith("-imagenet")
        spec = NetworkSpec(1000, size=224) if large else NetworkSpec(10)
        with torch.device("meta"):
            count = sum(p.numel() for p in build(spec).parameters())
        rows.append(f"| `{name}` | {count:,} |")
    return "\n".join(rows)


def optimizers() -> str:
    """Every optimizer with the rates it is run with unless told otherwise."""
    rows = ["| optimizer | images | language | WGAN |", "|---|---|---|---|"]
    for name in OPTIMIZERS:
        rates = [f"{get_defaults(name, kind).lr:g}" for kind in ("image", "language", "gan")]
        rows.append(f"| `{name}` | {' | '.join(rates)} |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with its tables as the code has them now."""
    return fill_marks(page, {make.__name__: make() for make in (options, networks, optimizers)})


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
