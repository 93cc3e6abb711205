"""Claim: one 11008 × 4096 Linear, faster than WeightWatcher and with less memory.

Each runs in a process of its own, on one thread, so that its peak of memory is its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.timing import format_table

_SETUP = """
import contextlib, io, json, logging, time, warnings
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4096, 11008, bias=False))
"""
_RUN = {
    "rankwise": "import rankwise\nrun = lambda: rankwise.probe(model)",
    "WeightWatcher `analyze()`": """
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
with contextlib.redirect_stdout(io.StringIO()):
    import weightwatcher
def run():
    with contextlib.redirect_stdout(io.StringIO()):
        weightwatcher.WeightWatcher(model=model).analyze()
""",
}
_MEASURE = """
def peak():  # unlike ru_maxrss, not inherited from the parent process
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
before, start = peak(), time.perf_counter()
run()
print(json.dumps([time.perf_counter() - start, peak() - before]))
"""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def run() -> str:
    """The table."""
    if not Path("/proc/self/status").exists():
        return "Not measured here: this system does not tell a process's memory."
    measured = {name: _measure(code) for name, code in _RUN.items()}
    ours = measured["rankwise"][0]
    rows = [
        (name, f"{seconds:.1f} s", f"{seconds / ours:.1f}×", f"{extra:.0f} MB")
        for name, (seconds, extra) in measured.items()
    ]
    return format_table(("11008 × 4096, one thread", "time", "of rankwise's", "extra memory"), rows)


def _measure(code: str) -> tuple[float, float]:
    script = _SETUP + code + _MEASURE
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **_ONE_THREAD},
    )
    seconds, extra = json.loads(done.stdout.splitlines()[-1])
    return seconds, extra


if __name__ == "__main__":
    print(run())
