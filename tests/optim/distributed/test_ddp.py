import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankwise
from rankwise.probes import parallel
from tests.optim.distributed.launch import launch
from tests.optim.distributed.training import close, network, train, train_epoch, train_rmsgd


def weights_of(model):
    return [param.detach().clone() for param in model.parameters()]


def equal(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


class Counted:
    """Notes the names of the weights that this process measures."""

    def __enter__(self):
        self.names, self.original = [], parallel.measure_weight
        parallel.measure_weight = self.measure
        return self

    def measure(self, weight, **options):
        if parallel.can_measure(weight):
            self.names.append(weight.name)
        return self.original(weight, **options)

    def __exit__(self, *_):
        parallel.measure_weight = self.original


def replicas():
    model = network()
    names = [name for name, _ in model.named_parameters()]
    ddp = DistributedDataParallel(model)
    rates, optimizer = train_rmsgd(ddp, zip(names, model.parameters(), strict=True))
    train_epoch(ddp, optimizer, 9)
    with Counted() as counted:
        optimizer.epoch_step()
    return {
        "rates": [*rates, optimizer.rates()],
        "weights": weights_of(model),
        "probe": optimizer.last_probe.to_json(),
        "measured": counted.names,
    }


@pytest.mark.parametrize("processes", [2, 3])
def test_replicas_divide_the_probe_and_train_as_one_process_would(tmp_path, processes):
    model = network()
    rates, optimizer = train_rmsgd(model)
    train_epoch(model, optimizer, 9)
    optimizer.epoch_step()
    rates.append(optimizer.rates())
    assert len({round(rate, 9) for rate in rates[-1].values()}) == 4, "layers differ"

    found = launch(replicas, processes, tmp_path)

    assert close(found[0]["rates"], rates)
    shared = rankwise.Probe.from_json(found[0]["probe"])
    assert shared.parameters == sum(param.numel() for param in model.parameters())
    assert shared.coverage == optimizer.last_probe.coverage
    for one in found[1:]:
        assert one["rates"] == found[0]["rates"]
        assert one["probe"] == found[0]["probe"]
        assert equal(one["weights"], found[0]["weights"])
    for mine, alone in zip(found[0]["weights"], weights_of(model), strict=True):
        torch.testing.assert_close(mine, alone, rtol=1e-9, atol=1e-12)
    measured = [name for one in found for name in one["measured"]]
    weights = [name for name, param in model.named_parameters() if param.ndim >= 2]
    assert sorted(measured) == sorted(weights)
    assert all(one["measured"] for one in found)


def broken():
    model = network()
    ddp = DistributedDataParallel(model)
    optimizer = rankwise.RMSGD(model.named_parameters(), lr=0.03, beta=0.9)
    train_epoch(ddp, optimizer, 0)
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.epoch_step()
    train_epoch(ddp, optimizer, 1)
    return [str(one.message) for one in caught], optimizer.rates()


def test_a_layer_that_can_not_be_measured_is_named_on_all_processes(tmp_path):
    found = launch(broken, 2, tmp_path)
    for (message,), rates in found:
        assert "keep their rates: 0 (" in message
        assert rates["0"] == 0.03
        assert rates["3"] != 0.03
        assert rates == found[0][1]


class Skips(nn.Module):
    """Has a layer that takes no part."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = network(), nn.Linear(20, 30, dtype=torch.float64)

    def forward(self, images):
        return self.used(images)


def partly_used():
    model = Skips()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    return train_rmsgd(ddp, list(model.named_parameters()))[0]


def test_an_unused_layer_keeps_its_rate(tmp_path):
    model = network()
    alone = train_rmsgd(model)[0]
    for rates in launch(partly_used, 2, tmp_path):
        assert all(epoch.pop("unused") == 0.03 for epoch in rates)
        assert close(
            [{name.removeprefix("used."): r for name, r in e.items()} for e in rates], alone
        )


def scheduled(threads=False):
    if threads:
        torch.set_num_threads(1 + dist.get_rank())
    dtype = torch.float32 if threads else torch.float64
    model = network(dtype=dtype)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(rankwise.layer_groups(model), lr=1e-3)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.9)
    rates = train(ddp, optimizer, scheduler.step, dtype=dtype)
    return rates, scheduler.last_probe.to_json(), weights_of(model)


def test_stable_rank_lr_gives_all_processes_one_processs_rates(tmp_path):
    model = network()
    optimizer = torch.optim.AdamW(rankwise.layer_groups(model), lr=1e-3)
    alone = train(model, optimizer, rankwise.StableRankLR(optimizer, beta=0.9).step)
    (rates, probe, weights), other = launch(scheduled, 2, tmp_path)
    assert close(rates, alone)
    assert (rates, probe) == other[:2]
    assert equal(weights, other[2])


def test_processes_with_different_thread_counts_get_the_same_rates(tmp_path):
    (rates, probe, weights), other = launch(scheduled, 2, tmp_path, threads=True)
    assert (rates, probe) == other[:2]
    assert equal(weights, other[2])


def too_often():
    ddp = DistributedDataParallel(network())
    optimizer = rankwise.RMSGD(ddp.named_parameters(), lr=0.03, beta=0.98)
    optimizer.epoch_step()
    before = optimizer.rates()
    train_epoch(ddp, optimizer, 0)
    optimizer.epoch_step()
    once = optimizer.rates()
    optimizer.epoch_step()
    return before, once, optimizer.rates()


def test_without_a_step_an_epochs_end_changes_nothing(tmp_path):
    for before, once, twice in launch(too_often, 2, tmp_path):
        assert set(before.values()) == {0.03}
        assert before != once == twice


def own_network(number, seeds, wide=()):
    """A network for each process; some have an output layer of another shape."""
    model = network(seeds[number])
    if number in wide:
        model[8] = nn.Linear(31, 12, dtype=torch.float64)
    return model


def own_networks(seeds, wide=(), share=True, alone=False):
    number = dist.get_rank()
    if alone and number != 1:
        return None
    return train_own(own_network(number, seeds, wide), share)


def train_own(model, share=True):
    optimizer = rankwise.RMSGD(model.named_parameters(), lr=0.03, beta=0.9, share=share)
    source = torch.Generator().manual_seed(1)
    for _ in range(2):
        optimizer.zero_grad()
        images = torch.randn(6, 3, 8, 8, generator=source, dtype=torch.float64)
        model(images).logsumexp(1).sum().backward()
        optimizer.step()
    optimizer.epoch_step()
    return optimizer.rates()


def test_processes_that_train_different_networks_follow_their_own(tmp_path):
    found = launch(own_networks, 2, tmp_path, seeds=[0, 1])
    expected = [train_own(network(seed)) for seed in (0, 1)]
    assert close(found, expected)
    assert not close(found[:1], expected[1:])


@pytest.mark.parametrize(("seeds", "wide"), [([0, 1, 0], ()), ([0, 0, 0], (2,))])
def test_replicas_of_several_networks_follow_theirs(tmp_path, seeds, wide):
    found = launch(own_networks, 3, tmp_path, seeds=seeds, wide=wide)
    assert close(found, [train_own(own_network(number, seeds, wide)) for number in range(3)])
    assert not close(found[1:2], found[2:])


def test_without_sharing_one_process_may_end_its_epoch_alone(tmp_path):
    found = launch(own_networks, 2, tmp_path, seeds=[0, 1], share=False, alone=True)
    assert found[0] is None
    assert close(found[1:], [train_own(network(1))])
