"""The lab: the paper's networks, data, optimizers and training, for its experiments and yours.

Names are imported when they are first used: `rankwise train --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankwise.errors import ConfigError, DataError, RunError
    from rankwise.lab.config import Config
    from rankwise.lab.records import Run, load_run, load_runs
    from rankwise.lab.training import StoppedError, train, train_trials

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

# Where each name is defined. No module of this folder may have one of these names.
_MODULES = {
    "rankwise.errors": ("ConfigError", "DataError", "RunError"),
    "rankwise.lab.config": ("Config",),
    "rankwise.lab.records": ("Run", "load_run", "load_runs"),
    "rankwise.lab.training": ("StoppedError", "train", "train_trials"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # type checkers would take every name for defined

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'rankwise.lab' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
