"""The lab: the paper's networks, data, optimizers and training, for its experiments and yours.

Names are imported when they are first used: `rankwise train --help` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise._lazy import import_lazily

if TYPE_CHECKING:
    from rankwise.errors import ConfigError, DataError, RunError
    from rankwise.lab.config import Config
    from rankwise.lab.records import Run, load_run, load_runs
    from rankwise.lab.training import StoppedError, train, train_trials
else:  # type checkers would take every name for defined
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "..errors": "ConfigError DataError RunError",
            ".config": "Config",
            ".records": "Run load_run load_runs",
            ".training": "StoppedError train train_trials",
        },
    )

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
