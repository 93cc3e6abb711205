"""Ranks of matrices before and after they are stored in a smaller type.

`python -m benchmarks.rounding` prints the section; some minutes on one core. Matrices of a planted
rank with noise of a known share, each compared with itself in float64 where that has the planted
rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.timing import format_table, limit_threads
from rankwise.numerics.evbmf import factorise

_TYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
_NOISE = (0.0, 0.0003, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3)
_SHAPES = ((8, 8), (16, 40), (40, 16), (32, 32), (24, 200), (64, 144), (128, 128), (256, 300))
_FACTORS = ("normal", "Student's t", "uneven rows", "uneven rows and columns")
_PURE_NOISE = 25  # matrices of each shape

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Case:
    """A matrix whose rank is known, and is found in float64."""

    matrix: Values
    rank: int
    noise: float


def run() -> str:
    """Measure everything and return the section as Markdown."""
    with limit_threads(1):
        cases = [
            case for case in _draw_cases() if _find_rank(case.matrix, torch.float64) == case.rank
        ]
        planted = {dtype: [_judge(case, dtype) for case in cases] for dtype in _TYPES}
        false = {dtype: _count_false_directions(dtype) for dtype in _TYPES}
    return "\n\n".join(
        (
            "## Rounding to the stored type",
            _introduce(cases),
            _format_noise(cases, planted),
            "The same by rank, for noise from 0.03 to 2 %:",
            _format_ranks(cases, planted),
            f"Pure noise, {len(_SHAPES) * _PURE_NOISE} matrices of each type: directions found in "
            + ", ".join(f"{count} ({_name(dtype)})" for dtype, count in false.items())
            + ".",
        )
    )


def _draw_cases() -> Iterator[_Case]:
    for noise, shape, factors in itertools.product(_NOISE, _SHAPES, _FACTORS):
        rows = min(shape)
        for rank in sorted({1, 2, 3, max(1, rows // 8), rows // 4}):
            key = [shape[0], shape[1], rank, round(noise * 1e4), _FACTORS.index(factors)]
            yield _Case(
                _plant(np.random.default_rng(key), shape, factors, rank, noise), rank, noise
            )


def _plant(
    rng: np.random.Generator, shape: tuple[int, int], factors: str, rank: int, noise: float
) -> Values:
    left, right = rng.normal(size=(shape[0], rank)), rng.normal(size=(rank, shape[1]))
    if factors == "Student's t":
        left, right = (rng.standard_t(3, size=side.shape) for side in (left, right))
    if factors.startswith("uneven rows"):
        left = left * np.exp(rng.normal(size=(shape[0], 1)))
    if factors.endswith("columns"):
        right = right * np.exp(rng.normal(size=shape[1]))
    product = left @ right
    return product / product.std() + noise * rng.normal(size=shape)


def _find_rank(matrix: Values, dtype: torch.dtype) -> int:
    return factorise(torch.from_numpy(matrix).to(dtype))[1].rank


def _judge(case: _Case, dtype: torch.dtype) -> int | None:
    """Return found − planted rank; None where a number is too large for the type."""
    if np.abs(case.matrix).max() > torch.finfo(dtype).max:
        return None
    return _find_rank(case.matrix, dtype) - case.rank


def _count_false_directions(dtype: torch.dtype) -> int:
    rng = np.random.default_rng(1)
    return sum(_find_rank(rng.normal(size=shape), dtype) > 0 for shape in _SHAPES * _PURE_NOISE)


def _introduce(cases: list[_Case]) -> str:
    return f"""{len(cases):,} matrices of {len(_SHAPES)} shapes from 8 × 8 to 256 × 300, ranks 1 to
L/4, factors of four kinds ({", ".join(_FACTORS)}), entries of variance 1 and noise of the given
standard deviation; those whose planted rank is found in float64. Each cell: the share whose rank is
the same after storing, and in how many it is larger (+) or smaller (−)."""


def _format_noise(cases: list[_Case], planted: dict[torch.dtype, list[int | None]]) -> str:
    heads = ("type", *(f"{noise:.3g}" for noise in _NOISE))
    rows = [
        (
            _name(dtype),
            *(
                _format_errors([e for e, c in zip(errors, cases, strict=True) if c.noise == noise])
                for noise in _NOISE
            ),
        )
        for dtype, errors in planted.items()
    ]
    return format_table(heads, rows)


def _format_ranks(cases: list[_Case], planted: dict[torch.dtype, list[int | None]]) -> str:
    groups = (("1", 1, 1), ("2", 2, 2), ("3–4", 3, 4), ("5 or more", 5, 10**9))
    rows = []
    for dtype, errors in planted.items():
        pairs = [(e, c) for e, c in zip(errors, cases, strict=True) if 0 < c.noise <= 0.02]
        cells = ([e for e, c in pairs if low <= c.rank <= high] for _, low, high in groups)
        rows.append((_name(dtype), *map(_format_errors, cells)))
    return format_table(("type", *(f"rank {name}" for name, _, _ in groups)), rows)


def _format_errors(errors: list[int | None]) -> str:
    known = [error for error in errors if error is not None]
    more, fewer = sum(e > 0 for e in known), sum(e < 0 for e in known)
    right = (len(known) - more - fewer) / max(1, len(known))
    return f"{right:.1%} (+{more} −{fewer} of {len(known)})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    print(run())
