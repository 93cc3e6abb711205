"""The package rmsgd 1.0.2 beside what docs/deviations.md says it does, as tests/reference has it.

Weights are noise of variance 1 and, where a layer is awake, structure that stands well out of it:
close to the noise's edge, or at other scales, the package's search for σ² misses the minimum, and
the two would differ in their EVBMF and not in the rules that are compared here.
"""

import importlib.metadata
import math

import numpy as np
import pytest
import rmsgd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.reference.released import Released

EPOCHS = 25
SAME = 1e-5
SHAPES = {
    "before the first weight": [(5,)],
    "convolution": [(16, 12, 3, 3), (16,), (16,)],
    "1x1, more rows than columns": [(32, 16, 1, 1)],
    "convolution without bias": [(24, 32, 3, 3)],
    "depthwise": [(48, 1, 3, 3), (48,)],
    "1x1": [(40, 24, 1, 1)],
    "1x1, more columns than rows": [(30, 60, 1, 1), (30,)],
    "output mode with more rows than columns": [(96, 8, 3, 3)],
    "linear": [(20, 40), (20,)],
    "linear, more rows than columns": [(64, 20), (64,)],
}


def test_it_is_the_pinned_version():
    assert importlib.metadata.version("rmsgd") == "1.0.2"


def structure(shape, rank=3):
    """Directions of equal strength, each at the edge of what noise of variance 1 reaches."""
    rank, taps = min(rank, shape[0]), math.prod(shape[2:])
    left, _ = torch.linalg.qr(torch.randn(shape[0], rank))
    if shape[1] >= rank:  # of low rank in both unfoldings
        right, _ = torch.linalg.qr(torch.randn(shape[1], rank))
        kernel = nn.functional.normalize(torch.randn(taps), dim=0)
        right = torch.einsum("ir,k->ikr", right, kernel).reshape(-1, rank)
    else:
        right, _ = torch.linalg.qr(torch.randn(math.prod(shape[1:]), rank))
    edge = max(math.sqrt(n) + math.sqrt(math.prod(shape) / n) for n in shape[:2])
    return edge * (left @ right.T).reshape(shape)


class Pair:
    """The same parameters twice, one copy for each optimizer."""

    def __init__(self, params, *, nets=None, **options):
        copies = [[p.clone().requires_grad_() for p in params] for _ in range(2)]
        self.ours, self.theirs = [list(n.parameters()) for n in nets] if nets else copies
        options = {"lr": 0.03, "beta": 0.8, "momentum": 0.0, **options}
        self.reference = Released(self.ours, **options)
        self.package = rmsgd.RMSGD(self.theirs, **options)

    def step(self, gradient):
        """A step of both; `gradient(index, parameter)`, for each its own copy."""
        self.reference.step([gradient(i, p.detach()) for i, p in enumerate(self.ours)])
        for index, param in enumerate(self.theirs):
            param.grad = gradient(index, param.detach()).clone()
        self.package.step()

    def set_weight(self, index, weight):
        for params in (self.ours, self.theirs):
            params[index].data.copy_(weight)

    def end_epoch(self):
        """Ends an epoch of both and returns the rates, parameter by parameter."""
        self.reference.epoch_step()
        self.package.epoch_step()
        return self.reference.rates.copy(), self.package.lr_vector.copy()


def start():
    return [torch.randn(shape) for shapes in SHAPES.values() for shape in shapes]


def assert_same_rates(pair, seen):
    ours, theirs = pair.end_epoch()
    seen.append(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=SAME)


@pytest.mark.parametrize("linear", [False, True])
def test_same_rates_for_the_same_weights(linear):
    """Each layer is empty at first, wakes at an epoch of its own, grows, shrinks, and empties."""
    torch.manual_seed(0)
    noise = start()
    marks = [structure(w.shape) if w.ndim >= 2 else torch.ones(w.shape) for w in noise]
    wakes = torch.randint(1, 8, (len(noise),)).tolist()
    strengths = [1.5, 2, 2, 3, 4, 3, 2, 1.5, 2, 5, 5, 1.5, 3, 5, 1.5, 1.5, 0, 0, 0, 2, 2, 3, 4, 5]
    pair, seen = Pair(noise, linear=linear), []
    for epoch in range(EPOCHS):
        pair.step(lambda _, param: torch.zeros_like(param))
        for index, (weight, mark) in enumerate(zip(noise, marks, strict=True)):
            if pair.package.lr_vector[index] > 0 and epoch >= wakes[index]:  # else it can't move
                pair.set_weight(index, weight + strengths[epoch - wakes[index]] * mark)
        assert_same_rates(pair, seen)
    layers = 9 if linear else 7
    assert len({tuple(rates) for rates in np.transpose(seen)}) == layers + 1
    assert (np.array(seen) == 0).any()


@pytest.mark.parametrize("waking", [(1, 2, 3), (0, 1, 3)])
def test_of_layers_that_wake_together_every_second_one_is_passed_over(waking):
    """The package takes waking layers out of a list that it is walking through."""
    noise = [torch.randn(16, 12, 3, 3) for _ in range(5)]
    pair, seen = Pair(noise), []
    for epoch in range(8):
        pair.step(lambda _, param: torch.zeros_like(param))
        if epoch == 2:
            for index in waking:
                pair.set_weight(index, noise[index] + 2 * structure(noise[index].shape))
        assert_same_rates(pair, seen)
    asleep = [rates[i] for rates in seen[1:] for i in range(5) if i not in waking]
    assert {0.8 * 0.03, 0.03} <= {round(rate, 9) for rate in asleep}  # else all were held at η(0)


OPTIONS = [
    {"momentum": 0.9, "weight_decay": 0.01},
    {"momentum": 0.5, "dampening": 0.1, "beta": 0.9},
    {"momentum": 0.5, "nesterov": True, "weight_decay": 0.01},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.filterwarnings(
    "ignore:This overload of add is deprecated"
)  # in the package's Nesterov
def test_same_rates_and_weights_when_each_trains_its_own(options):
    """Weights are pulled to structure from an epoch on that is each layer's own."""
    noise = start()
    targets = [w + 12 * structure(w.shape) if w.ndim >= 2 else w + 1 for w in noise]
    wakes = torch.randint(1, 8, (len(noise),)).tolist()
    pair, seen = Pair(noise, linear=True, **options), []
    stiffness = 4 * (1 - options.get("momentum", 0.0))
    for epoch in range(12):
        now = [t if epoch >= w else n for n, t, w in zip(noise, targets, wakes, strict=True)]
        for _ in range(4):
            pair.step(lambda index, weight, now=now: stiffness * (weight - now[index]))
        assert_same_rates(pair, seen)
        for ours, theirs in zip(pair.ours, pair.theirs, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-3)
    assert len({tuple(rates) for rates in np.transpose(seen)}) == 10


def network():
    net = nn.Sequential(
        nn.BatchNorm2d(12),
        nn.Conv2d(12, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 1, bias=False),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, groups=32),
        nn.Flatten(),
        nn.LayerNorm(128),
        nn.Linear(128, 20),
    )
    with torch.no_grad():
        for param in net.parameters():
            if param.ndim >= 2:
                param.normal_().add_(structure(param.shape), alpha=2)
    return net


@pytest.mark.parametrize("linear", [False, True])
def test_same_rates_when_training_a_network(linear):
    nets = network(), network()
    nets[1].load_state_dict(nets[0].state_dict())
    pair = Pair((), linear=linear, lr=3.0, momentum=0.9, weight_decay=1e-4, nets=nets)
    images, labels, seen = torch.randn(40, 12, 6, 6), torch.arange(40) % 20, []
    for _ in range(12):
        for part in (slice(20), slice(20, 40)):
            for net in nets:
                net.zero_grad()
                cross_entropy(net(images[part]) / 30, labels[part]).backward()
            pair.reference.step([param.grad for param in pair.ours])
            pair.package.step()
        assert_same_rates(pair, seen)
    assert len({tuple(rates) for rates in np.transpose(seen)}) == (5 if linear else 4)


def test_step_size_and_gamma_lower_rates_and_the_weight_of_gains():
    weight, mark = torch.randn(16, 12, 3, 3), structure((16, 12, 3, 3))
    pair, seen = Pair([weight + 2 * mark], step_size=5, gamma=0.5), []
    for epoch in range(12):
        pair.step(lambda _, param: torch.zeros_like(param))
        pair.set_weight(0, weight + (2 + epoch / 4) * mark)
        assert_same_rates(pair, seen)
    assert 0 < seen[5] < 0.5 * seen[4]


@pytest.mark.parametrize("linear", [False, True])
def test_a_single_row_counts_as_empty(linear):
    """It is held at the first rate; a layer that is not probed follows the one before."""
    torch.manual_seed(0)
    shapes = [(16, 12, 3, 3), (1, 16, 1, 1), (1,), (1, 20)]
    pair, seen = Pair([torch.randn(shape) for shape in shapes], linear=linear), []
    for _ in range(4):
        pair.step(lambda index, param: torch.zeros_like(param))
        assert_same_rates(pair, seen)
