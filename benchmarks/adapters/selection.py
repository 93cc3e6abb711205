"""Fine-tune a quarter of the layers: chosen by rankwise, by others' criteria, or at random.

The arms take as many layers of each role and shape, so that only the criterion differs: those with
the most signal (`rankwise select`), with the least, five random draws, the last ones, those with
the highest ratio by Spectrum's published formula, and with the lowest κ, as PEFT's selector ranks.
All competing layers are an arm too. The head is trained in every arm, everything else is fixed.
The first rate is chosen on held-out data from three, for all quarters by the first random draw.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import nn

import rankwise
from benchmarks.adapters.records import Records
from benchmarks.adapters.tasks import TASKS, Data, Task, make_base, train
from benchmarks.rank_rules import Values, compute_kappa, find_spectrum_edge
from rankwise.adapters.selection.ranking import choose_share, select_layers
from rankwise.probes.layer_metrics import ModeMetrics

SHARE = 0.25
DRAWS = 5
SEEDS = (1, 2, 3)
RATES = (3e-4, 1e-3, 3e-3)
ALL = "all layers"


class Arm(NamedTuple):
    """Which layers are trained."""

    name: str
    layers: tuple[str, ...]


def measure_selection(names: Sequence[str], folder: Path, root: Path, records: Records) -> None:
    """Fine-tune with every arm and seed; what is recorded already is not repeated."""
    for name in names:
        task = TASKS[name]
        base, data = make_base(task, folder, root)
        arms = list_arms(base)
        start = task.score(base, data.test)
        rates = {
            arm.name: _choose_rate(task, base, data, arm, records)
            for arm in arms
            if arm.name in (ALL, "random 0")
        }
        for arm in arms:
            rate = rates.get(arm.name, rates["random 0"])
            for seed in SEEDS:
                key = {"task": name, "arm": arm.name, "seed": seed}
                if not records.has(key):
                    score = _tune(task, base, data, arm, rate=rate, seed=seed, on_test=True)
                    share = _count(base, arm.layers) / _count(base, arms[-1].layers)
                    records.add(
                        {**key, "rate": rate, "base": start, "score": score, "parameters": share}
                    )


def list_arms(network: nn.Module) -> list[Arm]:
    """Return the arms, all layers last."""
    probe = rankwise.probe(network, spectra=True)
    layers = select_layers(probe, SHARE).layers
    modes = {row.name: row.modes[-1] for row in probe.probed}  # out × (in·kh·kw)
    spectra = [_get_values(modes[layer.name]) for layer in layers]
    columns = [modes[layer.name].columns for layer in layers]

    def choose(scores: Sequence[float]) -> tuple[str, ...]:
        pairs = [(layer.group, score) for layer, score in zip(layers, scores, strict=True)]
        return tuple(layers[place].name for place in sorted(choose_share(pairs, SHARE)))

    ratios = [compute_spectrum_ratio(v, c) for v, c in zip(spectra, columns, strict=True)]
    arms = [
        Arm("most signal", choose([layer.signal for layer in layers])),
        Arm("least signal", choose([-layer.signal for layer in layers])),
        Arm("last", choose(range(len(layers)))),
        Arm("Spectrum's ratio", choose(ratios)),
        Arm("PEFT's κ", choose([-compute_kappa(one) for one in spectra])),
    ]
    for draw in range(DRAWS):
        scores = random.Random(draw)  # noqa: S311 - a control, no secret
        arms.append(Arm(f"random {draw}", choose([scores.random() for _ in layers])))
    return [*arms, Arm(ALL, tuple(layer.name for layer in layers))]


def _get_values(mode: ModeMetrics) -> Values:
    return np.array([] if mode.spectrum is None else mode.spectrum.values)


def compute_spectrum_ratio(values: Values, columns: int) -> float:
    """Compute Spectrum's score: the sum of the singular values above its edge, over the others'.

    It is divided by the largest singular value, as published.
    """
    is_signal = values > find_spectrum_edge(values, columns)
    noise = float(values[~is_signal].sum())
    return float(values[is_signal].sum()) / noise / float(values[0]) if noise else math.inf


def _tune(
    task: Task, base: nn.Module, data: Data, arm: Arm, *, rate: float, seed: int, on_test: bool
) -> float:
    network = deepcopy(base)
    parameters = dict(network.named_parameters())
    chosen = [parameters[name] for name in arm.layers]
    chosen += list(network.get_submodule(task.head).parameters())
    plan = replace(task.tuned, rate=rate)
    train(network, data, plan, seed=seed, parameters=chosen)
    return task.score(network, data.test if on_test else data.held_out)


def _choose_rate(task: Task, base: nn.Module, data: Data, arm: Arm, records: Records) -> float:
    return records.choose_rate(
        {"task": task.name, "arm": arm.name},
        RATES,
        lambda rate: _tune(task, base, data, arm, rate=rate, seed=0, on_test=False),
    )


def _count(network: nn.Module, names: Sequence[str]) -> int:
    parameters = dict(network.named_parameters())
    return sum(parameters[name].numel() for name in names)
