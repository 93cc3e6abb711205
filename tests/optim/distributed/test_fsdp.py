import time
import weakref

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import rankwise
from rankwise.optim import sgd_step
from tests.optim.distributed.launch import launch
from tests.optim.distributed.training import close, network, place, train, train_epoch, train_rmsgd


def sharded(**options):
    """The network, its parameters in pieces; 31 and 10 rows do not divide by 3."""
    model = network(**options)
    mesh = init_device_mesh("cpu", (place()[1],))
    for part in model:
        if list(part.parameters()):
            fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Watched:
    """Notes how many whole tensors there are at a time, and how many were put together."""

    def __enter__(self):
        self.original, self.alive, self.most, self.calls = DTensor.full_tensor, [], 0, 0
        watched = self

        def full_tensor(tensor, **options):
            whole = watched.original(tensor, **options)
            watched.calls += 1
            watched.alive.append(weakref.ref(whole.untyped_storage()))
            watched.most = max(watched.most, watched.settled())
            return whole

        DTensor.full_tensor = full_tensor
        return self

    def settled(self):
        """How many there are; gloo's threads let go of what they sent a moment after it arrived."""
        for _ in range(1 if self.most > 1 else 1000):
            count = sum(ref() is not None for ref in self.alive)
            if count <= 1:
                break
            time.sleep(0.005)
        return count

    def __exit__(self, *_):
        DTensor.full_tensor = self.original


def in_pieces(**options):
    model = sharded()
    fused = []
    original, sgd_step._step_fused = sgd_step._step_fused, fused.append
    with Watched() as watched:
        rates, optimizer = train_rmsgd(model, **options)
    sgd_step._step_fused = original
    assert all(isinstance(param, DTensor) for param in model.parameters())
    assert all(isinstance(s["momentum_buffer"], DTensor) for s in optimizer.state.values())
    return {
        "rates": rates,
        "probe": optimizer.last_probe.to_json(),
        "weights": [param.full_tensor() for param in model.parameters()],
        "most": watched.most,
        "calls": watched.calls,
        "fused": len(fused),
    }


@pytest.mark.parametrize(
    ("processes", "options"),
    [
        (2, {}),
        (3, {"foreach": True, "weight_decay": 1e-3}),
        (2, {"fused": True, "nesterov": True}),
        (2, {"foreach": False, "variant": "annealed", "epochs": 4}),
    ],
    ids=str,
)
def test_sharded_weights_train_as_whole_ones_do(tmp_path, processes, options):
    model = network()
    rates, _ = train_rmsgd(model, **options)
    found = launch(in_pieces, processes, tmp_path, **options)
    assert close(found[0]["rates"], rates)
    for whole, param in zip(found[0]["weights"], model.parameters(), strict=True):
        torch.testing.assert_close(whole, param.detach(), rtol=1e-9, atol=1e-12)
    for one in found:
        assert (one["rates"], one["probe"]) == (found[0]["rates"], found[0]["probe"])
        assert one["fused"] == 0
        assert one["most"] == 1, "one layer at a time is whole"
        assert one["calls"] == 4 * (1 + len(rates))


def scheduled():
    model = sharded()
    optimizer = torch.optim.AdamW(rankwise.layer_groups(model), lr=1e-3)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.9)
    return train(model, optimizer, scheduler.step)


def test_stable_rank_lr_follows_sharded_weights(tmp_path):
    model = network()
    optimizer = torch.optim.AdamW(rankwise.layer_groups(model), lr=1e-3)
    alone = train(model, optimizer, rankwise.StableRankLR(optimizer, beta=0.9).step)
    found = launch(scheduled, 2, tmp_path)
    assert found[0] == found[1]
    assert close(found[0], alone)


def partly_sharded(foreach):
    """Only the linear layers are in pieces; every process trains convolutions of its own."""
    model = network()
    mesh = init_device_mesh("cpu", (place()[1],))
    for index in (5, 8):
        fully_shard(model[index], mesh=mesh)
    optimizer = rankwise.RMSGD(model.named_parameters(), lr=0.03, beta=0.9, foreach=foreach)
    train_epoch(model, optimizer, 0)
    optimizer.epoch_step()
    train_epoch(model, optimizer, 1)
    return len(optimizer.last_probe.probed), optimizer.rates()


@pytest.mark.parametrize("foreach", [None, True])
def test_some_weights_may_be_whole_and_others_sharded(tmp_path, foreach):
    for probed, rates in launch(partly_sharded, 2, tmp_path, foreach=foreach):
        assert probed == 4
        assert len(set(rates.values())) == 4


def sharded_networks():
    """Two networks, each sharded over processes of its own."""
    meshes = init_device_mesh("cpu", (2, place()[1] // 2), mesh_dim_names=("network", "piece"))
    model = network(seed=place()[0] // (place()[1] // 2))
    fully_shard(model, mesh=meshes["piece"])
    optimizer = rankwise.RMSGD(model.named_parameters(), lr=0.03, beta=0.9)
    with torch.no_grad():
        for param in model.parameters():
            param.grad = 0.1 * param.detach().clone().abs()
    optimizer.step()
    optimizer.epoch_step()
    return optimizer.rates()


def test_networks_on_meshes_of_their_own_follow_their_own(tmp_path):
    found = launch(sharded_networks, 4, tmp_path)
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert not set(found[0].values()) & set(found[2].values())
