import io
import os
import subprocess
import sys

import pytest
import typer
from rich.console import Console

import rankwise
from rankwise.cli import progress as progress_module
from rankwise.cli.diff import DIFF_EXAMPLES
from rankwise.cli.explain import EXPLAIN_EXAMPLES
from rankwise.cli.guard import exit_code
from rankwise.cli.probe import PROBE_EXAMPLES
from rankwise.probes.probe_result import is_saved_probe
from rankwise.probes.survey import Progress


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
        **options,
    )


def test_version(run):
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"rankwise {rankwise.__version__}\n")


@pytest.mark.parametrize(
    ("command", "examples"),
    [("probe", PROBE_EXAMPLES), ("diff", DIFF_EXAMPLES), ("explain", EXPLAIN_EXAMPLES)],
)
def test_help_shows_the_examples_as_written(run, command, examples):
    result = run(command, "--help")
    assert result.exit_code == 0
    lines = {line.strip() for line in result.stdout.splitlines()}
    assert {line.strip() for line in examples.strip("\b\n").splitlines()} <= lines


def test_without_a_command_help_is_shown(run):
    result = run()
    assert result.exit_code == 0
    assert "probe" in result.stdout
    assert "rankwise explain stable_rank" in result.stdout


def test_unknown_command_is_one_line(run):
    result = run("prob")
    assert result.exit_code == 1
    assert result.stderr.startswith("rankwise: ")
    assert result.stderr.count("\n") == 1


def test_explain(run):
    assert run("explain", "Q").stdout.startswith("network_quality (Q)\n")
    assert "noise_variance" in run("explain").stdout
    result = run("explain", "stablerank")
    assert result.exit_code == 1
    assert "Did you mean stable_rank?" in result.stderr


def test_module_runs(checkpoint):
    done = python("-m", "rankwise", "probe", checkpoint, "--fail-under", "1.57")
    assert done.returncode == 2
    assert "fc.weight" in done.stdout
    assert done.stderr.startswith("rankwise: network quality")


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(package):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from rankwise.__main__ import main\nsys.exit(main())"
    )
    done = python("-c", code)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("rankwise: ")
    assert "pip install 'rankwise[cli]'" in done.stderr


def test_stdout_that_is_not_utf8(checkpoint):
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = python("-m", "rankwise", "probe", checkpoint, env=environment)
    assert done.returncode == 0, done.stderr
    assert "\\u03ba" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
@pytest.mark.parametrize("arguments", [[], ["--json", "-"], ["--csv", "-"]])
def test_reader_that_leaves_early(checkpoint, arguments):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "rankwise", "probe", str(checkpoint), *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == b""


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, typer.Abort])
def test_interruption_is_130(interruption):
    def command():
        raise interruption

    assert exit_code(command) == 130


def test_index_of_shards_is_no_saved_probe(tmp_path):
    for name in ("probe.json", "model.safetensors.index.json"):
        (tmp_path / name).write_text("{}")
    assert is_saved_probe(tmp_path / "probe.json")
    assert not is_saved_probe(tmp_path / "model.safetensors.index.json")
    assert not is_saved_probe(tmp_path / "missing.json")


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80)


def test_progress_shows_the_layer_on_a_terminal(monkeypatch):
    console = terminal()
    monkeypatch.setattr(progress_module, "stderr_console", lambda: console)
    monkeypatch.setattr(progress_module, "PATIENCE", -1)
    with progress_module.ProgressBar() as bar:
        bar(Progress(done=1.0, total=4.0, name="[red]conv\x1b[2J"))
    shown = console.file.getvalue()
    assert "Probing" in shown
    assert "25%" in shown
    assert "[red]conv\\x1b[2J" in shown


def test_progress_is_silent_where_work_is_quick_or_nobody_watches(monkeypatch):
    quick = terminal()
    monkeypatch.setattr(progress_module, "stderr_console", lambda: quick)
    with progress_module.ProgressBar() as bar:
        bar(Progress(done=1.0, total=4.0, name="a"))
    assert quick.file.getvalue() == ""

    piped = Console(file=io.StringIO())
    monkeypatch.setattr(progress_module, "stderr_console", lambda: piped)
    monkeypatch.setattr(progress_module, "PATIENCE", -1)
    with progress_module.ProgressBar() as bar:
        bar(Progress(done=1.0, total=4.0, name="a"))
    assert piped.file.getvalue() == ""
