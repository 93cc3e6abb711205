"""Runs the benchmarks and writes docs/benchmarks.md.

All of them, or those named, as in `python -m benchmarks lab step`: then the page keeps the rest.
"""

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
    epoch_end,
    gram_accuracy,
    import_time,
    lab,
    large_linear,
    memory,
    stage2,
    step,
    watch,
    whole_checkpoint,
)

_PAGE = Path("docs/benchmarks.md")
_BENCHMARKS: tuple[tuple[str, ModuleType], ...] = (
    ("RMSGD's step against torch.optim.SGD's", step),
    ("An epoch's end, as a share of the epoch", epoch_end),
    ("Stage II against the released rmsgd", stage2),
    ("A whole checkpoint against WeightWatcher", whole_checkpoint),
    ("One large layer against WeightWatcher", large_linear),
    ("Memory of a streamed checkpoint", memory),
    ("Import time", import_time),
    ("Accuracy of the Gram route", gram_accuracy),
    ("The lab's training loop", lab),
    ("Watching 200 runs", watch),
)


def main(names: list[str]) -> None:
    """Measures, one benchmark after the other, and writes the page."""
    known = {module.__name__.removeprefix("benchmarks."): module for _, module in _BENCHMARKS}
    if unknown := set(names) - set(known):
        sys.exit(
            f"No benchmark is named {', '.join(unknown)}; expected some of {', '.join(known)}."
        )
    chosen = [known[name] for name in names] or list(known.values())
    head, kept = _page() if names else (f"# Benchmarks\n\nMade by `make bench` {_machine()}", {})
    parts = [head]
    for title, module in _BENCHMARKS:
        if module in chosen:
            print(f"{title} …", file=sys.stderr, flush=True)
            apart = f"\n\nMeasured apart from the rest {_where()}." if names else ""
            claim = (module.__doc__ or "").strip()
            kept[title] = f"## {title}\n\n{claim}{apart}\n\n{module.run()}"
            print(kept[title].splitlines()[-1], file=sys.stderr, flush=True)
        parts += [kept[title]] if title in kept else []
    _PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"Written: {_PAGE}")


def _page() -> tuple[str, dict[str, str]]:
    """The page as it is: what stands on top, and each benchmark's part by its title."""
    head, *parts = _PAGE.read_text(encoding="utf-8").rstrip().split("\n\n## ")
    return head, {part.splitlines()[0]: f"## {part}" for part in parts}


def _machine() -> str:
    peers = ", ".join(f"{name} {version(name)}" for name in ("rmsgd", "weightwatcher"))
    return (
        f"{_where()}; {peers}. Contestants take turns in one process and each keeps its best "
        "round, unless said otherwise; the machine is shared, so look at the ratios."
    )


def _where() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True
    ).stdout.strip()
    return (
        f"on {datetime.now(timezone.utc):%Y-%m-%d} at commit {commit or 'unknown'}: "
        f"{_processor()}, {torch.get_num_threads()} cores, Python {platform.python_version()}, "
        f"torch {version('torch')}, numpy {version('numpy')}"
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
    main(sys.argv[1:])
