"""Every rule on several processes: one process's rates, and the work divided."""

import copy

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rankwise
from rankwise.optim import quantities
from tests.optim.distributed.launch import launch
from tests.optim.distributed.training import close, network, place, train

RULES = {
    "TempBalance": lambda: rankwise.TempBalance(dropped=()),
    "LLR": lambda: rankwise.LLR(10, every=2, transition=1, share=0.9, fewest=3),
    "RelativeUpdate": lambda: rankwise.RelativeUpdate(every=2),
}


def train_with(model, name, net=None):
    optimizer = torch.optim.AdamW(rankwise.layer_groups(model), lr=0.01)
    scheduler = rankwise.LayerwiseLR(optimizer, RULES[name](), every="epoch", control=None)
    rates = train(net or model, optimizer, scheduler.step)
    return rates, scheduler


def replicas(name):
    model = network()
    counted, original = [], quantities._measure

    def measure(weight, *arguments):
        counted.append(weight.name)
        return original(weight, *arguments)

    quantities._measure = measure
    rates, scheduler = train_with(model, name, DistributedDataParallel(model))
    return rates, counted, [reading.name for reading in scheduler.last_readings]


@pytest.mark.parametrize("name", RULES)
def test_replicas_divide_the_measuring_and_get_one_process_s_rates(tmp_path, name):
    alone, scheduler = train_with(network(), name)
    assert set(scheduler.multipliers().values()) != {1.0}
    found = launch(replicas, 2, tmp_path, name=name)
    for rates, counted, layers in found:
        assert rates == found[0][0]
        assert close(rates, alone, 1e-9)
        assert counted
        assert layers == ["0", "3", "5", "8"]
    measured = sum(len(counted) for _, counted, _ in found)
    assert measured == 3 * len(scheduler.rule.select(scheduler.last_readings))


def in_pieces(name):
    model = network()
    mesh = init_device_mesh("cpu", (place()[1],))
    for part in model:
        if list(part.parameters()):
            fully_shard(part, mesh=mesh)
    rates, scheduler = train_with(fully_shard(model, mesh=mesh), name)
    copied = copy.deepcopy(scheduler.state_dict())
    scheduler.load_state_dict(copied)
    return rates


@pytest.mark.parametrize("name", RULES)
def test_sharded_weights_get_the_rates_of_whole_ones(tmp_path, name):
    alone, _ = train_with(network(), name)
    found = launch(in_pieces, 2, tmp_path, name=name)
    assert found[0] == found[1]
    assert close(found[0], alone, 1e-9)
