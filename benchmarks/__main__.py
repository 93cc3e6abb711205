"""Runs every benchmark and writes docs/benchmarks.md."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import torch

from benchmarks import (
    checkpoint,
    epoch_end,
    gram_accuracy,
    import_time,
    large_linear,
    memory,
    stage2,
    step,
)

_PAGE = Path("docs/benchmarks.md")
_BENCHMARKS: tuple[tuple[str, ModuleType], ...] = (
    ("RMSGD's step against torch.optim.SGD's", step),
    ("An epoch's end, as a share of the epoch", epoch_end),
    ("Stage II against the released rmsgd", stage2),
    ("A whole checkpoint against WeightWatcher", checkpoint),
    ("One large layer against WeightWatcher", large_linear),
    ("Memory of a streamed checkpoint", memory),
    ("Import time", import_time),
    ("Accuracy of the Gram route", gram_accuracy),
)


def main() -> None:
    """Measures, one benchmark after the other, and writes the page."""
    parts = [f"# Benchmarks\n\n{_machine()}"]
    for title, module in _BENCHMARKS:
        print(f"{title} …", file=sys.stderr, flush=True)
        claim = (module.__doc__ or "").strip()
        parts.append(f"## {title}\n\n{claim}\n\n{module.run()}")
        print(parts[-1].splitlines()[-1], file=sys.stderr, flush=True)
    _PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"Written: {_PAGE}")


def _machine() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True
    ).stdout.strip()
    peers = ", ".join(f"{name} {version(name)}" for name in ("rmsgd", "weightwatcher"))
    return (
        f"Made by `make bench` on {datetime.now(timezone.utc):%Y-%m-%d} at commit "
        f"{commit or 'unknown'}: {_processor()}, {torch.get_num_threads()} cores, Python "
        f"{platform.python_version()}, torch {version('torch')}, numpy {version('numpy')}; "
        f"{peers}. Contestants take turns in one process and each keeps its best round, unless "
        "said otherwise; the machine is shared, so look at the ratios."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?"
    )


if __name__ == "__main__":
    main()
