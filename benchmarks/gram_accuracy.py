"""When the Gram route loses accuracy that reaches a metric: the table behind `docs/numerics.md`.

Matrices of rank L/4, singular values spread from 1 down to four times the noise's edge, and noise.
The lower the edge, the less of it survives the squaring.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.timing import format_table
from rankwise import condition, stable_rank
from rankwise.numerics.evbmf import evbmf
from rankwise.numerics.spectrum import compute_gram_spectrum, compute_spectrum

_SHAPES = ((64, 576), (128, 128), (96, 400), (300, 900))


def run() -> str:
    """The table."""
    rows = [_row(edge) for edge in 10.0 ** np.arange(-1, -9, -1)]
    heads = ("noise edge / s₁", "rank differs", "worst relative error of d", "of s, κ (absolute)")
    return format_table(heads, rows)


def _row(edge: float) -> tuple[str, ...]:
    rng = np.random.default_rng(0)
    differs, worst_d, worst_metric, trials = 0, 0.0, 0.0, 5
    for shape in _SHAPES * trials:
        matrix = torch.from_numpy(_planted(shape, edge, rng))
        spectra = compute_gram_spectrum(matrix), compute_spectrum(matrix)
        fast, exact = (evbmf(s.values, columns=max(shape)).values for s in spectra)
        if len(fast) != len(exact):
            differs += 1
            continue
        worst_d = max(worst_d, float(np.abs(fast / exact - 1).max()))
        gaps = (stable_rank(fast, 1) - stable_rank(exact, 1), condition(fast) - condition(exact))
        worst_metric = max(worst_metric, *map(abs, gaps))
    total = len(_SHAPES) * trials
    return f"{edge:.0e}", f"{differs} of {total}", f"{worst_d:.0e}", f"{worst_metric:.0e}"


def _planted(
    shape: tuple[int, int], edge: float, rng: np.random.Generator
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    rows, columns = shape
    rank = rows // 4
    u, v = (np.linalg.qr(rng.normal(size=(side, rank)))[0] for side in shape)
    noise = edge / (np.sqrt(rows) + np.sqrt(columns)) * rng.normal(size=shape)
    return (u * np.geomspace(1, 4 * edge, rank)) @ v.T + noise


if __name__ == "__main__":
    print(run())
