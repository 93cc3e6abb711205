"""Claim: all metrics of all convolutions, far faster than the released `rmsgd`, near the floor.

The floor is what no route through the Gram matrix can go below: half a Gram product (it is
symmetric) and the eigenvalues, for every unfolding, and nothing else.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from rmsgd.metrics import Metrics
from torch import Tensor, nn

import rankwise
from benchmarks.networks import make_weights
from benchmarks.timing import format_table, limit_threads, time_best
from rankwise.numerics.unfold import plan_unfoldings, unfold


def run() -> str:
    """The table."""
    rows = []
    for network in ("ResNet18", "ResNet50", "ResNet101"):
        for count in dict.fromkeys((1, torch.get_num_threads())):
            with limit_threads(count):
                rows.append(_row(network, count))
    heads = ("network", "threads", "rankwise", "released rmsgd", "ratio", "floor", "of the floor")
    return format_table(heads, rows)


def _row(network: str, count: int) -> tuple[str, ...]:
    named = make_weights(network)
    parameters = [nn.Parameter(weight) for weight in named.values()]
    matrices = [
        _matrix(weight, u.axis) for weight in named.values() for u in plan_unfoldings(weight.shape)
    ]
    best = time_best(
        {
            "ours": lambda: rankwise.probe(named),
            "theirs": Metrics(parameters),
            "floor": lambda: _floor(matrices),
        },
        rounds=5,
    )
    ours, theirs, floor = best["ours"], best["theirs"], best["floor"]
    # The floor runs on one core; at the same time on all of them it can't be faster than this.
    floor /= count
    return (
        network,
        str(count),
        f"{ours:.2f} s",
        f"{theirs:.2f} s",
        f"{theirs / ours:.1f}×",
        f"{floor:.2f} s",
        f"{ours / floor:.2f}",
    )


def _matrix(weight: Tensor, axis: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    matrix = unfold(weight, axis).double().numpy()
    return matrix if matrix.shape[0] <= matrix.shape[1] else np.ascontiguousarray(matrix.T)


def _floor(matrices: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]]) -> float:
    with limit_threads(1):
        return math.fsum(float(np.linalg.eigvalsh(m @ m.T)[-1]) for m in matrices)


if __name__ == "__main__":
    print(run())
