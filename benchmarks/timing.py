"""Timing: contestants take turns, and the best round of each counts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from threadpoolctl import threadpool_limits


def time_best(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the best seconds of each, in interleaved rounds, so that noise affects all alike."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


@contextlib.contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Limit torch, numpy and scipy to `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


def format_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
