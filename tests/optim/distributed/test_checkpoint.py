"""torch.distributed.checkpoint: saved by some processes, loaded by as many, fewer or more."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rankwise
from tests.optim.distributed.launch import launch
from tests.optim.distributed.training import close, network, place, train, train_epoch


def build(kind, seed=0, lr=0.03):
    model = network(seed)
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (place()[1],)))
    optimizer = rankwise.RMSGD(model.named_parameters(), lr=lr, beta=0.9)
    return DistributedDataParallel(model) if kind == "ddp" else model, optimizer


def go_on(model, optimizer):
    """Ends the epoch in whose middle the checkpoint is, and trains two more."""
    optimizer.epoch_step()
    return [optimizer.rates(), *train(model, optimizer, optimizer.epoch_step, start=2, epochs=4)]


def state_of(optimizer):
    entries = ("rate", "stable_rank", "epoch", "started", "stepped", "base_rate", "floor", "layer")
    return [
        [
            float(group[entry]) if torch.is_tensor(group[entry]) else group[entry]
            for entry in entries
        ]
        for group in optimizer.param_groups
    ]


def save(kind, path):
    model, optimizer = build(kind)
    train(model, optimizer, optimizer.epoch_step, epochs=1)
    train_epoch(model, optimizer, 1)
    for flat in (False, True):
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        weights, state = get_state_dict(model, optimizer, options=options)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{path}-{flat}")
    return state_of(optimizer), go_on(model, optimizer)


def load(kind, path, formats):
    return [load_one(kind, f"{path}-{flat}", flat) for flat in formats]


def load_one(kind, path, flat):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, optimizer = build(kind, seed=1, lr=0.5)
    weights, state = get_state_dict(model, optimizer, options=options)
    fresh = {entry[4] for entry in state_of(optimizer)}
    state_dict = {"model": weights, "optimizer": state}
    dcp.load(state_dict, checkpoint_id=path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state_dict["model"],
        optim_state_dict=state_dict["optimizer"],
        options=options,
    )
    return fresh, state_of(optimizer), go_on(model, optimizer)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_run_resumes_in_the_middle_of_an_epoch_on_any_number_of_processes(tmp_path, kind):
    options = {"kind": kind, "path": str(tmp_path / "saved")}
    saved = launch(save, 2, tmp_path, **options)
    assert saved[0] == saved[1]
    state, rates = saved[0]
    for both in launch(load, 2, tmp_path, formats=[False, True], **options):
        assert both == [({False}, state, rates)] * 2, "asking for a state is no step"
    for processes in (1, 3):
        for loaded in launch(load, processes, tmp_path, formats=[False], **options):
            ((_, loaded_state, loaded_rates),) = loaded
            assert loaded_state == state
            assert close(loaded_rates, rates)


def test_asking_for_a_state_is_no_step_for_stable_rank_lr():
    """A state dict's first making takes a step at rate 0, before the weights are loaded."""
    model = network()
    optimizer = torch.optim.SGD(rankwise.layer_groups(model), lr=0.01)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.9)
    get_state_dict(model, optimizer)
    scheduler.step()
    assert set(scheduler.rates().values()) == {0.01}
    other = network(seed=1)
    model.load_state_dict(other.state_dict())
    expected = torch.optim.SGD(rankwise.layer_groups(other), lr=0.01)
    alone = train(other, expected, rankwise.StableRankLR(expected, beta=0.9).step)
    assert train(model, optimizer, scheduler.step) == alone
