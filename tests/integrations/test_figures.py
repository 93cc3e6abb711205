from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ConstantLR

from rankwise import RMSGD, StableRankLR, layer_groups
from rankwise.integrations.figures import figures, unwrapped


def test_an_optimizer_is_found_inside_its_wrappers_and_schedulers(network):
    optimizer = RMSGD(network().named_parameters())
    assert unwrapped(optimizer) is optimizer
    assert unwrapped(SimpleNamespace(optimizer=SimpleNamespace(optimizer=optimizer))) is optimizer
    assert unwrapped(ConstantLR(optimizer)) is optimizer


def test_a_scheduler_is_found_inside_its_wrapper_and_not_taken_for_one(network):
    scheduler = StableRankLR(torch.optim.AdamW(layer_groups(network())))
    assert unwrapped(scheduler) is scheduler
    assert unwrapped(SimpleNamespace(scheduler=scheduler, optimizers=[])) is scheduler


def test_in_another_optimizer_there_is_nothing_to_find(network):
    assert unwrapped(torch.optim.SGD(network().parameters())) is None
    assert unwrapped(None) is None


def test_figures_are_named_by_kind_and_layer(network, batches):
    model = network()
    optimizer = RMSGD(model.named_parameters(), lr=0.05)
    assert figures(optimizer, ("rate", "quality")) == {"rate/hidden": 0.05, "rate/out": 0.05}
    x, y = batches[0]
    cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.epoch_step()
    found = figures(optimizer, ("quality",))
    assert found.keys() == {"quality/hidden", "quality/out", "Q"}
    assert found["quality/out"] == optimizer.last_probe["out.weight"].quality
    assert found["Q"] == pytest.approx(optimizer.last_probe.quality)


def test_without_a_probed_layer_there_is_no_q(network, batches):
    model = network()
    optimizer = RMSGD(model.named_parameters(), exclude="*")
    x, y = batches[0]
    cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.epoch_step()
    assert figures(optimizer, ("stable_rank", "quality")) == {}
