"""Two processes do what one does with the same global batch, to rounding."""

import pytest
import torch
from safetensors.torch import load_file

from rankwise.lab import load_run
from tests.lab.processes import SMALL, finish, only_run, several

# In float64 what is left of a difference is rounding, not chaos that has grown out of it.
PRECISE = {"precision": "64", "epochs": 2}


def both(tmp_path, options, **more):
    finish(tmp_path, {**options, "out": str(tmp_path / "one")})
    several(tmp_path, {**options, **more, "out": str(tmp_path / "two")})
    return (load_run(only_run(tmp_path / name)) for name in ("one", "two"))


def differ(one, two):
    first, second = load_file(one.weights), load_file(two.weights)
    assert first.keys() == second.keys()
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


# On CPUs each process has a batch normalisation of its own, so a network without any.
PLAIN = {"network": "vit", "width": 0.1, "data": "digits", "image_size": 16, "train_size": 128}
PLAIN |= {"batch_size": 64}


@pytest.mark.parametrize("optimizer", ["rmsgd", "sam", "sls", "schedulefree-sgd", "prodigy"])
def test_two_processes_train_what_one_does(tmp_path, optimizer):
    one, two = both(tmp_path, {**PLAIN, **PRECISE, "optimizer": optimizer, "lr": 1e-3})
    assert differ(one, two) < 1e-9
    for a, b in zip(one.epochs, two.epochs, strict=True):
        assert a.test["accuracy"] == b.test["accuracy"]
        assert a.train["loss"] == pytest.approx(b.train["loss"], rel=1e-9)
    for a, b in zip(one.layers(), two.layers(), strict=True):
        assert a.name == b.name
        assert a.rate == pytest.approx(b.rate, rel=1e-6)


def test_a_network_with_batch_normalisation_trains_on_two_processes(tmp_path):
    several(tmp_path, {**SMALL, "epochs": 2, "optimizer": "rmsgd", "out": str(tmp_path / "two")})
    run = load_run(only_run(tmp_path / "two"))
    assert run.status == "finished"
    assert run.epochs[1].train["loss"] < run.epochs[0].train["loss"]


def test_two_processes_train_a_gan(tmp_path):
    options = {"network": "wgan-gp", "width": 0.07, "data": "digits", "image_size": 8}
    options |= {"optimizer": "rmsprop", "epochs": 1, "critic_steps": 2, "train_size": 512}
    one, two = both(tmp_path, options)
    assert two.status == "finished"
    # Each process has a batch normalisation of its own; the rest is the same.
    assert two.last.test["frechet"] == pytest.approx(one.last.test["frechet"], rel=0.5)


def test_two_processes_train_the_language_model_that_one_does(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog lay by the door\n" * 60, encoding="utf-8")
    options = {"network": "lstm1", "width": 0.02, "data": f"text:{text}", "optimizer": "sgd"}
    options |= {**PRECISE, "batch_size": 4, "length": 10, "lr": 1.0, "dropout": 0.0}
    one, two = both(tmp_path, options)
    assert differ(one, two) < 1e-9


@pytest.mark.parametrize("rule", ["annealed", "temp-balance", "llr", "relative-update"])
def test_two_processes_set_the_rates_that_one_does(tmp_path, rule):
    options = {**PLAIN, **PRECISE, "width": 0.25, "optimizer": "sgd", "rule": rule, "lr": 1e-3}
    one, two = both(tmp_path, options)
    assert differ(one, two) < 1e-9
    for a, b in zip(one.layers(), two.layers(), strict=True):
        assert a.rate == pytest.approx(b.rate, rel=1e-6)


def test_a_run_may_go_on_with_another_number_of_processes(tmp_path):
    options = {**PLAIN, **PRECISE, "optimizer": "rmsgd", "out": str(tmp_path / "runs")}
    finish(tmp_path, options)
    run = only_run(tmp_path / "runs")
    before = load_file(run / "weights.safetensors")
    (run / "outcome.json").unlink()
    newest = max(run.glob("state-*.pt"))
    newest.unlink()  # as if it had been stopped after the first epoch
    newest.with_suffix(".json").unlink()
    several(tmp_path, options)
    after = load_file(run / "weights.safetensors")
    assert torch.equal(
        torch.tensor([bool((before[n] - after[n]).abs().max() < 1e-9) for n in before]),
        torch.ones(len(before), dtype=torch.bool),
    )


def test_processes_whose_clocks_differ_agree_on_the_time(tmp_path):
    out = tmp_path / "runs"
    options = {**SMALL, "optimizer": "rmsgd", "schedule": "cosine", "budget": "3s"}
    several(tmp_path, {**options, "out": str(out)})
    run = load_run(only_run(out))
    assert run.status == "finished"
    assert run.last.seconds.trained >= 3
