import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import rankwise
from rankwise.optim import distributed, epoch_end, quantities
from rankwise.optim.distributed import all_gather_json, any_process, get_rank, get_world_size
from tests.optim.distributed.launch import launch
from tests.optim.distributed.training import network, train_epoch


def gather():
    rank = dist.get_rank()
    data = {"rank": rank, "text": "é" * 1000 * rank, "nan": [float("inf"), 0.1, None]}
    conditions = [any_process(rank == 1, share=share) for share in (True, False)]
    return all_gather_json(data), *conditions


def test_every_process_gets_what_each_one_sent(tmp_path):
    for rank, (received, shared, alone) in enumerate(launch(gather, 3, tmp_path)):
        assert [data["rank"] for data in received] == [0, 1, 2]
        assert received[2]["text"] == "é" * 2000
        assert received[1]["nan"] == [float("inf"), 0.1, None]
        assert shared
        assert alone is (rank == 1)


def test_a_single_process_sends_nothing():
    assert (get_world_size(), get_rank()) == (1, 0)
    assert any_process(True, share=True) is True
    assert any_process(False, share=True) is False


def test_torch_may_come_without_distributed(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "is_initialized")
    assert (get_world_size(), get_rank()) == (1, 0)


def one_process():
    ddp = DistributedDataParallel(network())
    optimizer = rankwise.RMSGD(ddp.named_parameters(), lr=0.03, beta=0.98)
    train_epoch(ddp, optimizer, 0)
    epoch_end.all_gather_json = distributed.all_gather_json = None  # nothing is exchanged
    optimizer.epoch_step()
    return len(optimizer.last_probe.probed)


def test_a_group_of_one_process_exchanges_nothing(tmp_path):
    assert launch(one_process, 1, tmp_path) == [4]


@pytest.mark.parametrize(
    ("config", "device"),
    [
        ("cpu:gloo,cuda:gloo,xpu:gloo", "cpu"),
        ("cpu:gloo,cuda:nccl", "cpu"),
        ("cuda:nccl", "cuda"),
        ("xpu:xccl", "xpu"),
        ("cpu:mpi", "cpu"),
    ],
)
def test_data_is_sent_from_a_device_that_the_backend_knows(monkeypatch, config, device):
    monkeypatch.setattr(dist, "get_backend_config", lambda: config)
    assert distributed._communication_device() == torch.device(device)


@pytest.mark.parametrize(("backend", "device"), [("gloo", "cpu"), ("nccl", "cuda")])
def test_torch_describes_the_devices_of_a_backend_as_expected(monkeypatch, backend, device):
    config = dist.distributed_c10d.BackendConfig(dist.Backend(backend))
    monkeypatch.setattr(dist, "get_backend_config", lambda: repr(config))
    assert distributed._communication_device() == torch.device(device)


def error_of(action, *arguments):
    """The error on a process that waits for one that has died."""
    try:
        action(*arguments)
    except rankwise.DistributedError as error:
        return str(error)
    return "none"


def dies(before):
    """The last process dies before the exchange, or between its two halves."""
    ddp = DistributedDataParallel(network())
    optimizer = rankwise.RMSGD(ddp.named_parameters(), lr=0.03, beta=0.98)
    train_epoch(ddp, optimizer, 0)
    if dist.get_rank() == dist.get_world_size() - 1:
        if before:
            os._exit(7)
        quantities.measure_weights = lambda *_, **__: os._exit(7)
    return error_of(optimizer.epoch_step)


@pytest.mark.parametrize(("processes", "before"), [(3, True), (2, False)])
def test_a_process_that_dies_does_not_hang_the_others(tmp_path, processes, before):
    found = launch(dies, processes, tmp_path, dying=[processes - 1], before=before)
    assert all("Has one of them died" in message for message in found[:-1])


def dies_with_a_piece(first):
    """The last process dies when it is to give its piece of a weight."""
    model = fully_shard(network(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = rankwise.RMSGD(model.named_parameters(), lr=0.03, beta=0.98)
    die = dist.get_rank() == dist.get_world_size() - 1

    def last():
        if die:
            DTensor.full_tensor = lambda *_, **__: os._exit(7)

    if first:
        last()
        return error_of(train_epoch, model, optimizer, 0)
    train_epoch(model, optimizer, 0)
    last()
    return error_of(optimizer.epoch_step)


@pytest.mark.parametrize("first", [True, False])
def test_a_process_that_dies_with_a_piece_of_a_weight_does_not_hang_the_others(tmp_path, first):
    message, _ = launch(dies_with_a_piece, 2, tmp_path, dying=[1], first=first)
    assert "Has one of them died" in message
