import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import rankwise
from rankwise.optim import distributed as exchange
from rankwise.optim import ranks
from rankwise.optim.distributed import anyone, everyone_tells, process_count, process_number
from tests.optim.distributed.launch import launch
from tests.optim.distributed.training import network, train_epoch


def tells():
    number = dist.get_rank()
    said = {"number": number, "text": "é" * 1000 * number, "nan": [float("inf"), 0.1, None]}
    return everyone_tells(said), anyone(number == 1, share=True), anyone(number == 1, share=False)


def test_everyone_hears_what_everyone_said(tmp_path):
    found = launch(tells, 3, tmp_path)
    for heard, shared, alone in found:
        assert [one["number"] for one in heard] == [0, 1, 2]
        assert heard[2]["text"] == "é" * 2000
        assert heard[1]["nan"] == [float("inf"), 0.1, None]
        assert shared
        assert alone is (heard is found[1][0])


def test_a_process_alone_tells_nobody():
    assert (process_count(), process_number()) == (1, 0)
    assert anyone(True, share=True) is True
    assert anyone(False, share=True) is False


def test_torch_may_come_without_distributed(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "is_initialized")
    assert (process_count(), process_number()) == (1, 0)


def one_process():
    ddp = DistributedDataParallel(network())
    optimizer = rankwise.RMSGD(ddp.named_parameters(), lr=0.03)
    train_epoch(ddp, optimizer, 0)
    ranks.everyone_tells = exchange.everyone_tells = None  # nothing is exchanged
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
    assert exchange._device() == torch.device(device)


@pytest.mark.parametrize(("backend", "device"), [("gloo", "cpu"), ("nccl", "cuda")])
def test_torch_tells_of_a_backends_devices_as_expected(monkeypatch, backend, device):
    config = dist.distributed_c10d.BackendConfig(dist.Backend(backend))
    monkeypatch.setattr(dist, "get_backend_config", lambda: repr(config))
    assert exchange._device() == torch.device(device)


def told_by(what, *arguments):
    """What a process is told that waits for one that has died."""
    try:
        what(*arguments)
    except rankwise.ExchangeError as error:
        return str(error)
    return "nothing"


def dies(before):
    """The last process dies before the exchange, or between its two halves."""
    ddp = DistributedDataParallel(network())
    optimizer = rankwise.RMSGD(ddp.named_parameters(), lr=0.03)
    train_epoch(ddp, optimizer, 0)
    if dist.get_rank() == dist.get_world_size() - 1:
        if before:
            os._exit(7)
        ranks.survey = lambda *_, **__: os._exit(7)
    return told_by(optimizer.epoch_step)


@pytest.mark.parametrize(("processes", "before"), [(2, True), (2, False), (3, True), (3, False)])
def test_a_process_that_dies_does_not_hang_the_others(tmp_path, processes, before):
    found = launch(dies, processes, tmp_path, dying=[processes - 1], before=before)
    assert all("Has one of them died" in message for message in found[:-1])


def dies_with_a_piece(first):
    """The last process dies when it is to give its piece of a weight."""
    model = fully_shard(network(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = rankwise.RMSGD(model.named_parameters(), lr=0.03)
    die = dist.get_rank() == dist.get_world_size() - 1

    def last():
        if die:
            DTensor.full_tensor = lambda *_, **__: os._exit(7)

    if first:
        last()
        return told_by(train_epoch, model, optimizer, 0)
    train_epoch(model, optimizer, 0)
    last()
    return told_by(optimizer.epoch_step)


@pytest.mark.parametrize("first", [True, False])
def test_a_process_that_dies_with_a_piece_of_a_weight_does_not_hang_the_others(tmp_path, first):
    message, _ = launch(dies_with_a_piece, 2, tmp_path, dying=[1], first=first)
    assert "Has one of them died" in message
