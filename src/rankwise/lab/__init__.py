"""The lab: the paper's networks, data, optimizers and training, for its experiments and yours."""

from rankwise.errors import ConfigError, DataError, RunError
from rankwise.lab.config import Config
from rankwise.lab.records import Run, load_run, load_runs
from rankwise.lab.train import StoppedError, train, train_trials

__all__ = [
    "Config",
    "ConfigError",
    "DataError",
    "Run",
    "RunError",
    "StoppedError",
    "load_run",
    "load_runs",
    "train",
    "train_trials",
]
