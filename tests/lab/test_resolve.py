"""Options as given become options as run."""

import dataclasses
import math
import re

import pytest

import rankwise
from rankwise.lab import Config, ConfigError
from rankwise.lab.defaults import kind_of, resolve


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"network": "resnet18", "optimizer": "sgd"},
            {"lr": 0.1, "weight_decay": 5e-4, "momentum": 0.9, "beta": None, "epochs": 250}
            | {"schedule": "none", "batch_size": 128, "clip": None, "image_size": None},
        ),
        (
            {"network": "resnet18", "optimizer": "rmsgd"},
            {"lr": 0.03, "beta": 0.98, "weight_decay": 5e-4, "epochs": 250, "schedule": "none"},
        ),
        (
            {"network": "lstm2", "optimizer": "sgd"},
            {"lr": 30.0, "weight_decay": 1e-6, "clip": 0.25, "batch_size": 80, "epochs": 200}
            | {"schedule": "step", "step_size": 75, "gamma": 0.1},
        ),
        (
            {"network": "lstm1", "optimizer": "rmsgd"},
            {"lr": 15.0, "beta": 0.9, "clip": 0.25, "schedule": "none"},
        ),
        (
            {"network": "wgan", "optimizer": "rmsgd"},
            {
                "lr": 0.5,
                "beta": rankwise.beta_for(100),
                "epochs": 100,
                "image_size": 32,
                "batch_size": 64,
            },
        ),
        ({"network": "wgan-gp", "optimizer": "adam"}, {"lr": 3e-4, "beta": None}),
    ],
    ids=["sgd", "rmsgd", "lstm-sgd", "lstm-rmsgd", "wgan-rmsgd", "wgan-gp-adam"],
)
def test_the_papers_settings_are_filled_in(options, expected):
    found = resolve(Config(**options))
    assert {name: getattr(found, name) for name in expected} == expected


def test_what_is_given_stays():
    given = {"lr": 0.5, "momentum": 0.0, "weight_decay": 0.0, "epochs": 3, "batch_size": 9}
    found = resolve(Config(optimizer="sgd", schedule="cosine", clip=0.0, **given))
    assert {name: getattr(found, name) for name in given} == given
    assert (found.schedule, found.clip) == ("cosine", 0.0)
    assert resolve(Config(network="wgan", image_size=64)).image_size == 64


def test_resolving_twice_changes_nothing():
    once = resolve(Config(network="lstm1", optimizer="sgd"))
    assert resolve(once) == once
    assert resolve(Config(optimizer="sgd", lr=0.1)).name == resolve(Config(optimizer="sgd")).name


@pytest.mark.parametrize("optimizer", ["sgd", "rmsgd"])
@pytest.mark.parametrize(("network", "steps"), [("resnet20", (25, 0.5)), ("lstm1", (75, 0.1))])
def test_schedule_step_is_that_of_the_paper(network, optimizer, steps):
    found = resolve(Config(network=network, optimizer=optimizer, schedule="step"))
    assert (found.schedule, found.step_size, found.gamma) == ("step", *steps)


def test_schedule_step_takes_given_steps():
    found = resolve(Config(optimizer="sgd", schedule="step", step_size=3))
    assert (found.step_size, found.gamma) == (3, 0.5)


def test_a_budget_takes_the_place_of_epochs():
    assert resolve(Config(budget="10m")).epochs is None
    with pytest.raises(ConfigError, match="epochs or a budget, got both"):
        resolve(Config(epochs=3, budget="10m"))


@pytest.mark.parametrize("optimizer", ["rmsgd", "sgd", "adamw"])
def test_beta_follows_the_number_of_epochs(optimizer):
    given = Config(optimizer=optimizer, rule="paper" if optimizer == "rmsgd" else "stable-rank")
    found = [resolve(given.with_(epochs=n)).beta for n in (15, 250)]
    assert found == [rankwise.beta_for(15), pytest.approx(0.98)]
    assert resolve(given.with_(budget="10m")).beta == 0.98
    assert resolve(given.with_(epochs=15, beta=0.5)).beta == 0.5
    assert resolve(given.with_(epochs=15, rule="annealed")).beta == 0.98


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"optimizer": "sam", "rule": "annealed"}, "sam has no option rule"),
        ({"optimizer": "adam", "zeta": 2.0}, "adam has no option zeta"),
        ({"rule": "released"}, "rule to be one of paper, annealed for rmsgd, got 'released'"),
        ({"rule": "annealed", "budget": "10m"}, "epochs for rule annealed"),
        ({"validate": True}, "train_size with validate"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        resolve(Config(**options))


BAD = [
    *((name, 0) for name in ("epochs", "batch_size", "length", "critic_steps", "devices")),
    *((name, -1) for name in ("epochs", "step_size", "workers", "seed")),
    *((name, -0.5) for name in ("lr", "weight_decay", "momentum", "clip", "width", "gamma")),
    *((name, math.nan) for name in ("lr", "weight_decay", "momentum", "clip", "width", "gamma")),
    *((name, math.inf) for name in ("lr", "weight_decay", "width", "gamma")),
    *((name, 0.0) for name in ("lr", "width", "gamma")),
    *(("beta", value) for value in (-0.1, 1.5, math.nan)),
    *(("dropout", value) for value in (-0.1, 1.0, math.nan)),
    ("momentum", 1.0),
    ("image_size", 0),
    ("precision", "16"),
    ("schedule", "linear"),
    ("log", "csv,nowhere"),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value}" for name, value in BAD])
def test_a_value_out_of_range_is_refused_in_a_sentence(name, value):
    wrong = "'nowhere'" if name == "log" else f"got {value!r}"
    with pytest.raises(ConfigError, match=re.escape(wrong)) as refused:
        resolve(Config(**{name: value}))
    assert name in str(refused.value)
    assert str(refused.value).endswith((".", "?"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": "soon"}, "Expected a budget such as"),
        ({"optimizer": "sdg"}, "There is no optimizer 'sdg'. Did you mean sgd"),
        ({"optimizer": "adamw-layer-decay"}, "a transformer, such as vit or gpt"),
        ({"optimizer": "schedulefree-sgd", "network": "wgan"}, "Use wgan-gp, or another"),
    ],
    ids=["budget", "optimizer", "no blocks", "clipped"],
)
def test_what_cannot_be_is_refused(options, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        resolve(Config(**options))


@pytest.mark.parametrize("network", ["vit", "gpt", "timm:vit_tiny_patch16_224"])
def test_layer_decay_is_for_transformers_of_other_packages_too(network):
    assert resolve(Config(optimizer="adamw-layer-decay", network=network)).network == network


@pytest.mark.parametrize("log", ["", "csv", "csv,tensorboard", "wandb,mlflow"])
def test_loggers_are_taken_by_their_names(log):
    assert resolve(Config(log=log)).log == log


@pytest.mark.parametrize(
    ("network", "kind"),
    [("wgan", "gan"), ("lstm3", "language"), ("gpt", "gpt"), ("vit", "image")],
)
def test_a_network_is_for_one_kind_of_data(network, kind):
    assert kind_of(network) == kind


def test_nothing_that_matters_is_left_open():
    left = {n for n, v in dataclasses.asdict(resolve(Config())).items() if v is None}
    # No budget beside epochs, no clipping, no sizes beside what the data has, no rule to control.
    assert left == {"budget", "clip", "image_size", "train_size", "dropout", "control"}


def test_the_rule_s_own_values_name_the_same_run_as_none():
    said = {"rule": "paper", "zeta": 1.0, "floor": 0.0003, "p": 2.0}
    assert resolve(Config(**said)).name == resolve(Config()).name
