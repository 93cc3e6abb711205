"""Rules for layers' rates over the lab's optimizers."""

import time

import pytest
import torch
from torch import nn

import rankwise
from rankwise.lab import Config, ConfigError
from rankwise.lab.defaults import (
    CONTROLS,
    LAYER_RULES,
    RULES,
    WITH_RULES,
    get_defaults,
    omit_derived,
    resolve,
)
from rankwise.lab.networks import NetworkSpec, build_network
from rankwise.lab.networks.language import build_language_network
from rankwise.lab.optimizers import build_optimizer
from rankwise.study import read_study
from tests.lab.small import Watching, bits, trained

OPTIONS = {"lr": 0.05, "weight_decay": 0.01, "epochs": 2, "batches_per_epoch": 20, "seed": 3}


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(64, 60), nn.Tanh(), nn.Linear(60, 10)),
    ).to(dtype)


def made(optimizer, rule, net, **options):
    return build_optimizer(optimizer, net, rule=rule, **{**OPTIONS, **options})


def run(method, net, epochs=2):
    generator = torch.Generator().manual_seed(1)
    dtype = next(net.parameters()).dtype

    def closure():
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(images), targets)
        loss.backward()
        return loss

    for _ in range(epochs):
        for _ in range(20):
            images = torch.randn(8, 3, 5, 5, generator=generator).to(dtype)
            targets = torch.randint(10, (8,), generator=generator)
            method.optimizer.step(closure)
            method.end_step()
        method.end_epoch()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("optimizer", WITH_RULES)
def test_any_rule_sets_the_rates_of_any_of_these_optimizers(optimizer, rule):
    net = network()
    method = made(optimizer, rule, net)
    run(method, net)
    multipliers = set(method.rates.multipliers().values())
    assert multipliers != {1.0}
    assert len(multipliers) == 1 if rule == "relative-update" else len(multipliers) > 1
    assert method.has_probe == (method.last_probe is not None) == (rule in LAYER_RULES[:2])
    named = [name for group in method.optimizer.param_groups for name in group["param_names"]]
    assert sorted(named) == sorted(name for name, _ in net.named_parameters())


@pytest.mark.parametrize("optimizer", WITH_RULES)
@pytest.mark.parametrize("rule", RULES)
def test_before_the_rule_acts_a_step_is_the_optimizers_own(optimizer, rule):
    plain, ruled = network(torch.float64), network(torch.float64)
    images, targets = torch.randn(8, 3, 5, 5).double(), torch.arange(8)
    for net, name in ((plain, None), (ruled, rule)):
        method = made(optimizer, name, net)
        nn.functional.cross_entropy(net(images), targets).backward()
        method.optimizer.step(lambda: None)
    for (name, one), other in zip(plain.named_parameters(), ruled.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("control", ["mean", "shuffled"])
@pytest.mark.parametrize("rule", LAYER_RULES)
def test_a_control_acts_on_the_rules_own_multipliers(rule, control):
    net = network()
    method = made("adamw", rule, net, control=control)
    run(method, net)
    given = method.rates.state_dict()["_control_state"]["given"]
    present = method.rates.multipliers()
    if control == "mean":
        mean = sum(given.values()) / len(given)
        assert [present[name] for name in given] == pytest.approx([mean] * len(given))
    else:
        found = [present[name] for name in given]
        assert sorted(found) == pytest.approx(sorted(given.values()))
        assert found != pytest.approx(list(given.values()))
    assert method.rates.seed == 3


def test_llr_lasts_a_fifth_of_all_steps_and_leaves_vectors_alone():
    net = network()
    method = made("adamw", "llr", net, epochs=7, batches_per_epoch=30)
    assert method.rates.rule == rankwise.LLR(210)
    run(method, net)
    multipliers = method.rates.multipliers()
    groups = method.optimizer.param_groups
    vectors = [group for group in groups if all(p.ndim < 2 for p in group["params"])]
    assert len(vectors) == 4
    assert {multipliers[group["name"]] for group in vectors} == {1.0}
    assert {group["weight_decay"] for group in groups} == {0.01}  # as without a rule
    assert max(multipliers.values()) == 3.0


def test_steps_are_counted_by_rules_in_steps_alone():
    net = network()
    epochs, steps = made("sgd", "temp-balance", net), made("sgd", "relative-update", net)
    for method in (epochs, steps):
        nn.functional.cross_entropy(net(torch.randn(8, 3, 5, 5)), torch.arange(8)).backward()
        method.optimizer.step(lambda: None)
    before = epochs.rates.last_epoch, steps.rates.last_epoch
    epochs.end_step()
    steps.end_epoch()
    assert before == (epochs.rates.last_epoch, steps.rates.last_epoch)


def test_over_muon_each_layer_keeps_both_kinds_of_groups():
    net = network()
    groups = made("muon", "stable-rank", net).optimizer.param_groups
    plain = build_optimizer("muon", net, lr=0.05, weight_decay=0.01).optimizer.param_groups
    kinds = [
        {name: group["use_muon"] for group in these for name in group["param_names"]}
        for these in (groups, plain)
    ]
    assert kinds[0] == kinds[1]
    assert {group["layer"] for group in groups} == {"0", "3", "7", "9"}


@pytest.mark.parametrize(
    ("optimizer", "rule", "reference"),
    [("sgd", "stable-rank", 0.05), ("sgd", "annealed", 0.05), ("adamw", "stable-rank", 0.03)],
)
def test_over_sgd_gains_are_relative_to_the_first_rate(optimizer, rule, reference):
    options = {"zeta": 2.0, "floor": 0.01, "p": 1.0}
    found = made(optimizer, rule, network(), beta=0.5, rule_options=options).rates.rule
    expected = {"beta": 0.5, "zeta": 2.0, "floor": 0.2, "p": 1.0, "reference": reference}
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)
    assert found.epochs == (2 if rule == "annealed" else None)


def test_the_mlp_has_three_hidden_layers_of_its_width():
    for width, hidden in ((1.0, 256), (0.5, 128)):
        net = build_network("mlp", NetworkSpec(10, channels=1, size=28, width=width))
        weights = [tuple(p.shape) for p in net.parameters() if p.ndim == 2]
        assert weights == [(hidden, 784), (hidden, hidden), (hidden, hidden), (10, hidden)]
        assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert sum(isinstance(part, nn.ReLU) for part in net) == 3


@pytest.mark.parametrize("kind", ["image", "language", "gpt", "gan"])
def test_sgd_with_the_papers_rule_has_rmsgds_settings(kind):
    for rule in ("stable-rank", "annealed"):
        assert get_defaults("sgd", kind, rule) == get_defaults("rmsgd", kind)
    assert get_defaults("sgd", kind, "temp-balance") == get_defaults("sgd", kind)
    adamw = get_defaults("adamw", kind, "stable-rank")
    assert adamw.lr == get_defaults("adamw", kind).lr
    assert (adamw.beta, adamw.schedule) == (get_defaults("rmsgd", kind).beta, "none")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"optimizer": "stable-rank-sgd"}, r"--optimizer sgd --rule stable-rank"),
        ({"optimizer": "stable-rank-adamw"}, r"--optimizer adamw --rule stable-rank"),
        ({"optimizer": "lamb", "rule": "llr"}, "lamb has no option rule; .*rmsgd, sgd, "),
        ({"optimizer": "sgd", "rule": "paper"}, "rule to be one of stable-rank.* for sgd"),
        ({"rule": "stable-rank"}, "rule to be one of paper, annealed for rmsgd"),
        ({"optimizer": "sgd", "rule": "llr", "budget": "10m"}, "epochs for rule llr"),
        ({"optimizer": "adamw", "rule": "llr", "beta": 0.9}, "adamw with rule llr has no .*beta"),
        ({"optimizer": "adamw", "rule": "temp-balance", "p": 1.0}, "no option p"),
        ({"optimizer": "sgd", "control": "mean"}, "rule by layer with control 'mean'.* got none"),
        ({"optimizer": "sgd", "rule": "relative-update", "control": "mean"}, "got relative-upd"),
        ({"optimizer": "sgd", "rule": "llr", "control": "fixed"}, "none, mean, shuffled"),
        ({"control": "mean"}, "no control for rmsgd.*--optimizer sgd --rule stable-rank,"),
        ({"control": "mean", "rule": "annealed"}, "--optimizer sgd --rule annealed,"),
    ],
)
def test_rules_that_do_not_fit_are_refused_in_a_sentence(options, text):
    with pytest.raises(ConfigError, match=text):
        resolve(Config(**options))


@pytest.mark.parametrize("control", [None, "none"])
@pytest.mark.parametrize("optimizer", ["rmsgd", "sgd"])
def test_no_control_is_none_where_there_is_nothing_to_control(optimizer, control):
    assert resolve(Config(optimizer=optimizer, control=control)).control is None


@pytest.mark.parametrize("rule", LAYER_RULES)
def test_the_rule_as_it_is_names_the_same_run_with_and_without_control_none(rule):
    given = Config(optimizer="sgd", rule=rule, epochs=3)
    full = resolve(given)
    assert full.control == "none"
    assert resolve(given.with_(control="none")) == full == resolve(full)
    assert len({resolve(given.with_(control=control)).name for control in CONTROLS}) == 3
    assert omit_derived(full)["control"] is None
    assert omit_derived(resolve(given.with_(control="mean")))["control"] == "mean"


def test_the_variants_of_a_rule_share_their_tuning_runs(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        """
        [options]
        train_size = 500
        epochs = 3
        [tuning]
        control = "none"
        [[method]]
        optimizer = ["sgd", "adamw"]
        schedule = "cosine"
        tune = { lr = [0.01, 0.1] }
        [[method]]
        optimizer = ["sgd", "adamw"]
        rule = ["annealed", "stable-rank", "temp-balance", "llr"]
        control = ["none", "mean", "shuffled"]
        tune = { lr = [0.01, 0.1] }
        """,
        encoding="utf-8",
    )
    points = read_study(file).points
    assert len(points) == 2 + 2 * 4 * 3
    names = {}
    for point in points:
        setting = (point.config.optimizer, point.config.rule)
        found = tuple(resolve(candidate).name for candidate in point.candidates)
        assert names.setdefault(setting, found) == found
    assert len({name for found in names.values() for name in found}) == 2 * (2 + 2 * 4)


@pytest.mark.parametrize("rule", RULES)
def test_a_run_records_the_rates_of_its_layers(tmp_path, rule):
    options = {"optimizer": "sgd", "rule": rule, "epochs": 2, "batch_size": 16, "lr": 0.1}
    options |= {"network": "mlp", "width": 1.0, "schedule": "cosine"}
    run = trained(tmp_path, **options)
    rates = {layer.name: layer.rate for layer in run.layers()}
    assert set(rates) == {"hidden1", "hidden2", "hidden3", "classifier"}
    assert (len(set(rates.values())) == 1) == (rule == "relative-update")
    assert all(layer.rank is not None for layer in run.layers())
    assert run.config.rule == rule
    assert bits(trained(tmp_path / "again", **options)) == bits(run)


@pytest.mark.parametrize("rule", ["llr", "relative-update"])
def test_a_rule_in_steps_acts_within_an_epoch(tmp_path, rule):
    seen = []

    def look(state):
        (method,) = state.optimizers.values()
        seen.append(tuple(method.rates.multipliers().values()))

    trained(tmp_path, network="mlp", optimizer="adamw", rule=rule, callback=Watching(look))
    assert len(set(seen)) > 1


@pytest.mark.parametrize("rule", ["stable-rank", "temp-balance", "llr"])
def test_time_that_a_rule_measures_counts_against_a_budget(tmp_path, monkeypatch, rule):
    """Whether it makes a probe, which has a clock of its own, or not."""

    def measure(self, original=rankwise.LayerwiseLR.step):
        time.sleep(0.1 if rule != "llr" else 0.01)
        original(self)

    monkeypatch.setattr(rankwise.LayerwiseLR, "step", measure)
    run = trained(tmp_path, optimizer="sgd", rule=rule, network="mlp", width=0.1)
    seconds = run.epochs[-1].seconds
    probe = seconds.probe if rule == "stable-rank" else 0.0
    assert seconds.trained == pytest.approx(seconds.data + seconds.step + probe, rel=1e-3)
    assert (probe or seconds.step) > 0.1


def test_a_run_has_the_control_that_it_is_asked_for(tmp_path):
    options = {"optimizer": "sgd", "rule": "temp-balance", "network": "mlp", "epochs": 2}
    own, mean, shuffled = (
        [layer.rate for layer in trained(tmp_path, control=control, **options).layers()]
        for control in CONTROLS
    )
    assert own[1] != own[2]  # of the two layers that are neither first nor last
    assert mean[1] == mean[2] == pytest.approx((own[1] + own[2]) / 2)
    assert shuffled[1] != shuffled[2]
    assert sorted(shuffled) == sorted(own)


def test_a_gpt_takes_every_rule():
    net = build_language_network("gpt", 60, width=0.25, tied=True)
    for rule in RULES:
        method = made("adamw", rule, net)
        assert {id(p) for g in method.optimizer.param_groups for p in g["params"]} == {
            id(p) for p in net.parameters()
        }
