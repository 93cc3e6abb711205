import os
import re
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import fields

import pytest

pytest.importorskip("lightning_fabric")
pytest.importorskip("sklearn")

from rankwise.cli.train import TRAIN_EXAMPLES
from rankwise.lab import Config, load_run, load_runs

TINY = ("--network", "resnet8", "--width", "0.25", "--accelerator", "cpu")


@pytest.fixture
def train(run, tmp_path):
    def invoke(*arguments, **environment):
        return run("train", *TINY, "--out", tmp_path / "runs", *arguments, **environment)

    return invoke


def test_help_lists_every_option_and_the_examples(run):
    result = run("train", "--help", COLUMNS="80")
    assert result.exit_code == 0
    words = set(re.findall(r"--[a-z-]+", result.stdout))
    assert {f"--{field.name.replace('_', '-')}" for field in fields(Config)} <= words
    assert {"--config", "--trials", "--no-augment", "--no-cutout"} <= words
    lines = {line.strip() for line in result.stdout.splitlines()}
    assert {line.strip() for line in TRAIN_EXAMPLES.replace("\b", "").splitlines()} <= lines


def test_a_run_shows_progress_on_stderr_and_tables_on_stdout(train, tmp_path):
    result = train("--optimizer", "rmsgd", "--epochs", "2", "--trials", "2")
    assert result.exit_code == 0, result.stderr
    runs = load_runs(tmp_path / "runs")
    assert [run.status for run in runs] == ["finished"] * 2
    assert sorted(run.config.seed for run in runs) == [0, 1]
    assert "resnet8 on digits by rmsgd, seed 1" in result.stderr
    assert result.stderr.count("epoch   2  loss") == 2
    for run in runs:
        assert f"  {run.folder}\n" in result.stderr
    assert "seed" not in result.stdout
    lines = result.stdout.splitlines()
    assert any(line.split()[:3] == ["layer", "rank", "s"] for line in lines)
    assert any(line.startswith("stem.conv ") for line in lines)
    assert lines[-2].split()[:4] == ["setting", "n", "test", "accuracy"]
    assert lines[-1].split()[:2] == ["rmsgd", "2"]
    assert max(map(len, lines)) <= 80
    assert "layer" not in result.stderr

    again = train("--optimizer", "rmsgd", "--epochs", "2", "--trials", "2")
    assert again.stdout == result.stdout
    assert "epoch   2" not in again.stderr  # they were over


def test_options_come_from_toml_and_those_given_win(train, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('optimizer = "sgd"\nbatch-size = 256\nseed = 4\nepochs = 1\ntrials = 2\n')
    assert train("--config", file, "--seed", "7", "--cutout").exit_code == 0
    runs = load_runs(tmp_path / "runs")
    assert sorted(run.config.seed for run in runs) == [7, 8]
    config = runs[0].config
    assert (config.optimizer, config.batch_size, config.cutout) == ("sgd", 256, True)
    assert (config.network, config.width) == ("resnet8", 0.25)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("optimiser = 'sgd'", "there is no option 'optimiser'. Did you mean optimizer?"),
        ("lr = 'fast'", "lr should be float, got 'fast'."),
        ("trials = 'two'", "trials should be int, got 'two'."),
        ("trials = 0", "Expected --trials of 1 or more, got 0."),
        ("lr = ", "is not valid TOML"),
    ],
)
def test_a_wrong_toml_file_is_a_sentence(train, tmp_path, content, sentence):
    file = tmp_path / "run.toml"
    file.write_text(content)
    result = train("--config", file)
    assert result.exit_code == 1
    assert result.stderr.startswith("rankwise: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--trials", "0"), "Expected --trials of 1 or more, got 0."),
        (("--lr", "-1"), "Expected lr to be above 0"),
        (("--lr", "fast"), "--lr"),
        (("--optimizer", "sdg"), "There is no optimizer 'sdg'. Did you mean sgd"),
        (("--network", "resnet19"), "resnet18"),
        (("--epochs", "1", "--budget", "10m"), "epochs or a budget, got both"),
        (("--budget", "soon"), "got 'soon'"),
        (("--data", "cifar10", "--data-root", "nowhere"), "nowhere"),
        (("--config", "nowhere.toml"), "nowhere.toml: no such file or folder."),
        (("--accelerator", "abacus"), "abacus"),
        (("--no-such-option",), "no-such-option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_is_one_line_and_exit_code_1(train, arguments, sentence):
    result = train(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("rankwise: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_as_out_is_named(train, tmp_path):
    (tmp_path / "file").touch()
    result = train("--epochs", "1", "--out", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert f"Expected a folder as --out, got the file {tmp_path / 'file'}." in result.stderr


def test_without_the_extra_it_says_what_to_install(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    result = train("--epochs", "1")
    assert result.exit_code == 1
    assert result.stderr == (
        "rankwise: Training needs the package 'lightning-fabric': pip install lightning-fabric\n"
    )


def test_a_diverged_run_is_a_result_not_an_error(train, tmp_path):
    result = train("--optimizer", "sgd", "--lr", "1e20", "--epochs", "2")
    assert result.exit_code == 0, result.stderr
    assert "diverged after 1 epoch: loss –" in result.stderr
    assert "0 (1 diverged)" in result.stdout
    (run,) = load_runs(tmp_path / "runs")
    assert run.status == "diverged"


def test_a_broken_state_is_warned_of_in_a_line(train, tmp_path):
    asked = ("--optimizer", "sgd", "--epochs", "2")
    train(*asked)
    (run,) = load_runs(tmp_path / "runs")
    (run.folder / "outcome.json").unlink()
    newest = max(run.folder.glob("state-*.pt"))
    newest.write_bytes(newest.read_bytes()[:-5])
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as outside of tests, where they are no errors
        result = train(*asked)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith("Warning: ")
    assert "is broken (its checksum does not match)" in result.stderr
    assert "from epoch 2 on" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_sigterm_stops_it_cleanly_and_the_same_command_goes_on(train, tmp_path):
    out = tmp_path / "runs"
    command = [sys.executable, "-m", "rankwise", "train", *TINY, "--optimizer", "sgd"]
    command += ["--epochs", "1", "--batch-size", "16", "--out", str(out)]
    first = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    end = time.monotonic() + 200
    while not any(out.glob("*/sessions.jsonl")) and time.monotonic() < end:
        time.sleep(0.01)
    first.send_signal(signal.SIGTERM)
    stdout, stderr = first.communicate(timeout=200)
    assert first.returncode == 128 + signal.SIGTERM == 143, stderr
    assert stdout == ""
    assert re.search(
        r"rankwise: Stopped after 0 epochs and \d+ batches; all of it is saved", stderr
    )
    assert "Traceback" not in stderr
    run = load_run(next(out.iterdir()))
    assert run.status == "unfinished"
    assert list(run.folder.glob("state-00000-*.pt"))

    asked = ("--optimizer", "sgd", "--epochs", "1", "--batch-size", "16")
    result = train(*asked)
    assert result.exit_code == 0, result.stderr
    assert ", from epoch 1 on" in result.stderr
    assert load_run(run.folder).status == "finished"


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_an_interruption_has_its_own_exit_code(train, tmp_path, monkeypatch):
    def interrupt(*_):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("rankwise.cli.training_progress.TrainingProgress.on_batch", interrupt)
    result = train("--optimizer", "sgd", "--epochs", "1", "--batch-size", "256")
    assert result.exit_code == 130
