"""Build the docs site: `.venv/bin/python -m tools.website` writes build/site; nothing is loaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.website.commands import make_command_page
from tools.website.links import find_broken_links
from tools.website.notebooks import write_notebooks
from tools.website.pages import ROOT, copy_pages
from tools.website.reference import write_reference

ASSETS = Path(__file__).parent / "assets"
BUILD = ROOT / "build"


def gather_pages(folder: Path) -> None:
    """Write all pages of the site to a folder, in Markdown."""
    shutil.rmtree(folder, ignore_errors=True)
    copy_pages(folder)
    shutil.copytree(ASSETS, folder / "assets")
    write_notebooks(folder / "notebooks")
    reference = folder / "reference"
    reference.mkdir()
    write_reference(reference)
    (reference / "cli.md").write_text(make_command_page(), encoding="utf-8")


def main() -> None:
    """Gather the pages and build the site; a warning is an error."""
    gather_pages(BUILD / "docs")
    # Zensical empties .cache where it runs; in the project others keep files there.
    shutil.copy(ROOT / "mkdocs.yml", BUILD)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=BUILD, check=False).returncode:
        sys.exit("The site was not built: see the messages above.")
    if broken := list(find_broken_links(BUILD / "site")):
        sys.exit("\n".join(broken))
    print(f"Open {BUILD / 'site' / 'index.html'}")


if __name__ == "__main__":
    main()
