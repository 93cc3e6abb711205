"""`rankwise study run` and `status`: a study on the terminal, for people and for machines."""

import io
import json
import os
import re
import signal
from typing import ClassVar

import pytest
from msgspec.structs import replace

pytest.importorskip("lightning_fabric")

from rich.console import Console
from typer.testing import CliRunner

from rankwise.cli.study import RUN_EXAMPLES, STATUS_EXAMPLES, training
from rankwise.cli.study import study as commands
from rankwise.cli.study.training import EventPrinter, format_event, format_time
from rankwise.lab.records import EpochSeconds, Session
from rankwise.lab.run_folder import RunFolder
from rankwise.study.progress import StudyProgress
from rankwise.study.runner import RunEnded, RunFailed, RunStarted
from tests.lab.runs import NO_LAYERS, epoch


def invoke(*arguments):
    try:
        runner = CliRunner(mix_stderr=False)  # what click before 8.2 has to be told
    except TypeError:
        runner = CliRunner()
    return runner.invoke(commands, [str(given) for given in arguments], env={"COLUMNS": "80"})


STUDY = """
title = "Rates"
trials = 2
[options]
network = "resnet8"
epochs = 2
train_size = 500
[[method]]
label = "SGD"
optimizer = "sgd"
tune = { lr = [0.1, 0.3] }
[[method]]
optimizer = "adam"
"""


def over(config, status="finished"):
    """What is left of a run that was trained; the larger its rate the better."""
    folder = RunFolder(config)
    folder.path.mkdir(parents=True)
    folder.start(Session(started="now"))
    spent = EpochSeconds(step=60.0, trained=60.0)
    for number in (1, 2):
        folder.add(replace(epoch(number, value=config.lr), seconds=spent), NO_LAYERS)
    folder.end(status)
    (folder.path / "weights.safetensors").touch()


class FakeRunner:
    """Writes what training would; some runs fail, or are stopped."""

    failing: ClassVar[dict] = {}

    def __init__(self, jobs=None, retries=2):
        self.jobs = jobs or 2

    def train(self, configs):
        for config in configs:
            yield RunStarted(config.name, "process 1")
            error = self.failing.get(config.optimizer)
            if error == "stop":
                os.kill(os.getpid(), signal.SIGTERM)
            if error:
                yield RunFailed(config.name, error, 1, locked=error == "locked")
            else:
                over(config)
                yield RunEnded(config.name, "finished", 120.0)


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "LocalRunner", FakeRunner)
    path = tmp_path / "rates.toml"
    path.write_text(STUDY, encoding="utf-8")

    return lambda command, *options: invoke(command, path, "--out", tmp_path / "runs", *options)


@pytest.mark.parametrize(
    ("command", "examples"), [("run", RUN_EXAMPLES), ("status", STATUS_EXAMPLES)]
)
def test_help_has_the_examples_and_fits_a_terminal(command, examples):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    lines = {line.strip() for line in result.stdout.splitlines()}
    assert {line.strip() for line in examples.replace("\b", "").splitlines()} <= lines
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_study_is_run_with_a_line_for_each_run_and_what_to_do_next(study, tmp_path):
    result = study("run", "--jobs", 2)
    assert result.exit_code == 0, result.stderr
    lines = result.stderr.splitlines()
    assert lines[0] == "6 runs: 0 done, 6 left, time left not known yet"
    assert lines[1].startswith("[1/6] resnet8-digits-sgd-")
    assert lines[1].endswith("-seed0 finished: test accuracy 10.00 % in 2 min, 10 min left")
    assert lines[-1].startswith("[6/6] ")
    assert lines[-1].endswith(" in 2 min")
    assert len(lines) == 7
    assert result.stdout.splitlines() == [
        "6 runs: 6 done, 0 left",
        f"Next: rankwise study table {tmp_path / 'rates.toml'} --out {tmp_path / 'runs'}",
    ]
    again = study("run")
    assert again.exit_code == 0
    assert again.stdout == result.stdout
    assert again.stderr.splitlines() == ["6 runs: 6 done, 0 left"]


def test_a_study_with_failures_says_which_and_exits_with_1(study, monkeypatch):
    monkeypatch.setattr(FakeRunner, "failing", {"adam": "No \x1b[31mroom."})
    result = study("run")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("6 runs: 4 done, 2 left, about ")
    assert [line.endswith("failed: No \\x1b[31mroom.") for line in lines[1:3]] == [True, True]
    assert "Fix the cause and repeat the command" in lines[3]
    assert "\x1b" not in result.stdout + result.stderr


def test_runs_of_another_process_are_told(study, monkeypatch):
    monkeypatch.setattr(FakeRunner, "failing", {"adam": "locked"})
    result = study("run")
    assert result.exit_code == 1
    assert "2 runs in progress in another process" in result.stdout
    assert "Fix the cause" not in result.stdout


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_stopped_study_says_so_and_exits_with_the_signals_code(study, monkeypatch):
    monkeypatch.setattr(FakeRunner, "failing", {"adam": "stop"})
    result = study("run")
    assert result.exit_code == 128 + signal.SIGTERM
    assert "rankwise: Stopped; the runs in progress are saved. Repeat the command" in result.stderr
    assert result.stdout == ""


def test_a_dry_run_lists_the_runs_and_trains_none(study, tmp_path):
    result = study("run", "--dry-run")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 6
    assert [line.rpartition("-")[2] for line in lines[:4]] == ["seed0", "seed0", "seed0", "seed1"]
    assert lines[4] == "2 more after tuning lr: SGD"
    assert lines[5].startswith("6 runs: 0 done, 6 left")
    assert not (tmp_path / "runs").exists()


def test_a_status_shows_every_point_and_trains_nothing(study, tmp_path):
    before = study("status")
    assert before.exit_code == 0, before.stderr
    assert before.stdout.splitlines() == [
        "Rates",
        "6 runs: 0 done, 6 left, time left not known yet",
        "",
        "grid point  done  tuned",
        "SGD          0/2  lr: 0/2 tried",
        "adam         0/2",
    ]
    assert not (tmp_path / "runs").exists()
    study("run")
    assert study("status").stdout.splitlines()[1:] == [
        "6 runs: 6 done, 0 left",
        "",
        "grid point  done  tuned",
        "SGD          2/2  lr=0.3",
        "adam         2/2",
    ]


def test_a_status_for_machines_is_json(study):
    study("run")
    found = json.loads(study("status", "--json").stdout)
    assert {key: found[key] for key in ("study", "title", "done", "left", "seconds_left")} == {
        "study": "rates",
        "title": "Rates",
        "done": 6,
        "left": 0,
        "seconds_left": 0.0,
    }
    assert found["points"][0] == {
        "labels": {"method": "SGD"},
        "trials": 2,
        "done": 2,
        "diverged": 0,
        "candidates": 2,
        "tried": 2,
        "chosen": {"lr": 0.3},
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "--jobs", "2", "--ray", "auto"), "Expected --jobs or --ray, got both"),
        (("run", "--jobs", "0"), "--jobs"),
        (("run", "--retries", "-1"), "--retries"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_contradictions_are_refused(study, arguments, sentence):
    result = study(*arguments)
    assert result.exit_code == 1
    assert sentence in result.stderr


@pytest.mark.parametrize("command", ["run", "status"])
def test_a_study_that_is_not_there_is_a_sentence(command, tmp_path):
    result = invoke(command, tmp_path / "none.toml")
    assert result.exit_code == 1
    assert result.stderr == f"rankwise: {tmp_path / 'none.toml'}: no such file or folder.\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (89.4, "89 s"), (90, "2 min"), (5300, "88 min"), (5400, "1.5 h")],
)
def test_times_are_as_one_speaks_of_them(seconds, text):
    assert format_time(seconds) == text


def test_a_lost_worker_is_told_and_a_first_attempt_is_not():
    progress = StudyProgress(3, 4, 0, 0, None)
    assert format_event(RunStarted("a", "process 1"), progress, None) == ""
    told = format_event(RunStarted("a", "process 1", 2), progress, None)
    assert told == "[3/7] a: worker lost; attempt 2"


def test_on_a_terminal_a_bar_shows_what_each_worker_is_at_within_80_columns():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, color_system=None)
    name = "resnet8-tiny_imagenet-stable_rank_sgd-0123abcd-seed0"
    progress = StudyProgress(3, 4, 0, 0, 700.0)
    with EventPrinter(console, progress) as printer:
        printer(RunStarted(name, "process 1"), progress, None)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert "3/7" in file.getvalue()
    assert "0:11:40" in file.getvalue()
    assert "process 1" in file.getvalue()
    assert name[:16] in file.getvalue()
