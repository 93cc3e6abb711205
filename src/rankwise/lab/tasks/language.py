"""The next word of a running text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rankwise.lab.config import Config
from rankwise.lab.data.dataset import Batch, TextDataset
from rankwise.lab.data.text import count_text_batches, iter_text_batches
from rankwise.lab.networks.language import build_language_network
from rankwise.lab.reproducibility import derive_seed
from rankwise.lab.scores import compute_perplexity
from rankwise.lab.tasks.task import (
    Optimizers,
    Position,
    Sums,
    Task,
    prepare_network,
    to_full_precision,
    wrap_network,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_TEST_COLUMNS = 10
# A recurrent network's memory, layer by layer; None for a network that has none.
Memory = tuple[tuple[Tensor, Tensor], ...] | None


class LanguageTask(Task):
    """A language model on parallel columns of text, whose memory goes from batch to batch."""

    def __init__(self, config: Config, fabric: Fabric, text: TextDataset) -> None:
        self.config, self.fabric, self.text = config, fabric, text
        torch.manual_seed(derive_seed(config.seed, "weights"))
        network = build_language_network(
            config.network,
            len(text.words),
            width=config.width,
            dropout=config.dropout,
            tied=config.tied,
            context=config.length,
        )
        self.network = prepare_network(network, config, fabric)
        self.forward = wrap_network(self.network, config, fabric)
        self.parts: dict[str, nn.Module] = {"": self.network}
        self.columns = config.batch_size or 1
        self.per_epoch = count_text_batches(len(text.train), self.columns, config.length)
        self.fingerprint = {
            "train": len(text.train),
            "test": len(text.test),
            "words": len(text.words),
        }
        self.memory: Memory = None

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:  # noqa: ARG002
        """Iterate over this process's columns of the text, in order in every epoch."""
        return iter_text_batches(
            self.text.train,
            columns=self.columns,
            length=self.config.length,
            start=start,
            rank=self.fabric.global_rank,
            world=self.fabric.world_size,
            device=self.fabric.device,
        )

    def step(self, batch: Batch, optimizers: Optimizers, position: Position) -> Sums:
        """Learn from a window of text; return its loss before the update."""
        before, after = self.memory, []

        def loss_of() -> Tensor:
            logits, memory = self.forward(batch.inputs, before)
            after.append(memory)
            return cross_entropy(to_full_precision(logits).flatten(0, 1), batch.targets.flatten())

        loss = self.update(optimizers[""], self.network, loss_of, position)
        self.memory = _detach(after[0])
        count = batch.targets.numel()
        return {"loss": loss * count, "count": torch.tensor(float(count), device=loss.device)}

    def scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the mean loss per word, and the perplexity."""
        loss = sums["loss"] / sums["count"]
        return {"loss": loss, "perplexity": compute_perplexity(loss)}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return loss and perplexity on the test text; every process reads all of it."""
        self.network.eval()
        total = {"loss": 0.0, "count": 0.0}
        memory: Memory = None
        for batch in iter_text_batches(
            self.text.test,
            columns=min(_TEST_COLUMNS, len(self.text.test) // 2),
            length=self.config.length,
            device=self.fabric.device,
        ):
            with self.fabric.autocast():
                logits, memory = self.network(batch.inputs, memory)
            loss = cross_entropy(to_full_precision(logits).flatten(0, 1), batch.targets.flatten())
            total["loss"] += float(loss) * batch.targets.numel()
            total["count"] += batch.targets.numel()
        self.network.train()
        return self.scores(total)

    def get_memory(self) -> dict[str, Any]:
        """Return the recurrent state of all columns."""
        if self.memory is None:
            return {}
        return {"memory": [[self._gather(part) for part in layer] for layer in self.memory]}

    def set_memory(self, memory: Mapping[str, Any]) -> None:
        """Continue with that state; none at an epoch's start."""
        layers = memory.get("memory")
        self.memory = layers and tuple(
            (self._share(hidden), self._share(cell)) for hidden, cell in layers
        )

    def _gather(self, part: Tensor) -> Tensor:  # (1, B, H) on each process → (1, columns, H)
        if self.fabric.world_size == 1:
            return part.cpu()
        return torch.cat(list(self.fabric.all_gather(part)), dim=1).cpu()

    def _share(self, part: Tensor) -> Tensor:
        size = part.shape[1] // self.fabric.world_size
        start = self.fabric.global_rank * size
        return part[:, start : start + size].contiguous().to(self.fabric.device)


def _detach(memory: Memory) -> Memory:
    """Return the state without its history: gradients end at the window's start."""
    return memory and tuple((hidden.detach(), cell.detach()) for hidden, cell in memory)
