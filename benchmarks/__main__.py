"""Run the benchmarks and write docs/benchmarks.md.

`python -m benchmarks` runs all; `python -m benchmarks lab step` runs two and keeps the other
sections of the page.
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
    check_cost,
    epoch_end,
    gram_accuracy,
    import_time,
    lab,
    language_models,
    large_linear,
    memory,
    monitor,
    sharing,
    stage2,
    step,
    watch,
    whole_checkpoint,
)

_PAGE = Path("docs/benchmarks.md")
_BENCHMARKS: tuple[tuple[str, ModuleType], ...] = (
    ("RMSGD's step against torch.optim.SGD's", step),
    ("An epoch's end, as a share of the epoch", epoch_end),
    ("Watching layers in training, as a share of it", monitor),
    ("Stage II against the released rmsgd", stage2),
    ("A whole checkpoint against WeightWatcher", whole_checkpoint),
    ("One large layer against WeightWatcher", large_linear),
    ("Whole language models", language_models),
    ("Several cores, and a busy machine", sharing),
    ("The cost of a check", check_cost),
    ("Memory of a streamed checkpoint", memory),
    ("Import time", import_time),
    ("Accuracy of the Gram route", gram_accuracy),
    ("The lab's training loop", lab),
    ("Watching 200 runs", watch),
)


def main(names: list[str]) -> None:
    """Run benchmarks one after the other and write the page."""
    known = {module.__name__.removeprefix("benchmarks."): module for _, module in _BENCHMARKS}
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"Expected names out of {', '.join(known)}; got {', '.join(unknown)}.")
    selected = [known[name] for name in names] or list(known.values())
    head, sections = _read_page() if names else (f"# Benchmarks\n\n{_describe_page()}", {})
    for title, module in _BENCHMARKS:
        if module in selected:
            print(f"{title} …", file=sys.stderr, flush=True)
            claim = (module.__doc__ or "").strip()
            note = f"\n\nMeasured separately {_describe_machine()}." if names else ""
            sections[title] = f"## {title}\n\n{claim}{note}\n\n{module.run()}"
            print(sections[title].splitlines()[-1], file=sys.stderr, flush=True)
    ordered = [sections[title] for title, _ in _BENCHMARKS if title in sections]
    _PAGE.write_text("\n\n".join([head, *ordered]) + "\n", encoding="utf-8")
    print(f"Written: {_PAGE}")


def _read_page() -> tuple[str, dict[str, str]]:
    """Return the head of the page, and its sections by title."""
    head, *sections = _PAGE.read_text(encoding="utf-8").rstrip().split("\n\n## ")
    return head, {section.splitlines()[0]: f"## {section}" for section in sections}


def _describe_page() -> str:
    peers = ", ".join(f"{name} {version(name)}" for name in ("rmsgd", "weightwatcher"))
    return (
        f"Written by `make bench` {_describe_machine()}; {peers}. Unless stated otherwise, "
        "contestants take turns in one process and the best round of each counts. The machine is "
        "shared, so compare the ratios."
    )


def _describe_machine() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True
    ).stdout.strip()
    return (
        f"on {datetime.now(timezone.utc):%Y-%m-%d} at commit {commit or 'unknown'}: "
        f"{_get_processor()}, {torch.get_num_threads()} cores, Python {platform.python_version()}, "
        f"torch {version('torch')}, numpy {version('numpy')}"
    )


def _get_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
