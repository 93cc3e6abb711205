"""Lightning: callbacks that end RMSGD's epochs and log its layers, and that check any network's."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

import torch

from rankwise.checks.monitor import LayerMonitor
from rankwise.errors import ArgumentError, MissingExtraError
from rankwise.integrations.monitoring import (
    LayerHistory,
    RateSource,
    check_images,
    find_source,
    find_update,
    layer_scalars,
    to_pixels,
)
from rankwise.optim.rmsgd import RMSGD

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

__all__ = ["EpochStep", "LayerCheck"]

Value = TypeVar("Value")


class EpochStep(Callback):
    """Calls `epoch_step()` of every RMSGD at the end of each training epoch.

    It does so after the epoch's last batch, when Lightning steps its own schedulers: before the
    validation, and before any checkpoint of that epoch. Lightning's `LearningRateMonitor` shows
    the rates by layer.

    Args:
        log: Whether to log "stable_rank/<layer>", "quality/<layer>" and "stable_rank_by_width", the
            network's S, after each epoch; for a rule that measures something else that instead, as
            "hill_exponent/<layer>". With several optimizers those of the second are
            "stable_rank-1/<layer>" and so on. Neither S nor q chooses a model: S follows time and
            keeps rising while a network overfits. Stop by a validation score.
        images_every: After how many epochs to log charts of the layers, and of their rates and
            stable rank so far, as images to TensorBoard and W&B: "charts/layers", "charts/rates"
            and "charts/stable_rank"; also at the end of training. 0 for never.

    Raises:
        ArgumentError: If `images_every` is negative.
        MissingExtraError: If images are wanted and what draws them is missing.

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
        self._should_log = log  # Lightning gives every callback a `log` of its own
        self._images_every = images_every
        self._last_updates: dict[int, object] = {}
        self._histories: dict[int, LayerHistory] = {}
        self._pending: dict[int, int] = {}  # histories newer than their images, and at which step

    def state_dict(self) -> dict[str, Any]:
        """Return the histories behind the images, so that a resumed run shows whole curves."""
        if not self._images_every:
            return {}
        return {"histories": {n: history.state_dict() for n, history in self._histories.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint, if images are wanted."""
        saved = state_dict.get("histories", {}) if self._images_every else {}
        for number, state in saved.items():
            self._histories.setdefault(number, LayerHistory()).load_state_dict(state)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if there is no optimizer to follow, or no logger for images."""
        if not _find_sources(trainer):
            warnings.warn(
                "EpochStep found neither an RMSGD nor a LayerwiseLR in configure_optimizers().",
                UserWarning,
                stacklevel=2,
            )
        if self._images_every and trainer.is_global_zero:
            _warn_of_loggers(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """End the epoch before, if a checkpoint was saved between its last step and its end."""
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
        """End the epoch after its last batch."""
        if trainer.is_last_batch:
            self._end_epoch(trainer, trainer.current_epoch + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End an epoch that was cut short."""
        self._end_epoch(trainer, trainer.current_epoch + 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the last epochs, if images are wanted."""
        for number in sorted(self._pending):
            self._draw(trainer, number)

    def _end_epoch(self, trainer: Trainer, epoch: int) -> None:
        """End an epoch; `epoch` is the number of those that have ended."""
        for number, source in enumerate(_find_sources(trainer)):
            if isinstance(source, RMSGD):
                source.epoch_step()
            update = find_update(source)
            if update is None or update is self._last_updates.get(number):
                continue
            self._last_updates[number] = update
            if self._should_log:
                scalars = layer_scalars(source, ("stable_rank", "quality"))
                _log_scalars(trainer, _number_keys(scalars, number))
            if self._images_every and trainer.is_global_zero:
                self._histories.setdefault(number, LayerHistory()).add(source, epoch)
                self._pending[number] = _global_step(trainer)
                if epoch % self._images_every == 0:
                    self._draw(trainer, number)

    def _draw(self, trainer: Trainer, number: int) -> None:
        step = self._pending.pop(number)
        try:
            loggers = [logger for logger in trainer.loggers if _takes_images(logger)]
            if not loggers:
                return
            charts = self._histories[number].charts().items()
            images = {f"charts/{name}": to_pixels(chart) for name, chart in charts}
            for key, image in _number_keys(images, number).items():
                for logger in loggers:
                    _log_image(logger, key, image, step)
        except Exception as error:  # noqa: BLE001 - a missing image must not end a training
            warnings.warn(f"EpochStep could not draw images: {error}", UserWarning, stacklevel=2)


class LayerCheck(Callback):
    """Warns once, by name, when a layer goes wrong; with any optimizer.

    It looks at the layers when training starts and after each epoch, as `rankwise.LayerMonitor`
    does, and keeps what it knows in the checkpoint. All processes measure; the first one warns.

    Args:
        every: After how many batches to look; None for once an epoch.
        budget: The share of time that measuring may take, as in `rankwise.LayerMonitor`.

    Attributes:
        monitor: The monitor, with its `findings`.

    Raises:
        ArgumentError: If `every` or `budget` is out of range.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from rankwise.integrations.lightning import LayerCheck
        >>> options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
        >>> trainer = Trainer(callbacks=[LayerCheck(every=100, budget=0.02)], **options)
    """

    def __init__(self, every: int | None = None, *, budget: float | None = None) -> None:
        self.monitor = LayerMonitor(every=1 if every is None else every, budget=budget)
        self._follows_batches = every is not None

    def state_dict(self) -> dict[str, Any]:
        """Return what the monitor knows."""
        return self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.monitor.load_state_dict(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See how the layers begin, unless a checkpoint says so."""
        if self.monitor.calls == 0:
            self._update(trainer, pl_module)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Look at the layers every few batches."""
        if self._follows_batches:
            self._update(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the layers once an epoch."""
        if not self._follows_batches:
            self._update(trainer, pl_module)

    def _update(self, trainer: Trainer, module: LightningModule) -> None:
        self.monitor.update(module, warn=trainer.is_global_zero)


def _find_sources(trainer: Trainer) -> list[RateSource]:
    """Return each RMSGD and LayerwiseLR once, also where a scheduler leads to an optimizer."""
    wrappers = [*trainer.optimizers, *(c.scheduler for c in trainer.lr_scheduler_configs)]
    sources = {id(source): source for source in map(find_source, wrappers) if source is not None}
    return list(sources.values())


def _number_keys(values: dict[str, Value], number: int) -> dict[str, Value]:
    """Add the number of an optimizer to the first part of each key; not for the first."""
    if number == 0:
        return values
    parts = {key: key.partition("/") for key in values}
    return {f"{a}-{number}{slash}{b}": values[key] for key, (a, slash, b) in parts.items()}


def _log_scalars(trainer: Trainer, scalars: dict[str, float]) -> None:
    trainer.callback_metrics.update({key: torch.tensor(value) for key, value in scalars.items()})
    for logger in trainer.loggers:
        logger.log_metrics(scalars, step=_global_step(trainer))


def _global_step(trainer: Trainer) -> int:
    # The step at which Lightning logs its own metrics; the public one counts every optimizer.
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def _takes_images(logger: Any) -> bool:
    """Return whether a logger is like W&B's or TensorBoard's, of either package of Lightning."""
    return hasattr(logger, "log_image") or hasattr(logger.experiment, "add_image")


def _log_image(logger: Any, key: str, image: Any, step: int) -> None:
    if hasattr(logger, "log_image"):
        logger.log_image(key=key, images=[image], step=step)
    else:
        logger.experiment.add_image(key, image, step, dataformats="HWC")


def _warn_of_loggers(trainer: Trainer) -> None:
    unable = [type(logger).__name__ for logger in trainer.loggers if not _takes_images(logger)]
    if unable:
        problem = f"can't log images to {', '.join(unable)}"
    elif not trainer.loggers:
        problem = "has no logger for images"
    else:
        return
    warnings.warn(
        f"EpochStep {problem}; use TensorBoardLogger or WandbLogger.", UserWarning, stacklevel=3
    )
