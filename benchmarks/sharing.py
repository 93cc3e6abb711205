"""Claim: all cores are well used, and another busy process never makes that slower than one thread.

Each probe runs in a process of its own, alone and next to another process that keeps one core busy
with matrix products. "Of the floor" is the time of one thread, divided ideally among all cores.
Contestants take turns, and the best round of each counts; under other load the median does, since
the system divides the cores anew in every round.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.timing import format_table

_SCRIPT = """
import json, sys, time, torch
torch.set_num_threads(int(sys.argv[2]))
import rankwise
if sys.argv[1] == "blocks":
    torch.manual_seed(0)
    shapes = 2 * [*4 * [(2048, 2048)], (5632, 2048), (5632, 2048), (2048, 5632)]
    weights = {}
    for i, (a, b) in enumerate(shapes):
        signal = torch.randn(a, 32) @ torch.randn(32, b)
        weights[f"layers.{i}.weight"] = torch.randn(a, b) + 0.3 * signal
    run = lambda: rankwise.probe(weights)
elif sys.argv[1] == "epoch_step":
    from benchmarks.networks import build_resnet
    model = build_resnet("ResNet18")
    optimizer = rankwise.RMSGD(model.named_parameters(), beta=0.98)
    def run():
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.epoch_step()
else:
    from benchmarks.networks import make_weights
    weights = make_weights(sys.argv[1])
    run = lambda: rankwise.probe(weights)
run()
start = time.perf_counter()
run()
print(json.dumps(time.perf_counter() - start))
"""
_LOAD = """
import torch
torch.set_num_threads(1)
a = torch.randn(512, 512)
while True:
    a @ a
"""
_CASES = {
    "two blocks of width 2048": "blocks",
    "ResNet18": "ResNet18",
    "ResNet50": "ResNet50",
    "`epoch_step()` of ResNet18": "epoch_step",
}
_ROUNDS = 3


def run() -> str:
    """Return the table."""
    cores = os.cpu_count() or 1
    rows = []
    for name, case in _CASES.items():
        alone: dict[int, list[float]] = {1: [], cores: []}
        loaded: dict[int, list[float]] = {1: [], cores: []}
        for _ in range(_ROUNDS):
            for threads, times in alone.items():
                times.append(_measure(case, threads))
                with _keep_busy():
                    loaded[threads].append(_measure(case, threads))
        one, many = min(alone[1]), min(alone[cores])
        busy = {threads: statistics.median(times) for threads, times in loaded.items()}
        rows.append(
            (
                name,
                f"{one:.2f} s",
                f"{many:.2f} s, {one / many:.2f}×",
                f"{one / cores / many:.0%}",
                f"{busy[1]:.2f} s",
                f"{busy[cores]:.2f} s, {busy[1] / busy[cores]:.2f}×",
            )
        )
    many_heads = f"{cores} threads"
    heads = ("", "one thread", many_heads, "of the floor", "under load: one", f"{many_heads} ")
    return format_table(heads, rows)


def _measure(case: str, threads: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, case, str(threads)],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds: float = json.loads(done.stdout.splitlines()[-1])
    return seconds


@contextlib.contextmanager
def _keep_busy() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _LOAD])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    print(run())
