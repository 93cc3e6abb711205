"""What the tests have in common: a small network, its data, a run over a part of every batch."""

import torch
import torch.distributed as dist
from torch import nn

import rankwise

EPOCHS, BATCHES, BATCH = 3, 2, 12


def network(seed=0, dtype=torch.float64):
    """Layers of two kinds that have structure from the start, and vectors that belong to them."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 10, 3),
        nn.GroupNorm(2, 10),
        nn.ReLU(),
        nn.Conv2d(10, 14, 3),
        nn.Flatten(),
        nn.Linear(14 * 4 * 4, 31),
        nn.LayerNorm(31),
        nn.Tanh(),
        nn.Linear(31, 10),
    ).to(dtype)
    with torch.no_grad():
        for weight in (p for p in net.parameters() if p.ndim >= 2):
            flat = weight.view(len(weight), -1)
            flat += (
                0.3
                * torch.randn(len(flat), 3, dtype=dtype)
                @ torch.randn(3, flat.shape[1], dtype=dtype)
            )
    return net


def batches(epoch, dtype=torch.float64):
    """An epoch's batches: this process's part of each, or all of it where there is one process."""
    number, processes = place()
    source = torch.Generator().manual_seed(epoch)
    for _ in range(BATCHES):
        images = torch.randn(BATCH, 3, 8, 8, generator=source, dtype=dtype)
        labels = torch.randint(0, 10, (BATCH,), generator=source)
        yield images[number::processes], labels[number::processes]


def place():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def train_epoch(model, optimizer, epoch, dtype=torch.float64):
    for images, labels in batches(epoch, dtype):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def train(model, optimizer, end_epoch, *, epochs=EPOCHS, start=0, dtype=torch.float64):
    """Trains; returns the groups' rates after every epoch."""
    rates = []
    for epoch in range(start, epochs):
        train_epoch(model, optimizer, epoch, dtype)
        end_epoch()
        rates.append({g["name"]: float(g["lr"]) for g in optimizer.param_groups})
    return rates


def train_rmsgd(model, named=None, **options):
    """The rates after every epoch, and the optimizer."""
    optimizer = rankwise.RMSGD(named or model.named_parameters(), lr=0.03, beta=0.9, **options)
    return train(model, optimizer, optimizer.epoch_step), optimizer


def close(some, others, tolerance=1e-12):
    """Whether two runs have the same rates."""
    return len(some) == len(others) and all(
        one.keys() == other.keys() and all(abs(one[n] - other[n]) <= tolerance for n in one)
        for one, other in zip(some, others, strict=True)
    )
