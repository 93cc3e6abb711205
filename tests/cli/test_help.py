"""The help of every command: whole at 80 columns, in words that its examples use, and fast."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest
import typer

from rankwise.cli import app
from rankwise.cli.command import Command, CommandGroup, TrainCommand
from rankwise.lab.config import Config


def list_commands(command=None, words=()):
    command = command or typer.main.get_command(app)
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from list_commands(inner, (*words, name))


ALL = dict(list_commands())
IDS = [" ".join(words) or "rankwise" for words in ALL]


@pytest.mark.parametrize("words", ALL, ids=IDS)
def test_help_is_readable_at_80_columns(run, words):
    result = run(*words, "--help", COLUMNS="80")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    options = result.stdout.partition("Examples:")[0]
    assert not re.search(r"<\w|[{}]", options), "a type as Python writes it"
    assert not re.search(r"[a-z]\.\.\.$", options, re.MULTILINE), "a description that is cut"
    long = [line for line in lines if len(line) > 80 and "rankwise" not in line]
    assert not long
    assert "Examples:" in result.stdout


@pytest.mark.parametrize("words", ALL, ids=IDS)
def test_every_command_is_of_this_package(words):
    command = ALL[words]
    assert isinstance(command, CommandGroup if hasattr(command, "commands") else Command)


@pytest.mark.parametrize(
    "words", [w for w, c in ALL.items() if hasattr(c, "commands")], ids=" ".join
)
def test_each_description_of_a_command_is_one_line_at_80_columns(run, words):
    text = run(*words, "--help", COLUMNS="80").stdout
    rows = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    visible = [name for name, c in ALL[words].commands.items() if not c.hidden]
    assert [row.split()[0] for row in rows] == visible


def test_a_narrow_terminal_cuts_no_description(run):
    text = " ".join(run("--help", COLUMNS="40").stdout.split())
    assert "Choose layers to fine-tune; in our tests no better than random ones" in text


def test_usage_names_arguments_as_the_help_does(run):
    assert "Usage: rankwise check [OPTIONS] FILE...\n" in run("check", "--help").stdout
    assert "Usage: rankwise probe [OPTIONS] PATH\n" in run("probe", "--help").stdout
    assert "Usage: rankwise explain [OPTIONS] [METRIC]\n" in run("explain", "--help").stdout


def test_every_option_of_train_is_in_a_group_once(run):
    command = ALL["train",]
    assert isinstance(command, TrainCommand)
    groups = {param.name: param.rich_help_panel for param in command.params}
    assert {option.name for option in fields(Config)} <= set(groups)
    assert {name for name, group in groups.items() if not group} == {"list", "config", "trials"}
    text = run("train", "--help").stdout
    for group in set(groups.values()) - {None}:
        assert f"\n{group}:\n" in text


def test_the_study_in_the_help_is_one(run, tmp_path, monkeypatch):
    text = run("study", "--help").stdout
    shown = text.partition("study.toml, which compares two optimizers:\n")[2]
    lines = [line.strip() for line in shown.partition("\n\n")[0].splitlines()]
    (tmp_path / "study.toml").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    result = run("study", "run", "study.toml", "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "6 runs: 0 done, 6 left" in result.stdout


def test_examples_name_no_file_of_a_clone(run):
    for words in ALL:
        examples = run(*words, "--help").stdout.partition("Examples:")[2]
        assert not re.search(r"\b(studies|examples|tests|docs)/", examples), words


HEAVY = ["torch", "numpy", "scipy", "pandas", "altair", "ray", "lightning_fabric", "sklearn"]
HEAVY += ["msgspec", "jinja2", "starlette", "rich"]


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


RUN = """
import sys
from rankwise.__main__ import main
sys.argv = {arguments!r}
try:
    code = main()
except SystemExit as end:
    code = end.code
heavy = [name for name in {heavy!r} if sys.modules.get(name)]
sys.exit(code or (f"imported {{heavy}}" if heavy else 0))
"""


def test_completion_imports_no_heavy_package_and_needs_no_network():
    code = RUN.format(arguments=["rankwise"], heavy=HEAVY)
    words = {"COMP_WORDS": "rankwise stu", "COMP_CWORD": "1"}
    done = python(code, _RANKWISE_COMPLETE="complete_bash", **words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "study\n", "")
    words = {"COMP_WORDS": "rankwise probe --in", "COMP_CWORD": "2"}
    done = python(code, _RANKWISE_COMPLETE="complete_bash", **words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "--include\n", "")


def test_names_of_metrics_are_completed():
    code = RUN.format(arguments=["rankwise"], heavy=HEAVY)
    words = {"COMP_WORDS": "rankwise explain stab", "COMP_CWORD": "2"}
    done = python(code, _RANKWISE_COMPLETE="complete_bash", **words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["stable_rank", "stable_rank_by_width"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_is_shown_and_installed(tmp_path):
    for option in ("--show-completion", "--install-completion"):
        script = tmp_path / "run.py"
        script.write_text(RUN.format(arguments=["rankwise", option], heavy=HEAVY))
        done = subprocess.run(
            # Two commands, or bash would give its process to Python.
            ["bash", "-c", f"'{sys.executable}' '{script}'; code=$?; exit $code"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ | {"HOME": str(tmp_path)},
        )
        assert (done.returncode, done.stderr) == (0, "")
    installed = (tmp_path / ".bash_completions" / "rankwise.sh").read_text()
    assert "_RANKWISE_COMPLETE=complete_bash" in installed
    assert "rankwise.sh" in (tmp_path / ".bashrc").read_text()


def test_the_help_of_the_program_imports_no_heavy_package():
    done = python(RUN.format(arguments=["rankwise", "--help"], heavy=HEAVY))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: rankwise")
