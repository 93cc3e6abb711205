"""Devices, processes and threads."""

import sys
from types import SimpleNamespace

import pytest
import torch

import rankwise
from rankwise.lab import Config, ConfigError, devices
from rankwise.lab.devices import average_over_processes, launch_fabric, set_threads
from rankwise.lab.tasks.task import prepare_network, wrap_network

pytest.importorskip("lightning_fabric")


@pytest.mark.parametrize(
    ("precision", "weights", "products"),
    [
        ("32", torch.float32, torch.float32),
        ("bf16", torch.float32, torch.bfloat16),
        ("64", torch.float64, torch.float64),
    ],
)
def test_weights_and_products_have_the_precision_that_was_asked_for(precision, weights, products):
    config = Config(precision=precision, accelerator="cpu")
    fabric = launch_fabric(config)
    network = prepare_network(torch.nn.Linear(3, 2), config, fabric)
    module = wrap_network(network, config, fabric)
    assert network.weight.dtype == weights
    # What training sees is never less precise than the weights.
    assert module(torch.ones(1, 3, dtype=weights)).dtype == weights
    with fabric.autocast():
        assert network(torch.ones(1, 3, dtype=weights)).dtype == products


def test_one_process_is_the_whole_world():
    fabric = launch_fabric(Config(accelerator="cpu"))
    assert (fabric.world_size, fabric.global_rank, fabric.device.type) == (1, 0, "cpu")
    value = torch.ones(2)
    assert average_over_processes(fabric, value) is value


@pytest.mark.parametrize(
    "options",
    [
        {"accelerator": "abacus"},
        pytest.param(
            {"accelerator": "cuda"},
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one here"),
        ),
    ],
    ids=["unknown", "missing"],
)
def test_a_device_that_is_not_there_is_a_sentence(options):
    with pytest.raises(ConfigError, match=f"1 × accelerator '{options['accelerator']}' can't"):
        launch_fabric(Config(**options))


def test_without_fabric_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(rankwise.MissingExtraError, match="pip install lightning-fabric"):
        launch_fabric(Config())


@pytest.fixture
def threads(monkeypatch):
    """Sets and counts threads of no process at all."""
    found = {"now": 64}
    monkeypatch.setattr(torch, "get_num_threads", lambda: found["now"])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: found.update(now=count))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(devices, "count_cores", lambda: 6)
    return found


def world(size):
    return SimpleNamespace(world_size=size)


@pytest.mark.parametrize(("processes", "expected"), [(1, 6), (2, 3), (4, 1), (16, 1)])
def test_processes_share_the_cores_that_they_may_use(threads, processes, expected):
    assert set_threads(world(processes)) == expected == threads["now"]


def test_only_the_processes_of_this_machine_share_its_cores(threads, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert set_threads(world(16)) == 3


def test_the_users_own_word_on_threads_is_kept(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    assert set_threads(world(2)) == 64
