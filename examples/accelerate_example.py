"""RMSGD with Hugging Face Accelerate: one more line at the end of each epoch.

Needs `pip install '.[accelerate]' scikit-learn` in a clone; runs alone or by `accelerate launch`.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import rankwise
from rankwise.integrations.accelerate import epoch_step

EPOCHS = 5


def main() -> None:
    """Train a small network on handwritten digits."""
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    network = nn.Sequential(
        OrderedDict(first=nn.Linear(64, 128), relu=nn.ReLU(), second=nn.Linear(128, 10))
    )
    network, optimizer, loader = accelerator.prepare(
        network,
        rankwise.RMSGD(network.named_parameters(), lr=0.1, beta=0.9),
        DataLoader(data, batch_size=32, shuffle=True),
    )

    for _ in range(EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(network):
                accelerator.backward(cross_entropy(network(x), y))
                optimizer.step()
                optimizer.zero_grad()
        epoch_step(optimizer)  # on every process, before a checkpoint
        accelerator.save_state("accelerate_checkpoint")

    for group in optimizer.param_groups:
        accelerator.print(f"{group['name']}: {group['lr']:.4f}")


if __name__ == "__main__":
    main()
