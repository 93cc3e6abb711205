"""Lightning: a callback that ends RMSGD's epochs, and logs and draws what the probe found."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

import torch

from rankwise.errors import ArgumentError, MissingExtraError
from rankwise.integrations.figures import Source, figures, unwrapped
from rankwise.integrations.images import History, check_images, pixels
from rankwise.optim.rmsgd import RMSGD
from rankwise.probes.probe_result import Probe

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:  # the same under its older name
        from pytorch_lightning import (  # type: ignore[assignment]
            Callback,
            LightningModule,
            Trainer,
        )
    except ImportError as error:
        raise MissingExtraError("lightning", "lightning", "Training with Lightning") from error

__all__ = ["EpochStep"]

Value = TypeVar("Value")


class EpochStep(Callback):
    """Calls `epoch_step()` of every RMSGD at the end of each training epoch.

    It does so after the epoch's last batch, when Lightning steps its own schedulers: before the
    validation, and before any checkpoint of that epoch is saved. Rates are Lightning's
    `LearningRateMonitor`'s to show; it names every layer.

    Args:
        log: Whether the loggers get "stable_rank/<layer>", "quality/<layer>" and "Q" after each
            epoch; these can be monitored, as by `EarlyStopping("Q", mode="max")`. With several
            optimizers the second one's are called "stable_rank-1/<layer>" and so on.
        images_every: After how many epochs the loggers of TensorBoard and W&B get the figures of
            the layers, of their rates and of their quality so far as images: "figures/layers",
            "figures/rates" and "figures/quality"; also at training's end. 0 for never.

    Raises:
        ArgumentError: If `images_every` is negative.
        MissingExtraError: If there are to be images, and what draws them is missing.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from rankwise.integrations.lightning import EpochStep
        >>> options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
        >>> trainer = Trainer(max_epochs=3, callbacks=[EpochStep()], **options)
    """

    def __init__(self, *, log: bool = True, images_every: int = 0) -> None:
        if images_every < 0:
            raise ArgumentError(f"Expected images_every of 0 or more, got {images_every!r}.")
        if images_every:
            check_images()
        self._wants_log = log  # Lightning gives every callback a `log` of its own
        self._images_every = images_every
        self._seen: dict[int, Probe] = {}
        self._histories: dict[int, History] = {}
        self._undrawn: dict[int, int] = {}  # histories newer than their images, and at which step

    def state_dict(self) -> dict[str, Any]:
        """What images were drawn from so far, so that the curves of a resumed run are whole."""
        if not self._images_every:
            return {}
        return {"histories": {n: known.state_dict() for n, known in self._histories.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a checkpoint, if there are to be images."""
        for number, known in state_dict.get("histories", {}).items() if self._images_every else ():
            self._histories.setdefault(number, History()).load_state_dict(known)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warns if there is nothing to do, or nowhere to put images."""
        if not _sources(trainer):
            warnings.warn(
                "EpochStep found neither an RMSGD nor a StableRankLR in configure_optimizers().",
                UserWarning,
                stacklevel=2,
            )
        if self._images_every and trainer.is_global_zero:
            _warn_of_loggers(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Makes up for an epoch whose end a checkpoint has missed, as one saved in a step."""
        if batch_idx == 0:
            self._end_epoch(trainer, trainer.current_epoch)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Ends the epoch after its last batch."""
        if trainer.is_last_batch:
            self._end_epoch(trainer, trainer.current_epoch + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends an epoch that was broken off."""
        self._end_epoch(trainer, trainer.current_epoch + 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws the last epochs, if there are to be images."""
        for number in sorted(self._undrawn):
            self._draw(trainer, number)

    def _end_epoch(self, trainer: Trainer, epoch: int) -> None:
        """Ends an epoch; `epoch` counts those that have ended."""
        for number, source in enumerate(_sources(trainer)):
            if isinstance(source, RMSGD):
                source.epoch_step()
            probe = source.last_probe
            if probe is None or probe is self._seen.get(number):
                continue
            self._seen[number] = probe
            if self._wants_log:
                _log(trainer, _numbered(figures(source, ("stable_rank", "quality")), number))
            if self._images_every and trainer.is_global_zero:
                self._collect(trainer, number, source, epoch)

    def _collect(self, trainer: Trainer, number: int, source: Source, epoch: int) -> None:
        self._histories.setdefault(number, History()).add(source, epoch)
        self._undrawn[number] = _step(trainer)
        if epoch % self._images_every == 0:
            self._draw(trainer, number)

    def _draw(self, trainer: Trainer, number: int) -> None:
        step = self._undrawn.pop(number)
        try:
            loggers = [logger for logger in trainer.loggers if _takes_images(logger)]
            if not loggers:
                return
            drawn = self._histories[number].figures().items()
            images = {f"figures/{name}": pixels(figure) for name, figure in drawn}
            for key, image in _numbered(images, number).items():
                for logger in loggers:
                    _give(logger, key, image, step)
        except Exception as error:  # noqa: BLE001 - no picture is worth a training that ends
            warnings.warn(f"EpochStep could not draw images: {error}", UserWarning, stacklevel=2)


def _sources(trainer: Trainer) -> list[Source]:
    """What has layers to show; each once, also where a scheduler leads to an optimizer."""
    things = [*trainer.optimizers, *(c.scheduler for c in trainer.lr_scheduler_configs)]
    found = {id(source): source for source in map(unwrapped, things) if source is not None}
    return list(found.values())


def _numbered(found: dict[str, Value], number: int) -> dict[str, Value]:
    if number == 0:
        return found
    parts = {key: key.partition("/") for key in found}
    return {f"{a}-{number}{slash}{b}": found[key] for key, (a, slash, b) in parts.items()}


def _log(trainer: Trainer, found: dict[str, float]) -> None:
    trainer.callback_metrics.update({key: torch.tensor(value) for key, value in found.items()})
    for logger in trainer.loggers:
        logger.log_metrics(found, step=_step(trainer))


def _step(trainer: Trainer) -> int:
    # The count that Lightning's own metrics are logged at; the public one counts every optimizer.
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def _takes_images(logger: Any) -> bool:
    """Whether a logger is like W&B's or like TensorBoard's, of this package or the older one."""
    return hasattr(logger, "log_image") or hasattr(logger.experiment, "add_image")


def _give(logger: Any, key: str, image: Any, step: int) -> None:
    if hasattr(logger, "log_image"):
        logger.log_image(key=key, images=[image], step=step)
    else:
        logger.experiment.add_image(key, image, step, dataformats="HWC")


def _warn_of_loggers(trainer: Trainer) -> None:
    unable = [type(logger).__name__ for logger in trainer.loggers if not _takes_images(logger)]
    if not unable and trainer.loggers:
        return
    what = (
        f"can't give images to {', '.join(unable)}" if unable else "has no logger to give images to"
    )
    text = f"EpochStep {what}; it can to TensorBoardLogger and WandbLogger."
    warnings.warn(text, UserWarning, stacklevel=3)
