"""Lightning: a callback that ends RMSGD's epochs and logs what the probe found."""

from __future__ import annotations

import warnings

import torch

from rankwise.errors import MissingExtraError
from rankwise.integrations.figures import Source, figures, unwrapped
from rankwise.optimizer import RMSGD
from rankwise.probe_result import Probe

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


class EpochStep(Callback):
    """Calls `epoch_step()` of every RMSGD at the end of each training epoch.

    It does so after the epoch's last batch, when Lightning steps its own schedulers: before the
    validation, and before any checkpoint of that epoch is saved. Rates are Lightning's
    `LearningRateMonitor`'s to show; it names every layer.

    Args:
        log: Whether the loggers get "stable_rank/<layer>", "quality/<layer>" and "Q" after each
            epoch; these can be monitored, as by `EarlyStopping("Q", mode="max")`. With several
            optimizers the second one's are called "stable_rank-1/<layer>" and so on.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from rankwise.integrations.lightning import EpochStep
        >>> options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
        >>> trainer = Trainer(max_epochs=3, callbacks=[EpochStep()], **options)
    """

    def __init__(self, *, log: bool = True) -> None:
        self._wants_log = log  # Lightning gives every callback a `log` of its own
        self._logged: dict[int, Probe] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warns if there is nothing to do."""
        if not _sources(trainer):
            warnings.warn(
                "EpochStep found neither an RMSGD nor a StableRankLR in configure_optimizers().",
                UserWarning,
                stacklevel=2,
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Makes up for an epoch whose end a checkpoint has missed, as one saved in a step."""
        if batch_idx == 0:
            self._end_epoch(trainer)

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
            self._end_epoch(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends an epoch that was broken off."""
        self._end_epoch(trainer)

    def _end_epoch(self, trainer: Trainer) -> None:
        for number, source in enumerate(_sources(trainer)):
            if isinstance(source, RMSGD):
                source.epoch_step()
            probe = source.last_probe
            if self._wants_log and probe is not None and probe is not self._logged.get(number):
                self._logged[number] = probe
                _log(trainer, _numbered(figures(source, ("stable_rank", "quality")), number))


def _sources(trainer: Trainer) -> list[Source]:
    """What has layers to show; each once, also where a scheduler leads to an optimizer."""
    things = [*trainer.optimizers, *(c.scheduler for c in trainer.lr_scheduler_configs)]
    found = {id(source): source for source in map(unwrapped, things) if source is not None}
    return list(found.values())


def _numbered(found: dict[str, float], number: int) -> dict[str, float]:
    if number == 0:
        return found
    parts = {key: key.partition("/") for key in found}
    return {f"{a}-{number}{slash}{b}": found[key] for key, (a, slash, b) in parts.items()}


def _log(trainer: Trainer, found: dict[str, float]) -> None:
    trainer.callback_metrics.update({key: torch.tensor(value) for key, value in found.items()})
    # The count that Lightning's own metrics are logged at; the public one counts every optimizer.
    step = trainer.fit_loop.epoch_loop._batches_that_stepped
    for logger in trainer.loggers:
        logger.log_metrics(found, step=step)
