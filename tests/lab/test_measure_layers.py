"""Any optimizer's network can be looked at, layer by layer."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import rankwise
from rankwise.lab.networks.language import build_language_network
from rankwise.lab.optimizers import EpochOptimizer, build_optimizer
from rankwise.lab.training_state import measure_layers


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def method(name, model, **options):
    return build_optimizer(name, model, **{"lr": 0.1, "weight_decay": 0.0, **options})


@pytest.fixture
def probes(monkeypatch):
    """What `rankwise.probe` was asked for."""
    asked, original = [], rankwise.probe

    def counted(what, **options):
        asked.append(what)
        return original(what, **options)

    monkeypatch.setattr(rankwise, "probe", counted)
    return asked


def taught(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    inputs, targets = torch.randn(16, 3, 8, 8), torch.randint(10, (16,))
    for _ in range(3):
        optimizer.step(closure)


def test_a_network_of_sgd_is_probed_as_rankwise_probes(probes):
    model = network()
    with torch.no_grad():  # something to find
        model[0].weight.copy_((torch.randn(16, 1) @ torch.randn(1, 27)).view(16, 3, 3, 3))
    found, _ = measure_layers({"": model}, {"": method("sgd", model)})
    assert len(probes) == 1
    expected = rankwise.probe(model).probed
    assert found.name == ["0", "5"] == [layer.name.removesuffix(".weight") for layer in expected]
    for metric in ("stable_rank", "condition", "quality", "rank"):
        assert getattr(found, metric) == [getattr(layer, metric) for layer in expected]
    assert found.rank[0] > 0
    assert found.rate == [0.1, 0.1]
    assert found.network_quality == rankwise.probe(model).quality


@pytest.mark.parametrize(("name", "rule"), [("rmsgd", None), ("sgd", "stable-rank")])
def test_what_the_optimizer_has_measured_is_not_measured_again(probes, name, rule):
    model = network()
    by = method(name, model, beta=0.5, rule=rule)
    taught(model, by.optimizer)
    by.end_epoch()
    measured = by.last_probe
    probes.clear()
    found, _ = measure_layers({"": model}, {"": by})
    assert probes == []
    assert found.quality == [layer.quality for layer in measured.probed]
    rates = {param: group["lr"] for group in by.optimizer.param_groups for param in group["params"]}
    assert found.rate == [rates[model[0].weight], rates[model[5].weight]]
    assert min(found.rate) != 0.1


def test_each_layer_has_its_own_rate():
    model = network()
    by = method("rmsgd", model)
    for group in by.optimizer.param_groups:
        group["lr"] = 0.7 if any(p is model[5].weight for p in group["params"]) else 0.3
    found, _ = measure_layers({"": model}, {"": by})
    assert dict(zip(found.name, found.rate, strict=True)) == {"0": 0.3, "5": 0.7}
    assert found.rate_range == (0.3, 0.7)


def test_a_rate_that_is_a_tensor_is_a_number_here():
    model = network()
    by = EpochOptimizer(torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25)))
    assert measure_layers({"": model}, {"": by})[0].rate == [0.25, 0.25]


def test_the_parts_of_a_gan_are_told_apart():
    parts = {"generator": nn.Linear(20, 30), "critic": nn.Sequential(nn.Linear(30, 20))}
    methods = {
        "generator": method("sgd", parts["generator"], lr=0.2),
        "critic": method("sgd", parts["critic"], lr=0.4),
    }
    found, figures = measure_layers(parts, methods)
    together = nn.ModuleDict(parts)
    assert figures == rankwise.probe(together).figures
    assert found.name == ["generator.weight", "critic.0"]
    assert found.rate == [0.2, 0.4]
    qualities = [rankwise.probe(part).quality for part in parts.values()]
    assert found.network_quality == pytest.approx(rankwise.network_quality(qualities))


@pytest.mark.parametrize("name", ["sgd", "rmsgd"])
def test_tied_weights_are_one_layer(name):
    model = build_language_network("lstm1", 40, width=0.05, tied=True)
    by = method(name, model)
    names = measure_layers({"": model}, {"": by})[0].name
    assert len(names) == len(set(names))
    assert ("embedding" in names) + ("decoder" in names) == 1


def test_a_layer_that_is_no_number_is_there_without_metrics():
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = torch.nan
    found, _ = measure_layers({"": model}, {"": method("sgd", model)})
    assert found.name == ["0", "5"]
    assert [
        getattr(found, metric)[0] for metric in ("stable_rank", "condition", "quality", "rank")
    ] == [None] * 4
    assert found.rate == [0.1, 0.1]
    assert found.quality[1] is not None
    assert found.network_quality == found.quality[1]


def test_without_layers_there_is_nothing_to_tell():
    model = nn.BatchNorm1d(4)
    found, _ = measure_layers({"": model}, {"": method("sgd", model)})
    assert found.name == []
    assert found.network_quality is None
    assert found.rate_range is None
