import os
import subprocess
import sys

import pytest
import typer

import rankwise
from rankwise.cli.diff import DIFF_EXAMPLES
from rankwise.cli.output import run_command
from rankwise.cli.probe import EXPLAIN_EXAMPLES, PROBE_EXAMPLES
from rankwise.cli.report import REPORT_EXAMPLES, WATCH_EXAMPLES
from rankwise.probes.results import is_saved_probe


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
    [
        ("probe", PROBE_EXAMPLES),
        ("diff", DIFF_EXAMPLES),
        ("explain", EXPLAIN_EXAMPLES),
        ("report", REPORT_EXAMPLES),
        ("watch", WATCH_EXAMPLES),
    ],
)
def test_help_shows_the_examples_as_written(run, command, examples):
    result = run(command, "--help", COLUMNS="80")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert {line.strip() for line in examples.replace("\b", "").splitlines()} <= {
        line.strip() for line in lines
    }
    assert max(map(len, lines)) <= 80


COMMANDS = [
    "",
    "--help",
    "--version",
    *(f"{name} --help" for name in ("probe", "diff", "explain", "report", "watch", "train")),
    "study",
    *(
        f"study {name} --help"
        for name in ("run", "status", "table", "export", "import", "correlate")
    ),
]


def test_help_imports_no_heavy_package():
    code = (
        "import sys\n"
        "from rankwise.__main__ import main\n"
        f"for command in {COMMANDS!r}:\n"
        "    sys.argv = ['rankwise', *command.split()]\n"
        "    assert main() == 0, command\n"
        "    heavy = {'torch', 'numpy', 'scipy', 'pandas', 'altair', 'ray', 'lightning_fabric',\n"
        "             'sklearn', 'msgspec', 'jinja2', 'starlette'} & sys.modules.keys()\n"
        "    assert not heavy, (command, heavy)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


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
    assert "rankwise --help" in result.stderr


def test_explain(run):
    assert run("explain", "Q").stdout.startswith("network_quality (Q)\n")
    assert "noise_variance" in run("explain").stdout
    result = run("explain", "stablerank")
    assert result.exit_code == 1
    assert "Did you mean stable_rank or " in result.stderr


def test_module_runs_also_where_stdout_is_not_utf8(checkpoint):
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = python("-m", "rankwise", "probe", checkpoint, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fc.weight" in done.stdout
    assert "\\u03ba" in done.stdout


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(package):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from rankwise.__main__ import main\n"
        "sys.argv = ['rankwise', 'explain', 'rank']\nsys.exit(main())"
    )
    done = python("-c", code)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("rankwise: ")
    assert f"pip install {package}\n" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
@pytest.mark.parametrize("arguments", [[], ["--json", "-"]])
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

    assert run_command(command) == 130


def test_index_of_shards_is_no_saved_probe(tmp_path):
    for name in ("probe.json", "model.safetensors.index.json"):
        (tmp_path / name).write_text("{}")
    assert is_saved_probe(tmp_path / "probe.json")
    assert not is_saved_probe(tmp_path / "model.safetensors.index.json")
    assert not is_saved_probe(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["prob", "model.pt"], "There is no command 'prob'. Did you mean probe?"),
        (["table", "runs"], "There is no command 'table'. Did you mean rankwise study table?"),
        (
            ["model.pt"],
            "There is no command 'model.pt'. Did you mean rankwise check model.pt or rankwise "
            "probe model.pt?",
        ),
        (["study", "rn"], "There is no command 'rn'. Did you mean run?"),
        (
            ["probe", "a.pt", "b.pt"],
            "Unexpected argument 'b.pt'. probe reads one checkpoint: rankwise diff A B compares "
            "two, and rankwise report A B C writes a page about several.",
        ),
        (
            ["probe", "a.pt", "--split", "head"],
            "Unexpected argument 'head'. --split takes stacks or heads. Did you mean heads?",
        ),
        (
            ["diff", "a.pt", "b.pt", "c.pt"],
            "Unexpected argument 'c.pt'. diff compares two: rankwise report A B C writes a page "
            "about several.",
        ),
        (
            ["train", "--optimzer", "sgd"],
            "There is no option --optimzer. Did you mean --optimizer or --tied?",
        ),
        (
            ["check", "a.pt", "--fail-on", "warnings"],
            "Invalid value for '--fail-on': 'warnings' is not one of 'error', 'warning'.",
        ),
        (
            ["train", "resnet8"],
            "Unexpected argument 'resnet8'. Every name needs its option, as in --network resnet8 "
            "--data digits.",
        ),
    ],
)
def test_wrong_usage_says_what_was_meant(run, arguments, sentence):
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"rankwise: {sentence} See `rankwise ")
    assert result.stderr.count("\n") == 1


def test_any_missing_package_is_a_sentence(tmp_path):
    code = (
        "import sys; sys.modules['scipy'] = None\n"
        f"sys.argv = ['rankwise', 'study', 'table', {str(tmp_path)!r}]\n"
        "from rankwise.__main__ import main\nsys.exit(main())"
    )
    done = python("-c", code)
    assert done.returncode == 1
    assert done.stderr == ("rankwise: This command needs the package 'scipy': pip install scipy\n")
