"""RMSGD with Lightning: one more callback.

Needs `pip install '.[lightning]' scikit-learn` in a clone. The rates, stable ranks and
qualities of the layers go to `lightning_logs/`.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import rankwise
from rankwise.integrations.lightning import EpochStep

EPOCHS = 5


class Digits(LightningModule):
    """A small network for handwritten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            OrderedDict(first=nn.Linear(64, 128), relu=nn.ReLU(), second=nn.Linear(128, 10))
        )

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        return cross_entropy(self.network(x), y)

    def configure_optimizers(self) -> rankwise.RMSGD:
        """Return the optimizer."""
        return rankwise.RMSGD(self.named_parameters(), lr=0.1, beta=0.9)


def main() -> None:
    """Train."""
    seed_everything(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=[EpochStep(), LearningRateMonitor("epoch")],
        logger=CSVLogger("."),
        log_every_n_steps=10,
    )
    trainer.fit(Digits(), DataLoader(data, batch_size=64, shuffle=True))

    for group in trainer.optimizers[0].param_groups:
        print(f"{group['name']}: {group['lr']:.4f}")


if __name__ == "__main__":
    main()
