"""`rankwise report`: a page, images, and sentences for what can't be."""

import subprocess
import sys

import pytest


def test_a_page_is_written_and_named(run, checkpoint, tmp_path):
    done = run("report", checkpoint, "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"Written: {tmp_path / 'page.html'}\n"
    html = (tmp_path / "page.html").read_text()
    assert html.startswith("<!doctype html>")
    assert "fc.weight" in html


def test_a_page_goes_to_stdout_alone(run, checkpoint, tmp_path):
    done = run("report", checkpoint, "-o", "-", "--images", tmp_path / "figures")
    assert done.stdout.startswith("<!doctype html>")
    assert done.stdout.rstrip().endswith("</html>")
    assert "figures" in done.stderr


@pytest.mark.parametrize(
    ("form", "start"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")]
)
def test_every_figure_becomes_an_image(run, checkpoint, tmp_path, form, start):
    folder = tmp_path / "figures"
    out = tmp_path / "page.html"
    done = run("report", checkpoint, "-o", out, "--images", folder, "--image-format", form)
    assert done.exit_code == 0, done.stderr
    files = sorted(folder.iterdir())
    assert len(files) == out.read_text().count('class="chart"')
    assert all(file.read_bytes().startswith(start) for file in files)


def test_layers_can_be_left_out(run, checkpoint, tmp_path):
    out = tmp_path / "page.html"
    run("report", checkpoint, "-o", out, "--include", "fc.*", "--title", "Only one")
    assert "<title>Only one</title>" in out.read_text()
    assert out.read_text().count("<option") == 2  # all, and this one


def test_options_for_checkpoints_are_refused_for_a_saved_probe(run, saved, tmp_path):
    done = run("report", saved, "-o", tmp_path / "page.html", "--p", "1")
    assert done.exit_code == 1
    assert "is a saved probe" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_an_input_is_never_overwritten(run, checkpoint):
    before = checkpoint.read_bytes()
    done = run("report", checkpoint, "-o", checkpoint)
    assert done.exit_code == 1
    assert "would be overwritten" in done.stderr
    assert checkpoint.read_bytes() == before


def test_what_cannot_be_read_is_a_sentence(run, tmp_path):
    done = run("report", tmp_path / "missing.pt", "-o", tmp_path / "page.html")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no such file or folder" in done.stderr


def test_without_the_extra_there_is_a_sentence(checkpoint):
    code = (
        "import sys\nsys.modules['altair'] = None\n"
        f"sys.argv = ['rankwise', 'report', {str(checkpoint)!r}]\n"
        "from rankwise.cli import run\nsys.exit(run())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'rankwise[report]'" in done.stderr
    assert "Traceback" not in done.stderr
