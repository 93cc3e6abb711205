"""The steps of action.yml, run by bash in a git repository with real checkpoints."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rankwise
from tests import ROOT
from tests.checks.networks import plant

yaml = pytest.importorskip("yaml")
pytest.importorskip("typer")

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
SCRIPT = ROOT / ".github" / "check_weights.sh"
SOURCES = str(Path(rankwise.__file__).parents[1])
COMMAND = Path(sys.executable).with_name("rankwise")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"
ODD_NAME = 'sub dir/::error::"a\nb".safetensors'


def git(folder, *arguments):
    options = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    command = ["git", *options, *arguments]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    result = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return result.stdout.strip()


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "change")
    return git(folder, "rev-parse", "HEAD")


def save(path, *, broken=False):
    weight = plant(32, 32)
    if broken:
        weight[1, 2] = torch.nan
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"fc.weight": weight}, path)


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "old.safetensors").write_text("untouched")
    (folder / "gone.pt").write_text("untouched")
    (folder / "notes.txt").write_text("none")
    commit(folder)
    return folder


@pytest.fixture
def recorder(tmp_path):
    """A `rankwise` that writes down its arguments and exits as it is told."""
    path = tmp_path / "recorder"
    path.write_text('#!/bin/sh\nprintf \'%s\\0\' "$@" >"$RECORD"\necho said\nexit "${CODE:-0}"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def run_script(repository, recorder, tmp_path):
    """Run the script; return the result with the arguments that rankwise was given."""

    def run(command=recorder, **variables):
        record = tmp_path / "record"
        record.unlink(missing_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": SOURCES,
            "TMPDIR": str(tmp_path),
            "RANKWISE": str(command),
            "RECORD": str(record),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
            **variables,
        }
        result = subprocess.run(
            ["bash", SCRIPT],
            cwd=repository,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        arguments = record.read_text().split("\0")[:-1] if record.exists() else None
        return result, arguments

    return run


def list_files(arguments):
    return arguments[arguments.index("--") + 1 :]


def test_changed_weight_files_are_checked_and_nothing_else(repository, run_script):
    before = git(repository, "rev-parse", "HEAD")
    for name in ("new.PT", "a/model.ckpt", "b/pytorch_model-1.bin", "data.bin", "t.npz", ODD_NAME):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("new")
    git(repository, "mv", "gone.pt", "moved.pt")
    commit(repository)
    result, arguments = run_script(RANKWISE_SINCE=before)
    assert result.returncode == 0
    assert arguments[: arguments.index("--")] == ["check", "--fail-on", "error"]
    expected = {"new.PT", "a/model.ckpt", "b/pytorch_model-1.bin", "moved.pt", ODD_NAME}
    assert set(list_files(arguments)) == expected


def test_without_changes_nothing_runs(repository, run_script, tmp_path):
    before = git(repository, "rev-parse", "HEAD")
    (repository / "gone.pt").unlink()
    (repository / "notes.txt").write_text("changed")
    commit(repository)
    result, arguments = run_script(RANKWISE_SINCE=before)
    assert (result.returncode, arguments) == (0, None)
    assert "no weight file changed" in result.stdout
    assert "no weight file changed" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_and_the_text_are_passed_on(repository, run_script, tmp_path, code):
    result, _ = run_script(CODE=str(code))
    assert result.returncode == code
    assert result.stdout == "said\n"
    assert "text\nsaid\n```" in (tmp_path / "summary.md").read_text()


def test_names_do_not_act_as_commands_of_the_workflow(run_script):
    first, said, last = run_script(GITHUB_ACTIONS="true")[0].stdout.splitlines()
    token = first.removeprefix("::stop-commands::")
    assert (said, last) == ("said", f"::{token}::")
    assert len(token) > len("rankwise-")


@pytest.mark.parametrize("event", ["", "0" * 40, "f" * 40])
def test_all_weight_files_are_checked_where_no_earlier_revision_is_known(run_script, event):
    result, arguments = run_script(EVENT_SINCE=event)
    assert result.returncode == 0
    assert sorted(list_files(arguments)) == ["gone.pt", "old.safetensors"]
    assert "all weight files" in result.stderr


def test_a_revision_that_the_user_gives_must_exist(run_script):
    result, arguments = run_script(RANKWISE_SINCE="no-such-branch")
    assert (result.returncode, arguments) == (1, None)
    assert "no-such-branch" in result.stderr


def test_a_shallow_clone_fetches_what_it_compares_with(repository, run_script, tmp_path):
    before = git(repository, "rev-parse", "HEAD")
    (repository / "new.pt").write_text("new")
    commit(repository)
    moved = repository.rename(tmp_path / "origin")
    git(moved, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(tmp_path, "clone", "--quiet", "--depth=1", moved.as_uri(), str(repository))
    result, arguments = run_script(EVENT_SINCE=before)
    assert result.returncode == 0
    assert list_files(arguments) == ["new.pt"]
    _, arguments = run_script(EVENT_SINCE="")
    assert list_files(arguments) == ["gone.pt", "new.pt", "old.safetensors"]


def test_given_files_and_options_reach_the_command(repository, run_script):
    for name in ("deep/er/a b.npz", "deep/c.npz", "-d.pt", "e f/g.npz"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("untracked")
    result, arguments = run_script(
        RANKWISE_FILES="  deep/**/*.npz\n\n-d.pt\ne f/*.npz\nmissing.pt",
        RANKWISE_IGNORE="dead-filters\n  looks-untrained:pooler.* \n",
        RANKWISE_FAIL_ON="warning",
        RANKWISE_BASE="the base.pt",
        RANKWISE_SARIF="out.sarif",
    )
    assert result.returncode == 0
    assert arguments == [
        *("check", "--fail-on", "warning"),
        *("--ignore", "dead-filters", "--ignore", "looks-untrained:pooler.*"),
        *("--base", "the base.pt", "--sarif", "out.sarif", "--"),
        *("deep/c.npz", "deep/er/a b.npz", "-d.pt", "e f/g.npz", "missing.pt"),
    ]


def test_a_glob_without_files_is_an_error(run_script):
    result, arguments = run_script(RANKWISE_FILES="weights/*.safetensors")
    assert (result.returncode, arguments) == (1, None)
    assert "no file matches" in result.stderr


def test_a_clean_a_broken_and_an_unfetched_checkpoint(repository, run_script, tmp_path):
    before = git(repository, "rev-parse", "HEAD")
    (repository / "torch.py").write_text("raise SystemExit('code of the repository was run')")
    save(repository / "clean.pt")
    clean = commit(repository)
    result, _ = run_script(COMMAND, RANKWISE_SINCE=before)
    assert (result.returncode, result.stderr) == (0, "")
    assert "no problems found" in result.stdout

    save(repository / ODD_NAME, broken=True)
    broken = commit(repository)
    sarif = repository / "out.sarif"
    result, _ = run_script(COMMAND, RANKWISE_SINCE=clean, RANKWISE_SARIF=sarif.name)
    assert result.returncode == 2
    assert "not-finite" in (tmp_path / "summary.md").read_text()
    (found,) = json.loads(sarif.read_text())["runs"][0]["results"]
    assert found["ruleId"] == "not-finite"

    (repository / "pointer.safetensors").write_text(POINTER)
    commit(repository)
    result, _ = run_script(COMMAND, RANKWISE_SINCE=broken)
    assert result.returncode == 1
    assert "pointer.safetensors: a Git LFS pointer" in result.stdout


def test_the_steps_take_their_inputs_from_the_environment_alone():
    steps = ACTION["runs"]["steps"]
    used = set()
    for step in steps:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
        used |= set(re.findall(r"inputs\.([a-z-]+)", " ".join(step["env"].values())))
    assert used == set(ACTION["inputs"])
    assert all("default" in option for option in ACTION["inputs"].values())


def fill_in(text, inputs):
    """Replace the expressions of a workflow; those of the event are empty."""
    return re.sub(
        r"\${{ (?:inputs\.([a-z-]+)|github\.[^}]*) }}",
        lambda match: inputs[match[1]] if match[1] else "",
        text,
    )


# What the installing Python does instead: it writes down what it would install.
FAKE_PYTHON = """#!/bin/sh
printf '%s\\0' "$@" '' >>"{log}"
[ "$2" = venv ] || exit 0
mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && ln -s "{command}" "$3/bin/rankwise"
"""


def test_the_steps_run_one_after_the_other(repository, tmp_path):
    save(repository / "a model.pt", broken=True)
    log, python = tmp_path / "log", tmp_path / "python3"
    python.write_text(FAKE_PYTHON.format(log=log, command=COMMAND))
    python.chmod(0o755)
    given = {
        "files": "*.pt",
        "ignore": "not-finite:*.weight",
        "torch": "torch >= 2.4, < 3",
        "pip-args": "--pre \n --no-deps",
        "python": str(python),
    }
    inputs = {name: option["default"] for name, option in ACTION["inputs"].items()} | given
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": SOURCES,
        "RUNNER_TEMP": str(tmp_path / "with space"),
        "GITHUB_ACTION_PATH": str(ROOT),
    }
    (repository / "gone.pt").unlink()
    for step in ACTION["runs"]["steps"]:
        variables = {name: fill_in(value, inputs) for name, value in step["env"].items()}
        result = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=repository,
            env=environment | variables,
            check=False,
            capture_output=True,
            text=True,
        )
        assert (result.returncode, result.stderr) == (0, "")
    commands = [part.split("\0") for part in log.read_text().split("\0\0")[:-1]]
    install = ["-m", "pip", "install", "--quiet"]
    assert commands == [
        ["-m", "venv", str(tmp_path / "with space" / "rankwise")],
        [*install, "--pre", "--no-deps", "torch >= 2.4, < 3"],
        [*install, f"{ROOT}[cli,onnx]"],
    ]
    assert "1 finding ignored" in result.stdout
