"""Images with classes or labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from rankwise.lab.config import Config
from rankwise.lab.data.augmentation import Augmentation, choose_augmentation
from rankwise.lab.data.batches import (
    count_batches,
    iter_test_batches,
    iter_train_batches,
    move_to_device,
)
from rankwise.lab.data.dataset import Batch, ImageDataset
from rankwise.lab.networks import NetworkSpec, build_network
from rankwise.lab.reproducibility import derive_seed
from rankwise.lab.scores import compute_auc, compute_label_accuracy, count_top_k
from rankwise.lab.tasks.task import (
    DTYPES,
    Optimizers,
    Position,
    Sums,
    Task,
    average_statistics,
    prepare_network,
    to_full_precision,
    wrap_network,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class ImageTask(Task):
    """Classification, or several labels an image."""

    def __init__(self, config: Config, fabric: Fabric, images: ImageDataset) -> None:
        self.config, self.fabric = config, fabric
        self.images = move_to_device(images, fabric.device)
        torch.manual_seed(derive_seed(config.seed, "weights"))
        channels, size, _ = images.shape
        network = build_network(
            config.network, NetworkSpec(len(images.classes), channels, size, width=config.width)
        )
        self.network = prepare_network(network, config, fabric)
        self.forward = wrap_network(self.network, config, fabric)
        self.parts: dict[str, nn.Module] = {"": self.network}
        self.per_epoch = count_batches(len(images.train), self.batch_size)
        self.augmentation = (
            choose_augmentation(images, cutout=config.cutout) if config.augment else Augmentation()
        )
        self.fingerprint = {
            "network": config.network,  # the form of it that suits the images
            "train": len(images.train),
            "test": len(images.test),
            "classes": len(images.classes),
            "shape": list(images.shape),
        }

    @property
    def batch_size(self) -> int:
        """Images a step over all processes; a small data set may have fewer."""
        wanted = self.config.batch_size or 1
        world = self.fabric.world_size
        return max(world, min(wanted, len(self.images.train) // world * world))

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Iterate over this process's share of an epoch's batches, from a batch on."""
        return iter_train_batches(
            self.images,
            self.augmentation,
            batch_size=self.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            start=start,
            rank=self.fabric.global_rank,
            world=self.fabric.world_size,
            device=self.fabric.device,
            workers=self.config.workers,
        )

    def step(self, batch: Batch, optimizers: Optimizers, position: Position) -> Sums:
        """Learn from a batch; return its loss and how many were right before the update."""
        first: list[Tensor] = []

        def loss_of() -> Tensor:
            logits = self.forward(batch.inputs.to(DTYPES[self.config.precision]))
            first.append(logits.detach())
            return self._loss(logits, batch.targets)

        loss = self.update(optimizers[""], self.network, loss_of, position)
        return self._sums(loss, first[0], batch.targets)

    def scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return mean loss, accuracy, and accuracy within five guesses."""
        names = {"loss": "loss", "right": "accuracy", "right5": "top5"}
        return {name: sums[key] / sums["count"] for key, name in names.items() if key in sums}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return loss and accuracy on the test set; for two classes or labels also the AUC."""
        self.network.eval()
        rank, world = self.fabric.global_rank, self.fabric.world_size
        total: Sums = {}
        kept: list[tuple[Tensor, Tensor]] = []
        for batch in iter_test_batches(
            self.images,
            batch_size=min(1000, 2 * self.batch_size),
            rank=rank,
            world=world,
            device=self.fabric.device,
            workers=self.config.workers,
        ):
            with self.fabric.autocast():
                logits = to_full_precision(
                    self.network(batch.inputs.to(DTYPES[self.config.precision]))
                )
            sums = self._sums(self._loss(logits, batch.targets), logits, batch.targets)
            total = {key: total.get(key, 0) + value for key, value in sums.items()}
            if self._has_curve:
                kept.append((logits.cpu(), batch.targets.cpu()))
        self.network.train()
        shares: list[Any] = [(total, kept)] * world
        if world > 1:
            torch.distributed.all_gather_object(shares, (total, kept))
        return self._test_scores(shares)

    def refresh_statistics(self, epoch: int) -> None:
        """Compute the statistics of batch normalisation anew, from the epoch's first batches."""
        dtype = DTYPES[self.config.precision]
        inputs = (batch.inputs.to(dtype) for batch in self.batches(epoch, 0))
        with self.fabric.autocast():
            average_statistics(
                self.network, inputs, seed=derive_seed(self.config.seed, "statistics", epoch)
            )

    def _test_scores(
        self, shares: list[tuple[Sums, list[tuple[Tensor, Tensor]]]]
    ) -> dict[str, float]:
        keys = max((share[0] for share in shares), key=len)  # a process may have had no image
        sums = {k: sum(float(share[0][k]) for share in shares if k in share[0]) for k in keys}
        scores = self.scores(sums)
        if self._has_curve:
            pairs = [pair for share in shares for pair in share[1]]
            logits, targets = (torch.cat(column) for column in zip(*pairs, strict=True))
            values = logits if self.images.multilabel else logits[:, 1] - logits[:, 0]
            scores["auc"] = compute_auc(values, targets)
        return scores

    @property
    def _has_curve(self) -> bool:
        return self.images.multilabel or len(self.images.classes) == 2

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.images.multilabel:
            return binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))
        return cross_entropy(logits, targets)

    @torch.no_grad()
    def _sums(self, loss: Tensor, logits: Tensor, targets: Tensor) -> Sums:
        count = len(targets)
        sums = {"loss": loss * count, "count": torch.tensor(float(count), device=loss.device)}
        if self.images.multilabel:
            return {**sums, "right": compute_label_accuracy(logits, targets) * count}
        sums["right"] = count_top_k(logits, targets, 1)
        return {**sums, "right5": count_top_k(logits, targets, 5)} if logits.shape[1] > 5 else sums
