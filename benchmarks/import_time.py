"""Claim: `import rankwise` adds at most 0.15 s to `import torch`."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.timing import table

_SCRIPT = """
import time, torch, numpy
start = time.perf_counter()
import rankwise
print(time.perf_counter() - start)
"""


def run() -> str:
    """The table."""
    times = sorted(_import() for _ in range(9))
    best, middle = f"{times[0]:.3f} s", f"{times[len(times) // 2]:.3f} s"
    return table(
        ("`import rankwise` after `import torch`", "best of 9", "median"), [("", best, middle)]
    )


def _import() -> float:
    command = [sys.executable, "-c", _SCRIPT]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    print(run())
