import os
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

os.environ["HF_HUB_OFFLINE"] = "1"

BATCHES = 4


def make_network():
    """Two layers whose stable ranks change in training: a little structure and a little noise."""
    random = torch.Generator().manual_seed(1)
    network = nn.Sequential(
        OrderedDict(hidden=nn.Linear(16, 32), relu=nn.ReLU(), out=nn.Linear(32, 8))
    )
    with torch.no_grad():
        for layer in (network.hidden, network.out):
            rows, columns = layer.weight.shape
            left = torch.randn(rows, 3, generator=random)
            right = torch.randn(3, columns, generator=random)
            noise = torch.randn(rows, columns, generator=random)
            layer.weight.copy_(left @ right / 4 + noise / 10)
            layer.bias.zero_()
    return network


@pytest.fixture
def network():
    return make_network


@pytest.fixture
def batches():
    random = torch.Generator().manual_seed(2)
    x = torch.randn(16 * BATCHES, 16, generator=random)
    y = torch.randint(8, (16 * BATCHES,), generator=random)
    return list(zip(x.split(16), y.split(16), strict=True))


@pytest.fixture
def plain(batches):
    """A plain loop, as one would write it without a trainer: what each trainer must agree with."""

    def train(make_optimizer, epochs, end_epoch=lambda optimizer: optimizer.epoch_step()):
        model = make_network()
        optimizer = make_optimizer(model)
        for _ in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
            end_epoch(optimizer)
        return {group["name"]: group["lr"] for group in optimizer.param_groups}

    return train


@pytest.fixture
def scheduled(plain):
    """The same where a scheduler ends the epochs; `make` gives an optimizer and its scheduler."""

    def train(make, epochs):
        kept = []

        def make_optimizer(model):
            optimizer, scheduler = make(model)
            kept.append(scheduler)
            return optimizer

        return plain(make_optimizer, epochs, end_epoch=lambda _: kept[0].step())

    return train
