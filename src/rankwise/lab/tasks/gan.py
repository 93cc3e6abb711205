"""A Wasserstein GAN: a critic that tells images from made ones, a generator that makes them."""

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
from rankwise.lab.devices import mean
from rankwise.lab.frechet import Features, frechet_distance, inception_features, trained_features
from rankwise.lab.networks.wgan import Critic, Generator, clip_weights, gradient_penalty
from rankwise.lab.seeds import generator_for, seed_for
from rankwise.lab.tasks.setup import learn, prepared
from rankwise.lab.tasks.task import Methods, Place, Sums

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["GAN_NETWORKS", "GanTask"]

GAN_NETWORKS = ("wgan", "wgan-gp")  # clipped weights, gradient penalty
_LATENT, _WIDTH = 100, 64
_PENALTY = 10.0  # λ of Gulrajani et al.
_LEARNED = 10_000  # images behind a network whose features they are compared by
_COMPARED = 2000  # images, of each kind, behind a Fréchet distance


class GanTask:
    """Generator and critic, each with an optimizer of its own.

    Args:
        config: The resolved options.
        fabric: Devices and precision.
        images: The data, 32×32 or 64×64.

    Raises:
        ConfigError: If the images don't fit in memory.
    """

    def __init__(self, config: Config, fabric: Fabric, images: ImageDataset) -> None:
        if not isinstance(images.train, MemorySplit) or not isinstance(images.test, MemorySplit):
            raise ConfigError(f"{config.network} needs images that fit in memory.")
        self.config, self.fabric = config, fabric
        half = (0.5,) * images.shape[0]  # the generator's images are in −1 … 1
        self.images = replace(move_to_device(images, fabric.device), mean=half, std=half)
        self.penalised = config.network == "wgan-gp"
        torch.manual_seed(seed_for(config.seed, "weights"))
        channels, size, _ = images.shape
        shape: dict[str, Any] = {
            "size": size,
            "channels": channels,
            "width": max(4, round(_WIDTH * config.width)),
        }
        self.generator = self._ready(Generator(latent=_LATENT, **shape))
        self.critic = self._ready(Critic(norm=not self.penalised, **shape))
        self.parts: dict[str, nn.Module] = {"generator": self.generator, "critic": self.critic}
        self.per_epoch = count_batches(len(images.train), config.batch_size or 1)
        self.features = _features(self.images, fabric.device)
        self.fingerprint = {
            "train": len(images.train),
            "shape": list(images.shape),
            "features": self.features.name,
        }

    def _ready(self, network: nn.Module) -> nn.Module:
        return prepared(network, self.config, self.fabric).to(self.fabric.device)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """This process's share of an epoch's batches, from a batch on."""
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

    def step(self, batch: Batch, methods: Methods, place: Place) -> Sums:
        """A step of the critic, and every few of them one of the generator."""
        count = torch.tensor(float(len(batch.inputs)), device=self.fabric.device)
        sums = {"loss": self._critic_step(batch.inputs, methods, place) * count, "count": count}
        done = place.epoch * self.per_epoch + place.batch + 1  # an epoch may be short of a turn
        if done % self.config.critic_steps == 0:
            loss = self._generator_step(len(batch.inputs), methods, place)
            sums |= {"generator_loss": loss * count, "generator_count": count}
        return sums

    def _critic_step(self, real: Tensor, methods: Methods, place: Place) -> Tensor:
        with torch.no_grad(), self.fabric.autocast():
            made = self.generator(self._noise("critic", place, len(real))).float()
        epsilon = self._share(torch.rand, "mix", place, (len(real),))

        def loss_of() -> Tensor:
            with self.fabric.autocast():
                loss = self.critic(made).float().mean() - self.critic(real).float().mean()
            if not self.penalised:
                return loss
            return loss + _PENALTY * gradient_penalty(self.critic, real, made, epsilon)

        loss = self._update("critic", methods, loss_of, place)
        if not self.penalised:
            clip_weights(self.critic)
        return loss

    def _generator_step(self, count: int, methods: Methods, place: Place) -> Tensor:
        noise = self._noise("generator", place, count)

        def loss_of() -> Tensor:
            with self.fabric.autocast():
                return -self.critic(self.generator(noise)).float().mean()

        self.critic.requires_grad_(False)
        loss = self._update("generator", methods, loss_of, place)
        self.critic.requires_grad_(True)
        return loss

    def _update(
        self, part: str, methods: Methods, loss_of: Callable[[], Tensor], place: Place
    ) -> Tensor:
        network = self.parts[part]

        def average() -> None:  # DDP can't follow a penalty on gradients
            for param in network.parameters():
                if param.grad is not None:
                    param.grad.copy_(mean(self.fabric, param.grad))

        return learn(
            self.config,
            self.fabric,
            methods[part].optimizer,
            network,
            loss_of,
            place=place,
            purpose=part,
            after_backward=average if self.fabric.world_size > 1 else None,
        )

    def _noise(self, purpose: str, place: Place, count: int) -> Tensor:
        """What images are made from."""
        return self._share(torch.randn, purpose, place, (count, _LATENT))

    def _share(
        self, draw: Callable[..., Tensor], purpose: str, place: Place, size: tuple[int, ...]
    ) -> Tensor:
        """This process's share of what is drawn for the whole batch, on the CPU on any device."""
        count, *rest = size
        generator = generator_for(self.config.seed, "draw", purpose, *place)
        whole = draw(count * self.fabric.world_size, *rest, generator=generator)
        start = count * self.fabric.global_rank
        return whole[start : start + count].to(self.fabric.device)

    def scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The critic's mean loss, and the generator's where it had a turn."""
        found = {"loss": sums["loss"] / sums["count"]}
        if sums.get("generator_count"):
            found["generator_loss"] = sums["generator_loss"] / sums["generator_count"]
        return found

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """The Fréchet distance of made images to the test images; every process measures it."""
        inputs = self.images.test.inputs[:_COMPARED]  # type: ignore[union-attr]
        real = inputs.float() / 127.5 - 1
        noise = torch.randn(len(real), _LATENT, generator=generator_for(self.config.seed, "test"))
        self.generator.eval()
        made = torch.cat(
            [self.generator(z.to(self.fabric.device)) for z in torch.split(noise, 256)]
        )
        self.generator.train()
        return {"frechet": frechet_distance(self.features.of(real), self.features.of(made))}

    def carried(self) -> dict[str, Any]:
        """Nothing: batches know nothing of each other."""
        return {}

    def carry(self, what: Mapping[str, Any]) -> None:
        """Nothing to do."""


def _features(images: ImageDataset, device: torch.device) -> Features:
    """What images are compared by: Inception where the user has it, else a network of ours."""
    train = images.train
    return inception_features(device) or trained_features(
        MemorySplit(train.inputs[:_LEARNED], train.targets[:_LEARNED]),  # type: ignore[union-attr]
        len(images.classes),
        data=images.name,
        seed=0,  # the same for all runs, so that they can be compared
        device=device,
    )
