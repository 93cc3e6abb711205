import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import rankwise
from tests.reference.algorithm_1 import Algorithm1

EPOCHS = 25
EQUAL = 1e-12


def network():
    """Weights so small that soon what they learn is most of them; one knows something already."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 10, 3, bias=False),
        nn.GroupNorm(2, 10),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(40, 20),
        nn.ReLU(),
        nn.Linear(20, 6),
    ).double()
    with torch.no_grad():
        for layer in (net[0], net[3], net[7], net[9]):
            layer.weight.mul_(0.1)
        net[7].weight.add_(0.05 * torch.randn(20, 2) @ torch.randn(2, 40))
    return net


def batches():
    """Noisy pictures of six patterns."""
    patterns = torch.randn(6, 3, 6, 6, dtype=torch.float64)
    for _ in range(3):
        labels = torch.randint(0, 6, (24,))
        yield 2 * patterns[labels] + torch.randn(24, 3, 6, 6, dtype=torch.float64), labels


def gradients(net, batch):
    net.zero_grad()
    cross_entropy(net(batch[0]), batch[1]).backward()
    return [parameter.grad for parameter in net.parameters()]


def difference(ours, theirs):
    """The largest, as a share of the largest entry."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.fixture
def nets():
    net, twin = network(), network()
    twin.load_state_dict(net.state_dict())
    return net, twin


def assert_trains_alike(nets, reference, step, end_epoch, rates):
    ranks, data = [reference.ranks], list(batches())
    for _ in range(EPOCHS):
        for batch in data:
            gradients(nets[0], batch)
            step()
            reference.stage_one(gradients(nets[1], batch))
        end_epoch()
        reference.stage_two()
        ranks.append(reference.ranks)
        assert list(rates().values()) == pytest.approx(reference.rates, rel=EQUAL, abs=0)
        for ours, theirs in zip(*(net.parameters() for net in nets), strict=True):
            assert difference(ours, theirs) < EQUAL
    assert_something_happened(ranks, reference.rates)


def assert_something_happened(ranks, rates):
    """Without gains in stable rank all layers' rates would only fall, and that alike."""
    assert len({round(rate, 6) for rate in rates}) > 2
    assert ranks[0][2] > 0  # s(0) is measured
    changing = [of_layer for of_layer in zip(*ranks, strict=True) if len(set(of_layer)) > 4]
    assert len(changing) >= 3


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9, "beta": 0.95, "floor": 1e-3},
        {"momentum": 0.5, "beta": 0.96, "floor": 0.014, "zeta": 0.5, "weight_decay": 5e-3},
    ],
    ids=["plain", "weight decay"],
)
def test_rmsgd_is_algorithm_1(nets, options):
    optimizer = rankwise.RMSGD(nets[0].parameters(), lr=0.1, **options)
    reference = Algorithm1(nets[1].parameters(), rate=0.1, **options)
    assert_trains_alike(nets, reference, optimizer.step, optimizer.epoch_step, optimizer.rates)


def test_stable_rank_lr_over_sgd_without_momentum_is_algorithm_1(nets):
    groups = rankwise.layer_groups(nets[0])
    optimizer = torch.optim.SGD(groups, lr=0.3, weight_decay=1e-3)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.95, reference=0.3)
    reference = Algorithm1(
        nets[1].parameters(), rate=0.3, beta=0.95, floor=0.003, weight_decay=1e-3
    )
    assert_trains_alike(nets, reference, optimizer.step, scheduler.step, scheduler.rates)


def test_with_another_reference_rate_gains_count_relative_to_it(nets):
    groups = rankwise.layer_groups(nets[0])
    optimizer = torch.optim.SGD(groups, lr=0.3)
    scheduler = rankwise.StableRankLR(optimizer, beta=0.95, reference=0.6, floor=0.02)
    reference = Algorithm1(nets[1].parameters(), rate=0.3, beta=0.95, zeta=0.5, floor=0.006)
    assert_trains_alike(nets, reference, optimizer.step, scheduler.step, scheduler.rates)
