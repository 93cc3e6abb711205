"""Side by side: the contestants take turns, and each keeps its best round."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from threadpoolctl import threadpool_limits


def best_of(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best seconds of each, in interleaved rounds, so that a noisy moment hits all alike."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """All libraries on `count` threads: torch's, numpy's and scipy's."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
