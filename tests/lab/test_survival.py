"""Runs that are killed, stopped, or robbed of their disk go on as if nothing had happened."""

import random
import signal

import pytest
import torch

from rankwise.lab import load_run
from rankwise.lab.run_folder import load_state
from tests.lab.processes import SMALL, Child, contents, finish, only_run, wait_for

KILLS = 6


def is_over(folder):
    return folder.exists() and any(folder.glob("*/outcome.json"))


def count_lines(folder, name):
    """How many records of a kind the one run of a folder has."""
    return sum(len(file.read_text().splitlines()) for file in folder.glob(f"*/{name}.jsonl"))


def wait_for_lines(folder, name, least):
    wait_for(lambda: count_lines(folder, name) >= least)


@pytest.mark.parametrize("optimizer", ["rmsgd", "adamw", "schedulefree-adamw"])
def test_killed_at_random_moments_a_run_ends_with_the_same_bits(tmp_path, optimizer):
    options = {**SMALL, "optimizer": optimizer, "epochs": 12, "cutout": True}
    finish(tmp_path, {**options, "out": str(tmp_path / "whole")})
    whole = load_run(only_run(tmp_path / "whole"))
    epoch = whole.last.seconds.trained / len(whole.epochs)
    moments = random.Random(optimizer)  # noqa: S311
    out, runs = tmp_path / "killed", 0
    for kill in range(KILLS):
        if is_over(out / str(runs)):  # kill another one
            runs += 1
        folder = out / str(runs)
        sessions, epochs = (count_lines(folder, name) for name in ("sessions", "epochs"))
        child = Child(tmp_path, {**options, "out": str(folder)})
        wait_for_lines(folder, "sessions", sessions + 1)
        wait_for_lines(folder, "epochs", min(epochs + kill % 3, options["epochs"]))
        child.process.join(moments.uniform(0, epoch))
        child.kill()
    for folder in out.iterdir():
        finish(tmp_path, {**options, "out": str(folder)})
        assert contents(only_run(folder)) == contents(whole.folder)
    sessions = load_run(only_run(out / "0")).sessions()
    assert len({session.epoch for session in sessions}) > 2  # it went on from several places


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        *((name, None) for name in ("rmsgd", "schedulefree-sgd", "prodigy", "lars", "lamb")),
        *(("adamw", rule) for rule in ("llr", "relative-update", "temp-balance")),
        ("muon", "annealed"),
    ],
)
def test_a_run_stopped_in_the_middle_of_an_epoch_goes_on_from_there(tmp_path, optimizer, rule):
    options = {**SMALL, "optimizer": optimizer, "rule": rule, "epochs": 2, "batch_size": 8}
    finish(tmp_path, {**options, "out": str(tmp_path / "whole")})
    out = tmp_path / "stopped"
    child = Child(tmp_path, {**options, "out": str(out)})
    wait_for(lambda: any(out.glob("*/sessions.jsonl")))
    child.send(signal.SIGTERM)
    code, text = child.end()
    assert code == 3
    assert "all of it is saved" in text
    state = load_state(only_run(out))
    assert 0 < state["batch"] < 179
    finish(tmp_path, {**options, "out": str(out)})
    assert contents(only_run(out)) == contents(only_run(tmp_path / "whole"))


def test_a_language_model_stopped_in_an_epoch_keeps_its_memory(tmp_path):
    text = tmp_path / "text.txt"
    words = random.Random(0)  # noqa: S311
    lines = (" ".join(words.choices("abcdefgh", k=9)) for _ in range(2000))
    text.write_text("\n".join(lines), encoding="utf-8")
    options = {"network": "lstm1", "width": 0.02, "data": f"text:{text}", "optimizer": "rmsgd"}
    options |= {"epochs": 2, "batch_size": 4, "length": 10, "lr": 1.0}
    finish(tmp_path, {**options, "out": str(tmp_path / "whole")})
    out = tmp_path / "stopped"
    child = Child(tmp_path, {**options, "out": str(out)})
    wait_for(lambda: any(out.glob("*/sessions.jsonl")))
    child.send(signal.SIGTERM)
    child.end()
    assert load_state(only_run(out))["batch"] > 0
    finish(tmp_path, {**options, "out": str(out)})
    assert contents(only_run(out)) == contents(only_run(tmp_path / "whole"))


def test_a_broken_state_is_warned_of_and_the_one_before_taken(tmp_path):
    options = {**SMALL, "optimizer": "sgd", "epochs": 3}
    finish(tmp_path, {**options, "out": str(tmp_path / "whole")})
    finish(tmp_path, {**options, "out": str(tmp_path / "broken")})
    run = only_run(tmp_path / "broken")
    (run / "outcome.json").unlink()
    newest = max(run.glob("state-*.pt"))
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="is broken"):
        assert load_state(run)["epoch"] == 2
    finish(tmp_path, {**options, "out": str(tmp_path / "broken")})
    assert contents(run) == contents(only_run(tmp_path / "whole"))


def test_a_full_disk_is_a_sentence_and_no_finished_epoch_is_lost(tmp_path):
    options = {**SMALL, "optimizer": "adam", "epochs": 3, "out": str(tmp_path / "runs")}
    # Records fit in it, but a state does not.
    code, text = Child(tmp_path, options, limit=20_000).end()
    assert code == 3
    assert "The disk is full" in text
    assert "repeat the command" in text
    run = only_run(tmp_path / "runs")
    assert not list(run.glob(".*.tmp"))
    finish(tmp_path, options)
    assert len(load_run(run).epochs) == 3
    finish(tmp_path, {**options, "out": str(tmp_path / "whole")})
    assert contents(run) == contents(only_run(tmp_path / "whole"))


def test_a_second_process_is_kept_off_a_run(tmp_path):
    options = {**SMALL, "optimizer": "sgd", "epochs": 200, "out": str(tmp_path / "runs")}
    first = Child(tmp_path, options)
    wait_for(lambda: any((tmp_path / "runs").glob("*/sessions.jsonl")))
    code, text = Child(tmp_path, options).end()
    first.kill()
    assert code == 3
    assert "Another process is training" in text


def test_a_run_that_diverges_is_recorded_as_such(tmp_path):
    options = {**SMALL, "optimizer": "sgd", "lr": 1e20, "epochs": 3}
    finish(tmp_path, {**options, "out": str(tmp_path / "runs")})
    run = load_run(only_run(tmp_path / "runs"))
    assert run.status == "diverged"
    assert len(run.epochs) == 1
    assert run.last.train["loss"] is None
    assert torch.load(max(run.folder.glob("state-*.pt")), weights_only=True)["epoch"] == 1
