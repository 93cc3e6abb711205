"""The notebooks run from top to bottom, and what they keep was shown by such a run."""

import nbformat
import pytest
from tools.website.notebooks import FOLDER, run_notebook, write_notebooks

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    cells = code_cells(run_notebook(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    texts = [output.get("text", "") for cell in cells for output in cell.outputs]
    assert not any("Warning" in text for text in texts)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_keeps_is_of_one_whole_run(path):
    cells = code_cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not any(output.output_type == "error" for output in outputs)
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= kinds


def test_pages_of_notebooks_have_their_pictures(tmp_path):
    write_notebooks(tmp_path)
    text = (tmp_path / "probe-a-checkpoint.md").read_text(encoding="utf-8")
    pictures = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("probe*.png")]
    assert len(pictures) == 2
    assert all(f"]({picture})" in text for picture in pictures)
    assert "(train-layer-wise.md)" in text
