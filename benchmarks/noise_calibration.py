"""Directions found in matrices whose rank is known: noise only, and noise with planted ranks.

`python -m benchmarks.noise_calibration` prints the section; about two minutes on one core. What
EVBMF is compared with is described in `rank_rules`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import torch

from benchmarks.noise_tables import Outcome, format_section
from benchmarks.rank_rules import (
    Values,
    compute_kappa,
    count_above_edge,
    count_above_median_rule,
    count_spectrum_signal,
)
from benchmarks.timing import limit_threads
from rankwise.numerics.evbmf import factorise

_WIDTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
_ASPECTS = (1, 2, 4, 16, 64)
_MAX_ENTRIES = 1024 * 4096
_GRID = tuple(
    (width, width * aspect)
    for width, aspect in itertools.product(_WIDTHS, _ASPECTS)
    if width * width * aspect <= _MAX_ENTRIES
)
_KERNELS = ((16, 27), (32, 144), (64, 288), (64, 576), (128, 1152), (256, 2304), (512, 4608))
_SHAPES = _GRID + _KERNELS  # matrices of fully connected layers, and of 3 × 3 convolutions
_GAUSSIAN_MATRICES = 1000
_OTHER_MATRICES = 4 * len(_SHAPES)
_SCALES = 10.0 ** np.arange(-6, 4)
_PLANTED_SHAPES = tuple((n, m) for n, m in _SHAPES if n <= 512 and n * m <= 512 * 2048)
_PLANTED_DRAWS = 3
_STRENGTHS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0)

_Draw = Callable[[np.random.Generator, tuple[int, int]], Values]


def run() -> str:
    """Measure everything and return the section as Markdown."""
    with limit_threads(1):
        gaussian = measure_noise(_draw_gaussian, _GAUSSIAN_MATRICES, seed=0)
        others = {
            name: measure_noise(draw, _OTHER_MATRICES, seed=index)
            for index, (name, draw) in enumerate(_OTHER_NOISE.items(), start=1)
        }
        planted = {strength: measure_planted(strength) for strength in _STRENGTHS}
    return format_section(gaussian, others, planted)


def measure_noise(draw: _Draw, count: int, seed: int) -> list[Outcome]:
    """Judge matrices without structure, of all shapes and scales in turn."""
    shapes = itertools.islice(itertools.cycle(_SHAPES), count)
    return [
        _judge(_scale(rng) * draw(rng, shape), planted=0) for shape, rng in _seed_each(shapes, seed)
    ]


def measure_planted(strength: float) -> list[Outcome]:
    """Judge Gaussian noise plus r equal directions, `strength` times the weakest detectable one.

    A direction weaker than σ(LM)^¼ leaves no trace in the singular values of a large L × M matrix
    (Benaych-Georges and Nadakuditi, 2012). The ranks are 1, L/16 and L/8.
    """
    cases = [
        (shape, rank)
        for shape in _PLANTED_SHAPES * _PLANTED_DRAWS
        for rank in sorted({1, shape[0] // 16, shape[0] // 8} - {0})
    ]
    return [
        _judge(
            _scale(rng) * (_draw_gaussian(rng, shape) + _plant(rng, shape, rank, strength)), rank
        )
        for (shape, rng), (_, rank) in zip(
            _seed_each((shape for shape, _ in cases), seed=100), cases, strict=True
        )
    ]


def _plant(rng: np.random.Generator, shape: tuple[int, int], rank: int, strength: float) -> Values:
    u, v = (np.linalg.qr(rng.normal(size=(side, rank)))[0] for side in shape)
    return strength * (shape[0] * shape[1]) ** 0.25 * u @ v.T


def _seed_each(
    shapes: Iterable[tuple[int, int]], seed: int
) -> Iterable[tuple[tuple[int, int], np.random.Generator]]:
    for index, shape in enumerate(shapes):
        yield shape, np.random.default_rng([seed, index])


def _scale(rng: np.random.Generator) -> float:
    return float(rng.choice(_SCALES))


def _judge(matrix: Values, planted: int) -> Outcome:
    spectrum, part = factorise(torch.from_numpy(matrix.astype(np.float32)))
    values, columns = spectrum.values, spectrum.columns
    return Outcome(
        rows=len(values),
        columns=columns,
        planted=planted,
        evbmf=part.rank,
        median_rule=count_above_median_rule(values, columns),
        edge_rule=count_above_edge(values, columns),
        spectrum=count_spectrum_signal(values, columns),
        kappa=compute_kappa(values),
    )


def _draw_gaussian(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    return rng.normal(size=shape)


def _draw_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    return rng.uniform(-1, 1, size=shape)


def _draw_truncated(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    values = torch.empty(shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    return torch.nn.init.trunc_normal_(values, a=-2, b=2, generator=generator).numpy()


def _draw_orthogonal(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    return np.ascontiguousarray(np.linalg.qr(rng.normal(size=shape[::-1]))[0].T)


def _draw_t5(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    return rng.standard_t(5, size=shape)


def _draw_t3(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    return rng.standard_t(3, size=shape)


def _draw_unequal_rows(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    return rng.normal(size=shape) * np.exp(0.2 * rng.normal(size=(shape[0], 1)))


def _draw_scaled_rows(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    matrix = _draw_unequal_rows(rng, shape)
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


_OTHER_NOISE: dict[str, _Draw] = {
    "uniform": _draw_uniform,
    "normal, truncated at 2 σ": _draw_truncated,
    "orthogonal rows": _draw_orthogonal,
    "Student's t, 5 degrees of freedom": _draw_t5,
    "Student's t, 3 degrees of freedom": _draw_t3,
    "normal, row norms spread by 20 %": _draw_unequal_rows,
    "the same, every row scaled to norm 1": _draw_scaled_rows,
}


if __name__ == "__main__":
    print(run())
