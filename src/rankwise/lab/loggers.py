"""The same records for TensorBoard, CSV, Weights & Biases and MLflow, by Fabric's loggers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

import rankwise
from rankwise.lab.config import Config
from rankwise.lab.records import EpochRecord, LayerColumns

__all__ = ["LOGGERS", "end_logs", "log_epoch", "loggers_for"]


def _tensorboard(config: Config, folder: Path) -> Any:  # noqa: ANN401, ARG001
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger  # noqa: PLC0415

    return TensorBoardLogger(folder / "tensorboard", name="", version="")


def _csv(config: Config, folder: Path) -> Any:  # noqa: ANN401, ARG001
    from lightning_fabric.loggers.csv_logs import CSVLogger  # noqa: PLC0415

    # A file for each start of a run: the logger would delete one that is there already.
    return CSVLogger(folder / "csv", name="")


def _wandb(config: Config, folder: Path) -> Any:  # noqa: ANN401
    from lightning.pytorch.loggers import WandbLogger  # noqa: PLC0415

    # The same id for the same run: when it goes on, so does its page.
    return WandbLogger(name=config.name, id=config.name, save_dir=folder, project="rankwise")


def _mlflow(config: Config, folder: Path) -> Any:  # noqa: ANN401
    from lightning.pytorch.loggers import MLFlowLogger  # noqa: PLC0415

    # Newer MLflow refuses to write plain files.
    where = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder.resolve()}/mlflow.db")
    return MLFlowLogger("rankwise", run_name=config.name, tracking_uri=where)


LOGGERS: dict[str, Callable[[Config, Path], Any]] = {
    "tensorboard": _tensorboard,
    "csv": _csv,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def loggers_for(config: Config, folder: Path) -> list[Any]:
    """The loggers that a run asks for, with its options logged.

    Raises:
        MissingExtraError: If one of them is not installed.
    """
    found = []
    for name in filter(None, config.log.split(",")):
        try:
            logger = LOGGERS[name](config, folder)
        except ImportError:
            raise rankwise.MissingExtraError(name, name, f"Logging to {name}") from None
        with suppress(NotImplementedError), _kept_from_failing(logger):  # CSV has no place for them
            logger.log_hyperparams(config.identity())
        found.append(logger)
    return found


def log_epoch(loggers: list[Any], record: EpochRecord, layers: LayerColumns) -> None:
    """Log an epoch's figures, as "test/accuracy", and each layer's, as "rate/stage1.0.conv1"."""
    groups = {"train": record.train, "test": record.test, "seconds": asdict(record.seconds)}
    flat: dict[str, float | None] = {
        f"{group}/{name}": value for group in groups for name, value in groups[group].items()
    }
    for column in ("stable_rank", "condition", "quality", "rate"):
        pairs = zip(layers.name, getattr(layers, column), strict=True)
        flat |= {f"{column}/{name}": value for name, value in pairs}
    flat["Q"] = record.quality
    known = {name: value for name, value in flat.items() if value is not None}
    for logger in loggers:
        with _kept_from_failing(logger):
            logger.log_metrics(known, record.epoch)
            logger.save()


def end_logs(loggers: list[Any], status: str) -> None:
    """Say how the run ended."""
    for logger in loggers:
        with _kept_from_failing(logger):
            logger.finalize("success" if status == "finished" else "failed")


@contextmanager
def _kept_from_failing(logger: Any) -> Iterator[None]:  # noqa: ANN401
    """Where logging fails, as when a server is down, the run goes on."""
    try:
        yield
    except NotImplementedError:
        raise
    except Exception as error:  # noqa: BLE001 - each logger raises its own
        text = f"{type(logger).__name__} could not log: {error}"
        warnings.warn(text, UserWarning, stacklevel=4)
