"""Callbacks during a run, and the loggers of other tools."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

import rankwise
from rankwise.lab.config import Config
from rankwise.lab.records import EpochRecord, LayerColumns

if TYPE_CHECKING:
    from rankwise.lab.records import Run
    from rankwise.lab.training_state import TrainingState


class Callback:
    """Called as a run proceeds, by the first process only; override the methods you need."""

    def on_message(self, text: str) -> None:
        """Take a sentence for the user."""

    def on_start(self, state: TrainingState) -> None:
        """A run starts or continues."""

    def on_batch(self, state: TrainingState) -> None:
        """A batch is done."""

    def on_epoch(self, state: TrainingState, record: EpochRecord) -> None:
        """An epoch is done and saved."""

    def on_end(self, run: Run) -> None:
        """A run has ended, now or before."""


def _make_tensorboard(config: Config, folder: Path) -> Any:  # noqa: ANN401, ARG001
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger  # noqa: PLC0415

    return TensorBoardLogger(folder / "tensorboard", name="", version="")


def _make_csv(config: Config, folder: Path) -> Any:  # noqa: ANN401, ARG001
    from lightning_fabric.loggers.csv_logs import CSVLogger  # noqa: PLC0415

    # A file for each start of a run: the logger would delete one that is there already.
    return CSVLogger(folder / "csv", name="")


def _make_wandb(config: Config, folder: Path) -> Any:  # noqa: ANN401
    from lightning.pytorch.loggers import WandbLogger  # noqa: PLC0415

    # The same id for the same run: when it continues, so does its page.
    return WandbLogger(name=config.name, id=config.name, save_dir=folder, project="rankwise")


def _make_mlflow(config: Config, folder: Path) -> Any:  # noqa: ANN401
    from lightning.pytorch.loggers import MLFlowLogger  # noqa: PLC0415

    # Newer MLflow refuses to write plain files.
    where = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder.resolve()}/mlflow.db")
    return MLFlowLogger("rankwise", run_name=config.name, tracking_uri=where)


LOGGERS: dict[str, Callable[[Config, Path], Any]] = {
    "tensorboard": _make_tensorboard,
    "csv": _make_csv,
    "wandb": _make_wandb,
    "mlflow": _make_mlflow,
}


class Loggers:
    """The records of a run for TensorBoard, CSV, Weights & Biases and MLflow."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._loggers: list[Any] = []
        for name in filter(None, config.log.split(",")):
            try:
                logger = LOGGERS[name](config, folder)
            except ImportError as error:  # of the package, or of the one that logs to it
                missing = error.name or name
                raise rankwise.MissingExtraError(missing, name, f"Logging to {name}") from None
            with suppress(NotImplementedError), _warn_of_errors(logger):  # CSV has none
                logger.log_hyperparams(config.identity())
            self._loggers.append(logger)

    def log_epoch(self, record: EpochRecord, layers: LayerColumns) -> None:
        """Log an epoch's scores as "test/accuracy", and each layer's values as "rate/conv1"."""
        groups = {"train": record.train, "test": record.test, "seconds": asdict(record.seconds)}
        values: dict[str, float | None] = {
            f"{group}/{name}": value for group in groups for name, value in groups[group].items()
        }
        for column in ("stable_rank", "condition", "quality", "rate"):
            pairs = zip(layers.name, getattr(layers, column), strict=True)
            values |= {f"{column}/{name}": value for name, value in pairs}
        values["stable_rank_by_width"] = record.stable_rank_by_width
        known = {name: value for name, value in values.items() if value is not None}
        for logger in self._loggers:
            with _warn_of_errors(logger):
                logger.log_metrics(known, record.epoch)
                logger.save()

    def finish(self, status: str) -> None:
        """Log how the run ended."""
        for logger in self._loggers:
            with _warn_of_errors(logger):
                logger.finalize("success" if status == "finished" else "failed")


@contextmanager
def _warn_of_errors(logger: Any) -> Iterator[None]:  # noqa: ANN401
    """Let the run continue where logging fails, as when a server is down."""
    try:
        yield
    except NotImplementedError:
        raise
    except Exception as error:  # noqa: BLE001 - each logger raises its own
        text = f"{type(logger).__name__} could not log: {error}"
        warnings.warn(text, UserWarning, stacklevel=4)
