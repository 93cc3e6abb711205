"""RMSGD with Hugging Face's Trainer: an optimizer with its scheduler, and a callback.

Needs `pip install '.[transformers]' scikit-learn` in a clone. Any model of the library does; this
small ResNet starts from chance and needs no download.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
)

from rankwise.integrations.transformers import EpochStep, rmsgd

EPOCHS = 3


def examples() -> list[dict[str, Tensor]]:
    """Return handwritten digits at twice their size, as the model takes them."""
    images, labels = load_digits(return_X_y=True)
    small = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    pairs = zip(small.repeat_interleave(2, 2).repeat_interleave(2, 3), labels, strict=True)
    return [{"pixel_values": image, "labels": torch.tensor(label)} for image, label in pairs]


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    config = ResNetConfig(
        num_channels=1,
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
    )
    config.num_labels = 10
    model = ResNetForImageClassification(config)
    arguments = TrainingArguments(
        output_dir="trainer_output",
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=64,
        logging_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
    )
    optimizer, scheduler = rmsgd(model, lr=0.1, beta=0.9, weight_decay=5e-4, warmup_steps=10)
    trainer = Trainer(
        model,
        arguments,
        train_dataset=examples(),
        optimizers=(optimizer, scheduler),
        callbacks=[EpochStep()],
    )
    trainer.train()

    for layer, rate in optimizer.rates().items():
        print(f"{layer}: {rate:.4f}")


if __name__ == "__main__":
    main()
