"""TensorBoard: a curve for every layer's rate and metrics, and the figures as images."""

from __future__ import annotations

from rankwise.errors import MissingExtraError, TargetError
from rankwise.integrations.figures import figures, unwrapped
from rankwise.integrations.images import History, pixels

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise MissingExtraError("tensorboard", "tensorboard", "Writing for TensorBoard") from error

__all__ = ["log_images", "log_layers"]


def log_layers(writer: SummaryWriter, source: object, epoch: int, *, prefix: str = "") -> None:
    """Writes every layer's rate, stable rank, condition and quality, and the network's Q.

    Call it after `epoch_step()`, or after `step()` of the scheduler. The tags are "rate/conv1",
    "stable_rank/conv1", "condition/conv1", "quality/conv1", … and "Q".

    Args:
        writer: Where to.
        source: An RMSGD or a StableRankLR, or what a trainer made of it.
        epoch: The place on the horizontal axis; a count of steps does as well.
        prefix: What to put before every tag, as "generator/".

    Raises:
        TargetError: If the source is neither an RMSGD nor a StableRankLR.

    Example:
        >>> import tempfile, torch, rankwise
        >>> from torch.utils.tensorboard import SummaryWriter
        >>> from rankwise.integrations.tensorboard import log_layers
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
        >>> optimizer = rankwise.RMSGD(net.named_parameters())
        >>> with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        ...     log_layers(writer, optimizer, epoch=0)
    """
    inside = unwrapped(source)
    if inside is None:
        raise TargetError(f"Expected an RMSGD or a StableRankLR, got {type(source).__name__}.")
    for tag, value in figures(inside, ("rate", "stable_rank", "condition", "quality")).items():
        writer.add_scalar(prefix + tag, value, epoch)


def log_images(writer: SummaryWriter, history: History, epoch: int, *, prefix: str = "") -> None:
    """Writes the figures of a history as images: layers, rates and quality.

    The tags are "figures/layers", "figures/rates" and "figures/quality". Drawing takes some
    seconds, so call it every few epochs; `history.add` every epoch.

    Args:
        writer: Where to.
        history: What was collected so far.
        epoch: The place among the images of a tag; a count of steps does as well.
        prefix: What to put before every tag, as "generator/".

    Example:
        >>> import tempfile, torch, rankwise
        >>> from torch.utils.tensorboard import SummaryWriter
        >>> from rankwise.integrations.images import History
        >>> from rankwise.integrations.tensorboard import log_images
        >>> net = torch.nn.Linear(20, 30)
        >>> optimizer, history = rankwise.RMSGD(net.named_parameters()), History()
        >>> net(torch.randn(8, 20)).square().mean().backward()
        >>> _ = optimizer.step()
        >>> optimizer.epoch_step()
        >>> history.add(optimizer, epoch=1)
        >>> with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        ...     log_images(writer, history, epoch=1)
    """
    for name, figure in history.figures().items():
        tag = f"{prefix}figures/{name}"
        writer.add_image(tag, pixels(figure), epoch, dataformats="HWC")
