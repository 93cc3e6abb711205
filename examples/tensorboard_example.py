"""A plain PyTorch loop with RMSGD; in TensorBoard each layer's curves, and charts of all layers.

Needs `pip install '.[tensorboard,report]' scikit-learn` in a clone; then
`tensorboard --logdir runs`.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

import rankwise
from rankwise.integrations.monitoring import LayerHistory
from rankwise.integrations.tensorboard import log_images, log_layers

EPOCHS = 5


def main() -> None:
    """Train a small network on handwritten digits."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    network = nn.Sequential(
        OrderedDict(first=nn.Linear(64, 128), relu=nn.ReLU(), second=nn.Linear(128, 10))
    )
    optimizer = rankwise.RMSGD(network.named_parameters(), lr=0.1, beta=0.9)
    history = LayerHistory()

    with SummaryWriter("runs") as writer:
        for epoch in range(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                loss = cross_entropy(network(x), y)
                loss.backward()
                optimizer.step()
            optimizer.epoch_step()
            log_layers(writer, optimizer, epoch)
            writer.add_scalar("loss", loss, epoch)
            history.add(optimizer, epoch)
        log_images(writer, history, EPOCHS - 1)

    for layer, rate in optimizer.rates().items():
        print(f"{layer}: {rate:.4f}")


if __name__ == "__main__":
    main()
