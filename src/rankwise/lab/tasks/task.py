"""What the training loop asks of a task, and what tasks share: preparing a network, one update."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from rankwise.lab.config import Config
from rankwise.lab.data.dataset import Batch
from rankwise.lab.optimizers import EpochOptimizer
from rankwise.lab.reproducibility import derive_seed

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch.optim import Optimizer

# The type of a network and its input; with bf16, autocast takes care of the rest.
DTYPES = {"32": torch.float32, "bf16": torch.float32, "64": torch.float64}
_STATISTICS_BATCHES = 50

Optimizers = Mapping[str, EpochOptimizer]  # by the network that each one trains
Sums = dict[str, Tensor]  # over the samples of some batches; "count" is how many


class Position(NamedTuple):
    """The place of a batch in a run."""

    epoch: int
    batch: int


class Task(Protocol):
    """A network, its data, and how the one learns from the other."""

    config: Config
    fabric: Fabric
    parts: dict[str, nn.Module]  # networks that have an optimizer each; "" for a single one
    per_epoch: int  # how many batches make an epoch
    fingerprint: dict[str, Any]  # tells this data from other data of the same name

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Iterate over this process's share of an epoch's batches, from a batch on."""

    def step(self, batch: Batch, optimizers: Optimizers, position: Position) -> Sums:
        """Learn from a batch; return what to sum up over the epoch."""

    def scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the scores to record for sums over an epoch."""

    def evaluate(self) -> dict[str, float]:
        """Return the scores on the test set."""

    def refresh_statistics(self, epoch: int) -> None:  # noqa: ARG002 - nothing to do by default
        """Compute the statistics of batch normalisation anew, for weights changed without steps."""
        return

    def get_memory(self) -> dict[str, Any]:
        """Return what goes from one batch to the next, apart from weights and optimizer state."""
        return {}

    def set_memory(self, memory: Mapping[str, Any]) -> None:  # noqa: ARG002 - none by default
        """Continue with what `get_memory` gave; empty at an epoch's start."""
        return

    def update(
        self,
        optimizer: EpochOptimizer,
        network: nn.Module,
        loss_of: Callable[[], Tensor],
        position: Position,
        *,
        purpose: str = "step",
        after_backward: Callable[[], None] | None = None,
    ) -> Tensor:
        """Do one update, with random numbers of its position's and process's own."""
        loss = update(
            self.fabric,
            optimizer.optimizer,
            network,
            loss_of,
            seed=derive_seed(self.config.seed, purpose, *position, self.fabric.global_rank),
            clip=self.config.clip or 0.0,
            after_backward=after_backward,
        )
        optimizer.end_step()
        return loss


def prepare_network(network: nn.Module, config: Config, fabric: Fabric) -> nn.Module:
    """Return the network in its precision, and in the fastest memory layout."""
    network = network.to(DTYPES[config.precision])
    has_images = any(isinstance(module, nn.Conv2d) for module in network.modules())
    # SGDP and AdamP view weights, which only torch's default layout allows.
    if has_images and config.optimizer not in ("sgdp", "adamp"):
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if fabric.world_size > 1 and fabric.device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    return network


def wrap_network(network: nn.Module, config: Config, fabric: Fabric) -> Any:  # noqa: ANN401
    """Return what to call in training; `network` itself holds the same parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Fabric's advice on loaders not used here
        compiled: Any = torch.compile(network) if config.compile else network
        return fabric.setup_module(compiled)


def to_full_precision(logits: Tensor) -> Tensor:
    """Return logits in a precision that a loss can be computed in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def update(
    fabric: Fabric,
    optimizer: Optimizer,
    network: nn.Module,
    loss_of: Callable[[], Tensor],
    *,
    seed: int,
    clip: float = 0.0,
    after_backward: Callable[[], None] | None = None,
) -> Tensor:
    """Take one step of any optimizer; return the loss before it.

    The optimizer may evaluate the loss several times (SAM twice, a line search as often as it
    needs). Each evaluation sees the same dropout, and only the first changes the running statistics
    of batch normalisation; those without gradients return the loss alone. A `clip` of 0 is no
    limit.
    """
    evaluations = 0

    def closure() -> Tensor:
        nonlocal evaluations
        if fabric.device.type == "cpu":  # torch.manual_seed asks every other device too
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        with _freeze_statistics(network) if evaluations else nullcontext():
            loss = loss_of()
        evaluations += 1
        if torch.is_grad_enabled():
            optimizer.zero_grad()
            fabric.backward(loss)
            if after_backward is not None:
                after_backward()
            if clip:
                nn.utils.clip_grad_norm_(network.parameters(), clip)
        return loss.detach()

    return optimizer.step(closure)  # type: ignore[arg-type, return-value]


@torch.no_grad()
def average_statistics(network: nn.Module, batches: Iterable[Any], *, seed: int) -> None:
    """Set the running statistics of batch normalisation to their mean over the first 50 batches.

    The authors of the schedule-free optimizers advise as many.
    """
    device = next(network.parameters()).device
    torch.manual_seed(seed)
    update_bn(islice(batches, _STATISTICS_BATCHES), network, device)


@contextmanager
def _freeze_statistics(network: nn.Module) -> Iterator[None]:
    """Normalise by the batch, but leave the running statistics as they are."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
