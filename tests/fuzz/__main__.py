"""`python -m tests.fuzz`: read mutated checkpoints and report everything that must not happen."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.fuzz.corpus import FORMATS
from tests.fuzz.oracle import Outcome, judge_seed
from tests.fuzz.runner import Failure, Runner, Tally, make_chunks, make_folder, prepare_process
from tests.fuzz.watch import Watch, limit_memory

_COLUMNS = "format|inputs|opened|refused|measured|failures|max CPU s|peak MiB"


def main() -> int:
    """Run what the command line asks for; return 1 if there were failures."""
    options = _parse_options()
    torch.set_num_threads(1)
    prepare_process()
    if options.replay:
        return _replay(options.replay[0], int(options.replay[1]))
    chunks = make_chunks(options.formats, options.seed, options.inputs)
    runner = Runner(chunks, jobs=options.jobs, keep=options.keep)
    start = time.monotonic()
    until = start + 60 * options.minutes
    with make_folder() as folder:
        shown = start
        for _ in runner.run(folder, until=until):
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                _print_progress(runner.tallies, shown - start)
    _print_progress(runner.tallies, time.monotonic() - start)
    failures = [failure for tally in runner.tallies.values() for failure in tally.failures]
    print("\n" + format_table(runner.tallies))
    if runner.next_seeds >= 0:
        print(f"\nstopped early; continue with --seed {runner.next_seeds}")
    _print_failures(failures, options.keep)
    return int(bool(failures))


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="how many, over all formats")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0, help="the first seed of every format")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no more after")
    parser.add_argument("--replay", nargs=2, metavar=("FORMAT", "SEED"), help="run one input")
    folder = Path(tempfile.gettempdir(), "rankwise-fuzz-failures")
    parser.add_argument("--keep", type=Path, default=folder, help="where failing inputs are saved")
    return parser.parse_args()


def _replay(name: str, seed: int) -> int:
    with make_folder() as folder, limit_memory():
        verdict = judge_seed(name, seed, Watch(folder))
    print(f"{name} {seed}: {verdict.outcome.value}, {verdict.cpu:.3f} s CPU, ", end="")
    print(f"{verdict.memory / 2**20:.1f} MiB")
    for problem in verdict.problems:
        print(f"  {problem}")
    return int(bool(verdict.problems))


def _print_progress(tallies: Mapping[str, Tally], seconds: float) -> None:
    inputs = sum(tally.inputs for tally in tallies.values())
    failures = sum(len(tally.failures) for tally in tallies.values())
    rate = inputs / max(seconds, 1e-9)
    text = f"{inputs:,} inputs, {failures} failures, {rate:.0f}/s, {seconds:.0f} s"
    print(text, file=sys.stderr, flush=True)


def format_table(tallies: Mapping[str, Tally]) -> str:
    """Return what became of the inputs as a table of Markdown."""
    rows = [_format_row(name, tally) for name, tally in tallies.items()]
    total = Tally()
    for tally in tallies.values():
        for outcome, count in tally.outcomes.items():
            total.outcomes[outcome] += count
        total.failures += tally.failures
        total.max_cpu = max(total.max_cpu, tally.max_cpu)
        total.max_memory = max(total.max_memory, tally.max_memory)
    lines = [f"| {' | '.join(_COLUMNS.split('|'))} |", "|---" + "|---:" * 7 + "|"]
    return "\n".join([*lines, *rows, _format_row("all", total)])


def _format_row(name: str, tally: Tally) -> str:
    measured = tally.outcomes[Outcome.MEASURED]
    opened = measured + tally.outcomes[Outcome.OPENED]
    count = max(tally.inputs, 1)
    cells = (
        name,
        f"{tally.inputs:,}",
        f"{100 * opened / count:.0f} %",
        f"{100 * tally.outcomes[Outcome.REFUSED] / count:.0f} %",
        f"{100 * measured / count:.0f} %",
        str(len(tally.failures)),
        f"{tally.max_cpu:.2f}",
        f"{tally.max_memory / 2**20:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _print_failures(failures: list[Failure], keep: Path) -> None:
    if not failures:
        return
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        kind = re.sub(r"[0-9]+|/\S+|'.*?'", "", failure.problem)[:80]
        groups.setdefault((failure.format, kind), []).append(failure)
    print(f"\n{len(failures)} failures; the inputs are in {keep}")
    for group in sorted(groups.values(), key=len, reverse=True):
        print(f"\n{len(group)} × {group[0].format}: {group[0]}")


if __name__ == "__main__":
    sys.exit(main())
