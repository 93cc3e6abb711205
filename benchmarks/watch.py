"""Claim: with 200 runs of 250 epochs × 100 layers, pages of `rankwise watch` paint within a second.

The aim was a first paint below 1 s, and memory that does not grow with the number of runs that
were looked at. The real command serves the folder; headless Chromium, without a cache, opens the
list, a run's page and a comparison of 12 runs. First paint is Chromium's first contentful paint
from the start of navigation: of a run's page and of a comparison it shows the head, and the words
follow with the server's whole answer. Drawn is when the page has drawn its last chart. Each is the
median of 5 visits, after one that warms the server up. Then all 200 runs' pages are asked for.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import format_table
from rankwise.lab import Config
from rankwise.lab.records import EpochRecord, EpochSeconds, LayerColumns, Session
from rankwise.lab.run_folder import RunFolder

_RUNS, _EPOCHS, _LAYERS = 200, 250, 100
_VISITS = 5
_MARKS = (1, 50, 100, 150, 200)  # after how many runs' pages memory is noted
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


class _Server(NamedTuple):
    """A server that runs, and its process."""

    address: str
    process: int


def run() -> str:
    """The tables."""
    with tempfile.TemporaryDirectory() as folder:
        names = _make_runs(Path(folder))
        with _serving(folder) as server:
            painted = _painted(server, names)
            memory = _visited(server, names)
    heads = ("pages asked for", *map(str, _MARKS))
    figures = [("peak of the server's memory", *(f"{peak:.0f} MB" for peak in memory))]
    if not memory:
        return f"{painted}\n\nMemory was not measured: this system does not tell a process's peak."
    return f"{painted}\n\n{format_table(heads, figures)}"


def _make_runs(folder: Path) -> list[str]:
    """Runs as the lab records them; their layers' file is one and the same."""
    first = _make_run(folder, 0)
    for epoch in range(1, _EPOCHS + 1):
        first.add(_epoch(epoch), _layers(epoch))
    names = [first.config.name]
    for seed in range(1, _RUNS):
        other = _make_run(folder, seed)
        names.append(other.config.name)
        os.link(first.path / "layers.jsonl", other.path / "layers.jsonl")
        shutil.copy(first.path / "epochs.jsonl", other.path)
    return names


def _make_run(folder: Path, seed: int) -> RunFolder:
    run = RunFolder(Config(network="resnet101", epochs=_EPOCHS, seed=seed, out=str(folder)))
    run.path.mkdir()
    run.start(Session(started="2026-01-01T00:00:00+00:00"))
    return run


def _epoch(epoch: int) -> EpochRecord:
    learned = 1 - math.exp(-epoch / 60)
    clocks = ("data", "step", "probe", "eval", "save", "trained")
    return EpochRecord(
        epoch=epoch,
        batches=390,
        train={"loss": 2.3 - 2.2 * learned, "accuracy": learned},
        test={"loss": 2.4 - 2.1 * learned, "accuracy": 0.95 * learned},
        quality=0.6 * learned,
        rates=(0.03, 0.03 + 0.2 / epoch),
        seconds=EpochSeconds(**dict.fromkeys(clocks, 1.0 * epoch)),
    )


def _layers(epoch: int) -> LayerColumns:
    draw = random.Random(epoch)  # noqa: S311
    names = [f"stage{i // 25 + 1}.{i % 25}.conv{i % 3 + 1}" for i in range(_LAYERS)]
    columns: list[list[float | None]] = [[draw.random() for _ in names] for _ in range(5)]
    return LayerColumns(names, *columns)


@contextlib.contextmanager
def _serving(folder: str) -> Iterator[_Server]:
    command = [sys.executable, "-m", "rankwise", "watch", folder, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            found = re.search(r"http://\S+(?=/)", server.stdout.readline() if server.stdout else "")
            yield _Server(found[0] if found else "", server.pid)
        finally:
            server.terminate()


def _painted(server: _Server, names: list[str]) -> str:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None or find_spec("playwright") is None:
        return "Not painted here: it takes Chromium and playwright."
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    pages = {
        f"the list of {_RUNS} runs": "/",
        f"a run of {_EPOCHS} epochs × {_LAYERS} layers": f"/run/{names[0]}",
        "12 runs compared": "/compare?" + "&".join(f"run={name}" for name in names[:12]),
    }
    rows = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(_FLAGS))
        for title, address in pages.items():
            visits = [_visit(browser, server.address + address) for _ in range(_VISITS + 1)][1:]
            figures = [statistics.median(column) for column in zip(*visits, strict=True)]
            rows.append((title, *(f"{seconds:.2f} s" for seconds in figures)))
        browser.close()
    return format_table(("page", "server's answer", "first paint", "all drawn"), rows)


def _visit(browser: Any, address: str) -> tuple[float, float, float]:  # noqa: ANN401
    """Seconds to the answer's end, to the first paint, and until all is drawn."""
    context = browser.new_context()  # with nothing in its cache
    tab = context.new_page()
    tab.goto(address)
    tab.wait_for_selector("body[data-ready]", state="attached", timeout=120_000)
    drawn = tab.evaluate("performance.now()")
    answer = tab.evaluate("performance.getEntriesByType('navigation')[0].responseEnd")
    paint = tab.evaluate(_PAINT)
    context.close()
    return answer / 1000, paint / 1000, drawn / 1000


def _visited(server: _Server, names: list[str]) -> list[float]:
    """The server's peak in MB after some numbers of runs."""
    if not Path(f"/proc/{server.process}/status").exists():
        return []
    peaks = []
    for number, name in enumerate(names, 1):
        with urllib.request.urlopen(f"{server.address}/run/{name}") as answer:  # noqa: S310
            answer.read()
        if number in _MARKS:
            status = Path(f"/proc/{server.process}/status").read_text(encoding="utf-8")
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            peaks.append(int(found[1]) / 1024 if found else math.nan)
    return peaks


if __name__ == "__main__":
    print(run())
