"""The lab's own runs → the networks to rank."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path

from rankwise.errors import DataError, RunError
from rankwise.lab.records import Run, is_run, load_run
from rankwise.study.columns import worded
from rankwise.study.zoo.networks import LeftOut, Network, Zoo, check_scales

__all__ = ["read_runs"]

# What a network is and what it is tested on; all else is how it was trained.
_FAMILY = ("width", "image_size", "train_size", "validate")
_COLUMNS = {
    "checkpoint": "weights.safetensors",
    "accuracy": "after the last epoch, on what the run was tested on",
    "train_accuracy": "of the last epoch, as augmented and while it went on",
    "group": "all options but the seed",
    "family": "network, data and their sizes",
}


def read_runs(folder: Path, names: Collection[str] | None = None) -> Zoo:
    """Read the runs in a folder; those that did not finish with an accuracy are left out.

    Args:
        folder: As `rankwise train --out` writes it.
        names: Of the runs to take; all by default.

    Raises:
        DataError: If there is none.
    """
    places = [path for path in sorted(folder.glob("*/")) if is_run(path)]
    places = [path for path in places if names is None or path.name in names]
    if not places:
        raise DataError(
            f"{folder} holds no {'runs' if names is None else 'run of this study'}. Expected a CSV "
            "of checkpoints and accuracies, a folder of runs as `rankwise train --out` writes it, "
            "or a study whose runs are there."
        )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        found = [_network(place) for place in places]
    networks = tuple(one for one in found if isinstance(one, Network))
    left_out = tuple(one for one in found if isinstance(one, LeftOut))
    check_scales(networks, str(folder))
    notes = tuple(dict.fromkeys(str(warning.message) for warning in told))
    return Zoo(str(folder), networks, left_out, _COLUMNS, notes=notes)


def _network(folder: Path) -> Network | LeftOut:
    try:
        run = load_run(folder)
    except (RunError, OSError) as error:
        return LeftOut(folder.name, f"its records can't be read: {error}")
    accuracy = run.scores.get("accuracy")
    if run.status != "finished":
        return LeftOut(folder.name, f"the run is {run.status}")
    if accuracy is None:
        return LeftOut(folder.name, "has no test accuracy")
    if not run.weights.is_file():
        return LeftOut(folder.name, f"has no {run.weights.name}")
    setting = run.config.name.rpartition("-seed")[0]
    trained = run.epochs[-1].train.get("accuracy")
    return Network(folder.name, run.weights, accuracy, trained, _family(run), setting)


def _family(run: Run) -> str:
    options = run.config.identity()
    default = type(run.config)().identity()
    sizes = [worded(name, options[name]) for name in _FAMILY if options[name] != default[name]]
    return " ".join([run.config.network, run.config.data, *sizes])
