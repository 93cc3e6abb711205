"""Claim: a streamed checkpoint needs the memory it is given, and 200 MB.

Given are 512 MB, or what the largest layer takes alone where that is more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.timing import format_table
from rankwise.probes.measure import estimate_cost
from rankwise.weights.module import describe_tensor

_SCRIPT = """
import json, sys, threading, torch, rankwise
rss = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
rankwise.probe({"warm-up": torch.randn(64, 64)})
before, seen, done = rss(), [0.0], threading.Event()
def watch():
    while not done.wait(0.002):
        seen[0] = max(seen[0], rss())
watcher = threading.Thread(target=watch)
watcher.start()
rankwise.probe(sys.argv[1], resources=rankwise.Resources(memory=512 << 20))
done.set()
watcher.join()
print(json.dumps(seen[0] - before))
"""
_CASES: dict[str, Sequence[tuple[int, ...]]] = {
    "96 tensors of 1024 × 2048": [(1024, 2048)] * 96,
    "2 tensors of 4096 × 4096 among 100 of 512 × 512": [*[(4096, 4096)] * 2, *[(512, 512)] * 100],
    "one embedding of 60000 × 1024": [(60000, 1024)],
    "24 convolutions of 512 × 512 × 3 × 3": [(512, 512, 3, 3)] * 24,
}


def run() -> str:
    """The table."""
    if not Path("/proc/self/statm").exists():
        return "Not measured here: this system does not tell a process's memory."
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case, shapes in _CASES.items():
            tensors = {f"layer{i}.weight": torch.randn(shape) for i, shape in enumerate(shapes)}
            largest = max(
                estimate_cost(describe_tensor(name, tensor)).memory
                for name, tensor in tensors.items()
            )
            bound = max(512, largest / 2**20) + 200
            size = sum(tensor.nbytes for tensor in tensors.values()) / 2**20
            for suffix in ("safetensors", "pt"):
                path = Path(folder, f"model.{suffix}")
                torch.save(tensors, path) if suffix == "pt" else save_file(tensors, path)
                extra = _peak(path)
                figures = (f"{size:.0f} MB", f"{extra:.0f} MB", f"{bound:.0f} MB")
                rows.append((f"{case}, .{suffix}", *figures))
                path.unlink()
    return format_table(("file", "size", "peak of extra memory", "bound"), rows)


def _peak(path: Path) -> float:
    command = [sys.executable, "-c", _SCRIPT, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    extra: float = json.loads(done.stdout)
    return extra


if __name__ == "__main__":
    print(run())
