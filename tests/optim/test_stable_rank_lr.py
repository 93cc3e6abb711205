"""StableRankLR: the rule for any optimizer."""

import copy
import gc
import re
import warnings
import weakref

import pytest
import pytorch_optimizer
import torch
from torch import nn
from torch.optim import lr_scheduler

import rankwise
from rankwise.errors import ArgumentError

BATCHES = 3


def task():
    """A network and a batch with structure in it, so that stable ranks move."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16))
    inputs = torch.randn(64, 3) @ torch.randn(3, 24)
    return net, inputs, inputs @ torch.randn(24, 16)


def train(net, inputs, targets, optimizer, scheduler, *, epochs, every_step=False):
    for _ in range(epochs):
        for _ in range(BATCHES):
            optimizer.zero_grad()
            (net(inputs) - targets).square().mean().backward()
            optimizer.step()
            if every_step:
                scheduler.step()
        if not every_step:
            scheduler.step()


class Ends:
    """RMSGD's epoch_step() under the name that schedulers have for it."""

    def __init__(self, optimizer):
        self.step = optimizer.epoch_step


def by_hand(net, inputs, targets, optimizer, epochs, *, beta, zeta=1.0, floor=0.01):
    """The relative rule of METHOD §4, written out over rankwise.probe."""
    ranks = {row.name: row.stable_rank for row in rankwise.probe(net).probed}
    multipliers = dict.fromkeys(ranks, 1.0)
    for _ in range(epochs):
        for _ in range(BATCHES):
            optimizer.zero_grad()
            (net(inputs) - targets).square().mean().backward()
            optimizer.step()
        for row in rankwise.probe(net).probed:
            gain = zeta / 0.03 * (row.stable_rank - ranks[row.name])
            multipliers[row.name] = max(beta * multipliers[row.name] + gain, floor)
            ranks[row.name] = row.stable_rank
        for group, name in zip(optimizer.param_groups, multipliers, strict=True):
            group["lr"] = group["initial_lr"] * multipliers[name]


def optimizer_for(net, lr=0.01):
    return torch.optim.AdamW(rankwise.layer_groups(net), lr=lr)


def test_the_relative_rule():
    net, *data = task()
    twin = copy.deepcopy(net)
    optimizer = optimizer_for(net)
    train(net, *data, optimizer, rankwise.StableRankLR(optimizer, beta=0.9), epochs=8)
    other = optimizer_for(twin)
    for group in other.param_groups:
        group["initial_lr"] = group["lr"]
    by_hand(twin, *data, other, 8, beta=0.9)
    rates, expected = ([g["lr"] for g in o.param_groups] for o in (optimizer, other))
    assert rates == pytest.approx(expected, rel=1e-9)
    assert rates[0] != pytest.approx(rates[1], rel=1e-3)


def test_it_is_rmsgd_s_rule_where_the_first_rate_is_the_reference():
    """RMSGD = its step + this rule: without momentum the steps are the same too."""
    net, *data = task()
    twin = copy.deepcopy(net)
    sgd = torch.optim.SGD(rankwise.layer_groups(net), lr=0.03)
    scheduler = rankwise.StableRankLR(sgd, beta=0.9)
    train(net, *data, sgd, scheduler, epochs=6)
    rmsgd = rankwise.RMSGD(twin.named_parameters(), lr=0.03, momentum=0, beta=0.9)
    train(twin, *data, rmsgd, Ends(rmsgd), epochs=6)
    assert list(rmsgd.rates().values()) == pytest.approx(list(scheduler.rates().values()), rel=1e-6)


@pytest.mark.parametrize("options", [{"variant": "annealed"}, {"p": 1.0}])
def test_it_has_rmsgd_s_variants(options):
    net, *data = task()
    twin = copy.deepcopy(net)
    sgd = torch.optim.SGD(rankwise.layer_groups(net), lr=0.03)
    scheduler = rankwise.StableRankLR(sgd, epochs=6, **options)
    train(net, *data, sgd, scheduler, epochs=6)
    rmsgd = rankwise.RMSGD(twin.named_parameters(), lr=0.03, momentum=0, epochs=6, **options)
    train(twin, *data, rmsgd, Ends(rmsgd), epochs=6)
    rates = list(scheduler.rates().values())
    assert list(rmsgd.rates().values()) == pytest.approx(rates, rel=1e-6)
    assert rates[0] != pytest.approx(rates[1], rel=1e-3)


def make_sam(groups):
    return pytorch_optimizer.SAM(groups, base_optimizer=torch.optim.SGD, lr=0.01)


@pytest.mark.parametrize(
    "make",
    [
        lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
        lambda groups: torch.optim.AdamW(groups, lr=0.01),
        lambda groups: torch.optim.RMSprop(groups, lr=0.01),
        lambda groups: torch.optim.Adafactor(groups, lr=0.01),
        lambda groups: pytorch_optimizer.Lion(groups, lr=0.01),
        lambda groups: pytorch_optimizer.AdaBelief(groups, lr=0.01),
        lambda groups: rankwise.RMSGD(groups, lr=0.01),
    ],
    ids=["SGD", "AdamW", "RMSprop", "Adafactor", "Lion", "AdaBelief", "RMSGD"],
)
def test_any_optimizer(make):
    net, *data = task()
    optimizer = make(rankwise.layer_groups(net))
    scheduler = rankwise.StableRankLR(optimizer, beta=0.9)
    train(net, *data, optimizer, scheduler, epochs=3)
    assert all(rate != 0.01 for rate in scheduler.rates().values())
    assert scheduler.last_probe.probed
    assert scheduler.last_probe.parameters == sum(param.numel() for param in net.parameters())


def test_muon_for_the_matrices():
    net, *data = task()
    matrices = [(name, p) for name, p in net.named_parameters() if p.ndim == 2]
    optimizer = torch.optim.Muon(rankwise.layer_groups(matrices), lr=0.01)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.9)
    train(net, *data, optimizer, scheduler, epochs=3)
    assert all(rate != 0.01 for rate in scheduler.rates().values())


def test_an_optimizer_that_steps_with_a_closure():
    net, inputs, targets = task()
    optimizer = make_sam(rankwise.layer_groups(net))
    scheduler = rankwise.StableRankLR(optimizer, beta=0.9)
    before = rankwise.probe(net)

    def closure():
        optimizer.zero_grad()
        loss = (net(inputs) - targets).square().mean()
        loss.backward()
        return loss

    for _ in range(BATCHES):
        closure()
        optimizer.step(closure)
    scheduler.step()
    expected = [
        max(0.9 + (new.stable_rank - old.stable_rank) / 0.03, 0.01)
        for new, old in zip(rankwise.probe(net).probed, before.probed, strict=True)
    ]
    assert [rate / 0.01 for rate in scheduler.rates().values()] == pytest.approx(expected)


def test_the_first_rates_are_the_optimizer_s_own():
    net, *_ = task()
    optimizer = optimizer_for(net, lr=0.007)
    scheduler = rankwise.StableRankLR(optimizer)
    assert scheduler.get_last_lr() == [0.007, 0.007]


def test_nothing_changes_without_a_step_of_the_optimizer():
    net, *data = task()
    optimizer = optimizer_for(net)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.9)
    train(net, *data, optimizer, scheduler, epochs=1)
    once = scheduler.rates()
    scheduler.step()
    scheduler.step()
    assert scheduler.rates() == once


def test_called_every_step_it_updates_every_epoch():
    net, *data = task()
    twin = copy.deepcopy(net)
    optimizer, other = optimizer_for(net), optimizer_for(twin)
    per_step = rankwise.StableRankLR(optimizer, beta=0.9, steps_per_epoch=BATCHES)
    train(net, *data, optimizer, per_step, epochs=4, every_step=True)
    per_epoch = rankwise.StableRankLR(other, beta=0.9)
    train(twin, *data, other, per_epoch, epochs=4)
    assert per_step.rates() == per_epoch.rates()


def test_an_epoch_in_steps_counts_the_optimizer_s_steps_not_the_calls():
    net, inputs, targets = task()
    optimizer = optimizer_for(net)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.9, steps_per_epoch=2)
    (net(inputs) - targets).square().mean().backward()
    optimizer.step()
    for _ in range(5):
        scheduler.step()
    assert list(scheduler.rates().values()) == [0.01, 0.01]
    optimizer.step()
    scheduler.step()
    assert list(scheduler.rates().values()) != [0.01, 0.01]


def test_after_a_warm_up_in_sequential_lr_it_starts_from_the_base_rates():
    net, *data = task()
    optimizer = optimizer_for(net)
    warm_up = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3)
    own = rankwise.StableRankLR(optimizer, beta=0.9)
    scheduler = lr_scheduler.SequentialLR(optimizer, [warm_up, own], milestones=[3])
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.001] * 2)
    train(net, *data, optimizer, scheduler, epochs=3)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.01]
    start = {row.name: row.stable_rank for row in rankwise.probe(net).probed}
    train(net, *data, optimizer, scheduler, epochs=1)
    multipliers = [
        max(0.9 + (row.stable_rank - start[row.name]) / 0.03, 0.01)
        for row in rankwise.probe(net).probed
    ]
    assert [g["lr"] / 0.01 for g in optimizer.param_groups] == pytest.approx(multipliers)


def test_first_in_sequential_lr():
    net, *data = task()
    optimizer = optimizer_for(net)
    own = rankwise.StableRankLR(optimizer, beta=0.9)
    later = lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    scheduler = lr_scheduler.SequentialLR(optimizer, [own, later], milestones=[2])
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.01]
    train(net, *data, optimizer, scheduler, epochs=1)
    assert [group["lr"] for group in optimizer.param_groups] != [0.01, 0.01]


def test_schedulers_that_multiply_compose():
    net, *data = task()
    twin = copy.deepcopy(net)
    optimizer = torch.optim.SGD(rankwise.layer_groups(net), lr=0.0)
    other = torch.optim.SGD(rankwise.layer_groups(twin), lr=0.0)
    for some in (optimizer, other):
        for group in some.param_groups:
            group["lr"] = group["initial_lr"] = 0.01
    own = rankwise.StableRankLR(optimizer, beta=0.9)
    factor = lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    alone = rankwise.StableRankLR(other, beta=0.9)
    # One epoch: the rates act on training only afterwards, so both networks are still the same.
    train(net, *data, optimizer, own, epochs=1)
    factor.step()
    train(twin, *data, other, alone, epochs=1)
    halved = [rate / 2 for rate in alone.rates().values()]
    assert list(own.rates().values()) == pytest.approx(halved)


def test_resuming_goes_on_exactly(tmp_path):
    def build():
        net, *data = task()
        optimizer = optimizer_for(net)
        return net, data, optimizer, rankwise.StableRankLR(optimizer, beta=0.9)

    net, data, optimizer, scheduler = build()
    train(net, *data, optimizer, scheduler, epochs=2)
    (net(data[0]) - data[1]).square().mean().backward()
    optimizer.step()  # in the middle of an epoch
    parts = {"net": net, "optimizer": optimizer, "scheduler": scheduler}
    torch.save({name: part.state_dict() for name, part in parts.items()}, tmp_path / "saved.pt")
    train(net, *data, optimizer, scheduler, epochs=3)

    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    again, data, optimizer, resumed = build()
    for name, part in (("net", again), ("optimizer", optimizer), ("scheduler", resumed)):
        part.load_state_dict(saved[name])
    train(again, *data, optimizer, resumed, epochs=3)
    assert resumed.rates() == scheduler.rates()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


def test_the_state_does_not_grow():
    net, *data = task()
    optimizer = optimizer_for(net)
    scheduler = rankwise.StableRankLR(optimizer)
    entries = []
    for _ in range(2):
        train(net, *data, optimizer, scheduler, epochs=3)
        entries.append(re.sub(r"\d[\d.e-]*", "0", str(scheduler.state_dict())))
    assert entries[0] == entries[1]


def test_a_saved_state_is_a_copy():
    net, *data = task()
    optimizer = optimizer_for(net)
    scheduler = rankwise.StableRankLR(optimizer)
    saved = scheduler.state_dict()
    kept = copy.deepcopy(saved)
    train(net, *data, optimizer, scheduler, epochs=1)
    assert saved == kept


def test_a_state_of_another_network_is_refused():
    net, *_ = task()
    large = rankwise.StableRankLR(optimizer_for(net)).state_dict()
    small = rankwise.StableRankLR(optimizer_for(nn.Linear(4, 4)))
    with pytest.raises(ArgumentError, match="1 parameter groups, got one for 2"):
        small.load_state_dict(large)


def test_a_deep_copy_watches_its_own_optimizer():
    net, inputs, targets = task()
    optimizer = optimizer_for(net)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.5)
    net, scheduler = copy.deepcopy((net, scheduler))
    assert scheduler.optimizer is not optimizer
    # What the optimizer holds is the copied network's, as both were copied together.
    (net(inputs) - targets).square().mean().backward()
    scheduler.optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a copy's step() was overridden
        scheduler.step()
    assert list(scheduler.rates().values()) != [0.01, 0.01]


def test_the_optimizer_does_not_keep_the_scheduler_alive():
    net, inputs, targets = task()
    optimizer = optimizer_for(net)
    gone = weakref.ref(rankwise.StableRankLR(optimizer))
    gc.collect()
    assert gone() is None
    (net(inputs) - targets).square().mean().backward()
    optimizer.step()


def test_tensor_rates_are_filled_in_place():
    net, *data = task()
    optimizer = torch.optim.AdamW(rankwise.layer_groups(net), lr=torch.tensor(0.01))
    for group in optimizer.param_groups:
        group["lr"] = group["lr"].clone()
    held = [group["lr"] for group in optimizer.param_groups]
    scheduler = rankwise.StableRankLR(optimizer, beta=0.9)
    train(net, *data, optimizer, scheduler, epochs=2)
    assert all(g["lr"] is t for g, t in zip(optimizer.param_groups, held, strict=True))
    assert held[0] != held[1]


def test_groups_that_come_later_are_taken_in():
    net, inputs, targets = task()
    head = nn.Linear(16, 16)
    optimizer = optimizer_for(net)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.5)
    train(net, inputs, targets, optimizer, scheduler, epochs=1)
    optimizer.add_param_group({"params": head.named_parameters(), "lr": 0.02, "name": "head"})
    train(nn.Sequential(net, head), inputs, targets, optimizer, scheduler, epochs=1)
    assert scheduler.rates()["head"] == pytest.approx(0.01, rel=0.5)


def test_frozen_layers_keep_their_rates():
    net, *data = task()
    net[0].requires_grad_(requires_grad=False)
    optimizer = optimizer_for(net)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.5)
    train(net, *data, optimizer, scheduler, epochs=2)
    assert scheduler.rates()["0"] == 0.01
    assert scheduler.rates()["2"] != 0.01


def test_one_group_for_all_follows_the_mean_stable_rank():
    net, *data = task()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03)
    with pytest.warns(UserWarning, match="several layers in one: group0"):
        scheduler = rankwise.StableRankLR(optimizer, beta=0.9)
    start = [row.stable_rank for row in rankwise.probe(net).probed]
    train(net, *data, optimizer, scheduler, epochs=1)
    gains = [row.stable_rank for row in rankwise.probe(net).probed]
    expected = max(0.9 * 0.03 + sum(gains) / 2 - sum(start) / 2, 0.0003)
    assert scheduler.rates() == {"group0": pytest.approx(expected)}


def test_a_layer_that_is_not_finite_keeps_its_rate_and_is_named():
    net, *data = task()
    optimizer = optimizer_for(net)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.5)
    train(net, *data, optimizer, scheduler, epochs=1)
    kept = scheduler.rates()["0"]
    (net(data[0]) - data[1]).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        net[0].weight[0, 0] = torch.nan
    with pytest.warns(UserWarning, match=r"could not be measured and keep their rates: 0 \("):
        scheduler.step()
    assert scheduler.rates()["0"] == kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 1.5}, "beta between 0 and 1"),
        ({"zeta": -1.0}, "zeta ≥ 0"),
        ({"floor": float("nan")}, "floor ≥ 0"),
        ({"reference": 0.0}, "reference > 0"),
        ({"variant": "released"}, "'paper' or 'annealed', got 'released'"),
        ({"variant": "annealed"}, "epochs for variant"),
        ({"epochs": 0}, "epochs of 1 or more"),
        ({"p": -1.0}, "p > 0"),
        ({"steps_per_epoch": 0}, "steps_per_epoch of 1 or more"),
        ({"steps_per_epoch": 2.5}, "steps_per_epoch of 1 or more"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    net, *_ = task()
    with pytest.raises(ArgumentError, match=message):
        rankwise.StableRankLR(optimizer_for(net), **options)
