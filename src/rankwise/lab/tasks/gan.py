"""A Wasserstein GAN: a generator of images, and a critic of real and generated ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankwise.errors import ConfigError
from rankwise.lab.config import Config
from rankwise.lab.data.augmentation import Augmentation
from rankwise.lab.data.batches import count_batches, iter_train_batches, move_to_device
from rankwise.lab.data.dataset import Batch, ImageDataset, MemorySplit
from rankwise.lab.devices import average_over_processes
from rankwise.lab.frechet import Features, compute_distance, load_inception_features, train_features
from rankwise.lab.networks.wgan import Critic, Generator, clip_weights, gradient_penalty
from rankwise.lab.reproducibility import derive_seed, make_generator
from rankwise.lab.tasks.task import (
    Optimizers,
    Position,
    Sums,
    Task,
    average_statistics,
    prepare_network,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

GAN_NETWORKS = ("wgan", "wgan-gp")  # clipped weights, gradient penalty
_LATENT, _WIDTH = 100, 64
_PENALTY = 10.0  # λ of Gulrajani et al.
_LEARNED = 10_000  # images behind a network whose features they are compared by
_COMPARED = 2000  # images, of each kind, behind a Fréchet distance


class GanTask(Task):
    """Generator and critic, each with an optimizer of its own."""

    def __init__(self, config: Config, fabric: Fabric, images: ImageDataset) -> None:
        if not isinstance(images.train, MemorySplit) or not isinstance(images.test, MemorySplit):
            raise ConfigError(f"{config.network} needs images that fit in memory.")
        self.config, self.fabric = config, fabric
        half = (0.5,) * images.shape[0]  # the generator's images are in −1 … 1
        self.images = replace(move_to_device(images, fabric.device), mean=half, std=half)
        self.penalised = config.network == "wgan-gp"
        torch.manual_seed(derive_seed(config.seed, "weights"))
        channels, size, _ = images.shape
        shape: dict[str, Any] = {
            "size": size,
            "channels": channels,
            "width": max(4, round(_WIDTH * config.width)),
        }
        self.generator = self._prepare(Generator(latent=_LATENT, **shape))
        self.critic = self._prepare(Critic(norm=not self.penalised, **shape))
        self.parts: dict[str, nn.Module] = {"generator": self.generator, "critic": self.critic}
        self.per_epoch = count_batches(len(images.train), config.batch_size or 1)
        self.features = _choose_features(self.images, fabric.device)
        self.fingerprint = {
            "train": len(images.train),
            "shape": list(images.shape),
            "features": self.features.name,
        }

    def _prepare(self, network: nn.Module) -> nn.Module:
        return prepare_network(network, self.config, self.fabric).to(self.fabric.device)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Iterate over this process's share of an epoch's batches, from a batch on."""
        return iter_train_batches(
            self.images,
            Augmentation(flip=self.config.augment and self.images.can_flip),
            batch_size=self.config.batch_size or 1,
            seed=self.config.seed,
            epoch=epoch,
            start=start,
            rank=self.fabric.global_rank,
            world=self.fabric.world_size,
            device=self.fabric.device,
        )

    def step(self, batch: Batch, optimizers: Optimizers, position: Position) -> Sums:
        """Take a step of the critic, and every few of them one of the generator."""
        count = torch.tensor(float(len(batch.inputs)), device=self.fabric.device)
        sums = {
            "loss": self._critic_step(batch.inputs, optimizers, position) * count,
            "count": count,
        }
        # Counted over epochs, since one may be short of a turn.
        done = position.epoch * self.per_epoch + position.batch + 1
        if done % self.config.critic_steps == 0:
            loss = self._generator_step(len(batch.inputs), optimizers, position)
            sums |= {"generator_loss": loss * count, "generator_count": count}
        return sums

    def _critic_step(self, real: Tensor, optimizers: Optimizers, position: Position) -> Tensor:
        with torch.no_grad(), self.fabric.autocast():
            made = self.generator(self._noise("critic", position, len(real))).float()
        epsilon = self._share(torch.rand, "mix", position, (len(real),))

        def loss_of() -> Tensor:
            with self.fabric.autocast():
                loss = self.critic(made).float().mean() - self.critic(real).float().mean()
            if not self.penalised:
                return loss
            return loss + _PENALTY * gradient_penalty(self.critic, real, made, epsilon)

        loss = self._update("critic", optimizers, loss_of, position)
        if not self.penalised:
            clip_weights(self.critic)
        return loss

    def _generator_step(self, count: int, optimizers: Optimizers, position: Position) -> Tensor:
        noise = self._noise("generator", position, count)

        def loss_of() -> Tensor:
            with self.fabric.autocast():
                return -self.critic(self.generator(noise)).float().mean()

        self.critic.requires_grad_(False)
        loss = self._update("generator", optimizers, loss_of, position)
        self.critic.requires_grad_(True)
        return loss

    def _update(
        self, part: str, optimizers: Optimizers, loss_of: Callable[[], Tensor], position: Position
    ) -> Tensor:
        network = self.parts[part]

        def average() -> None:  # DDP can't follow a penalty on gradients
            for param in network.parameters():
                if param.grad is not None:
                    param.grad.copy_(average_over_processes(self.fabric, param.grad))

        return self.update(
            optimizers[part],
            network,
            loss_of,
            position,
            purpose=part,
            after_backward=average if self.fabric.world_size > 1 else None,
        )

    def _noise(self, purpose: str, position: Position, count: int) -> Tensor:
        return self._share(torch.randn, purpose, position, (count, _LATENT))

    def _share(
        self, draw: Callable[..., Tensor], purpose: str, position: Position, size: tuple[int, ...]
    ) -> Tensor:
        """Return this process's share of what is drawn, on the CPU, for the whole batch."""
        count, *rest = size
        generator = make_generator(self.config.seed, "draw", purpose, *position)
        whole = draw(count * self.fabric.world_size, *rest, generator=generator)
        start = count * self.fabric.global_rank
        return whole[start : start + count].to(self.fabric.device)

    def scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the critic's mean loss, and the generator's where it had a turn."""
        scores = {"loss": sums["loss"] / sums["count"]}
        if sums.get("generator_count"):
            scores["generator_loss"] = sums["generator_loss"] / sums["generator_count"]
        return scores

    def refresh_statistics(self, epoch: int) -> None:
        """Compute the generator's statistics of batch normalisation anew; a test needs no others.

        The critic, whose norms see real and generated images in turn, keeps its own.
        """
        count = max(1, (self.config.batch_size or 1) // self.fabric.world_size)
        noise = (
            self._noise("statistics", Position(epoch, number), count)
            for number in range(self.per_epoch)
        )
        with self.fabric.autocast():
            seed = derive_seed(self.config.seed, "statistics", epoch)
            average_statistics(self.generator, noise, seed=seed)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the Fréchet distance of generated images to the test images, on every process."""
        inputs = self.images.test.inputs[:_COMPARED]  # type: ignore[union-attr]
        real = inputs.float() / 127.5 - 1
        noise = torch.randn(len(real), _LATENT, generator=make_generator(self.config.seed, "test"))
        self.generator.eval()
        made = torch.cat(
            [self.generator(z.to(self.fabric.device)) for z in torch.split(noise, 256)]
        )
        self.generator.train()
        return {
            "frechet": compute_distance(self.features.extract(real), self.features.extract(made))
        }


def _choose_features(images: ImageDataset, device: torch.device) -> Features:
    """Return what images are compared by: Inception where the user has it, else an own network."""
    train = images.train
    return load_inception_features(device) or train_features(
        MemorySplit(train.inputs[:_LEARNED], train.targets[:_LEARNED]),  # type: ignore[union-attr]
        len(images.classes),
        data=images.name,
        seed=0,  # the same for all runs, so that they can be compared
        device=device,
    )
