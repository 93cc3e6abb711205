"""Claim: using rankwise adds at most 0.15 s to `import torch`; `rankwise --help` needs no torch."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.timing import format_table

_ROUNDS = 9
_AFTER_TORCH = """
import time, torch, numpy
start = time.perf_counter()
import rankwise
rankwise.probe, rankwise.RMSGD
print(time.perf_counter() - start)
"""


def run() -> str:
    """Return the table."""
    rows: dict[str, Callable[[], float]] = {
        "`rankwise.probe` and `rankwise.RMSGD` after `import torch`": _time_import,
        "`python -c pass`, for comparison": lambda: _time_process("-c", "pass"),
        "`rankwise --help`": lambda: _time_process("-m", "rankwise", "--help"),
    }
    lines = []
    for title, measure in rows.items():
        seconds = sorted(measure() for _ in range(_ROUNDS))
        lines.append((title, f"{seconds[0]:.3f} s", f"{seconds[_ROUNDS // 2]:.3f} s"))
    return format_table(("", f"best of {_ROUNDS}", "median"), lines)


def _time_import() -> float:
    command = [sys.executable, "-c", _AFTER_TORCH]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _time_process(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(run())
