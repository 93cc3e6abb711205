"""TensorBoard: a curve for every layer's rate and metrics, and charts as images."""

from __future__ import annotations

from rankwise.errors import MissingExtraError
from rankwise.integrations.monitoring import LayerHistory, get_source, layer_scalars, to_pixels

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise MissingExtraError("tensorboard", "tensorboard", "Writing for TensorBoard") from error

__all__ = ["log_images", "log_layers"]


def log_layers(writer: SummaryWriter, source: object, epoch: int, *, prefix: str = "") -> None:
    """Write every layer's rate, stable rank, condition and quality, and the network's S.

    Call it after `epoch_step()`, or after `step()` of the scheduler. The tags are "rate/conv1",
    "stable_rank/conv1", "condition/conv1", "quality/conv1", … and "stable_rank_by_width". None of
    them says which epoch to keep: S keeps rising while a network overfits.

    Args:
        writer: The writer.
        source: An RMSGD or a LayerwiseLR, or a trainer's wrapper of one.
        epoch: The position on the horizontal axis; a number of steps does as well.
        prefix: Put before every tag, such as "generator/".

    Raises:
        TargetError: If the source is neither an RMSGD nor a LayerwiseLR.

    Example:
        >>> import tempfile, torch, rankwise
        >>> from torch.utils.tensorboard import SummaryWriter
        >>> from rankwise.integrations.tensorboard import log_layers
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
        >>> optimizer = rankwise.RMSGD(net.named_parameters(), epochs=20)
        >>> with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        ...     log_layers(writer, optimizer, epoch=0)
    """
    kinds = ("rate", "stable_rank", "condition", "quality")
    for tag, value in layer_scalars(get_source(source), kinds).items():
        writer.add_scalar(prefix + tag, value, epoch)


def log_images(
    writer: SummaryWriter, history: LayerHistory, epoch: int, *, prefix: str = ""
) -> None:
    """Write the charts of a history as images: layers, rates and stable rank.

    The tags are "charts/layers", "charts/rates" and "charts/stable_rank". Drawing takes some
    seconds, so call it every few epochs, and `history.add` every epoch.

    Args:
        writer: The writer.
        history: The epochs so far.
        epoch: The position among the images of a tag; a number of steps does as well.
        prefix: Put before every tag, such as "generator/".

    Example:
        >>> import tempfile, torch, rankwise
        >>> from torch.utils.tensorboard import SummaryWriter
        >>> from rankwise.integrations.monitoring import LayerHistory
        >>> from rankwise.integrations.tensorboard import log_images
        >>> net = torch.nn.Linear(20, 30)
        >>> optimizer, history = rankwise.RMSGD(net.named_parameters(), epochs=20), LayerHistory()
        >>> net(torch.randn(8, 20)).square().mean().backward()
        >>> _ = optimizer.step()
        >>> optimizer.epoch_step()
        >>> history.add(optimizer, epoch=1)
        >>> with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        ...     log_images(writer, history, epoch=1)
    """
    for name, chart in history.charts().items():
        writer.add_image(f"{prefix}charts/{name}", to_pixels(chart), epoch, dataformats="HWC")
