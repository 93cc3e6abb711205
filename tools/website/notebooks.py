"""The notebooks of docs/notebooks: run them, and show them in the site.

`.venv/bin/python -m tools.website.notebooks` runs them and keeps what they show; the site and
GitHub show what was kept.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

from tools.website.pages import ROOT, rewrite_links

FOLDER = ROOT / "docs" / "notebooks"
LONGEST_CELL = 120  # seconds


def run_notebook(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in an empty folder and return it with what it shows.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(
            notebook, timeout=LONGEST_CELL, resources=resources, record_timing=False
        )
        return client.execute()


def write_notebooks(folder: Path) -> None:
    """Write every notebook as a page in Markdown, with its pictures in files."""
    folder.mkdir(exist_ok=True)
    exporter = MarkdownExporter()
    for path in sorted(FOLDER.glob("*.ipynb")):
        names = {"output_files_dir": f"{path.stem}_files", "unique_key": path.stem}
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = rewrite_links(cell.source, path.relative_to(ROOT).as_posix())
        text, resources = exporter.from_notebook_node(notebook, resources=names)
        (folder / f"{path.stem}.md").write_text(text, encoding="utf-8")
        for name, picture in resources["outputs"].items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(picture)


def main() -> None:
    """Run all notebooks and keep what they show."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(run_notebook(path), path)
        print(f"{path.name}: every cell ran")


if __name__ == "__main__":
    main()
