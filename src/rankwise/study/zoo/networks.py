"""Networks whose accuracy is known, read from a CSV table of checkpoints or from runs.

Nothing in a table is executed.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rankwise._text import suggest_names
from rankwise.errors import ConfigError, DataError, RunError
from rankwise.lab.records import Run, is_run, load_run
from rankwise.lab.size_space import PREFIX, is_in_size_space
from rankwise.study.table import format_option, setting_name

_MIN_GROUPS = 5  # as many as a bootstrap interval takes
_LEVELS = ("repository", "folder", "file")
# The usual names, the best first; of the accuracies a row has the first that is not empty.
_COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    "checkpoint": ("checkpoint", "file", "path"),
    "accuracy": (
        *("accuracy", "acc", "test_accuracy", "acc_measured", "acc_recorded", "acc_published"),
    ),
    "train_accuracy": ("train_accuracy",),
    "group": ("group", "source"),
    "family": ("family",),
}
_REQUIRED = ("checkpoint", "accuracy")
_DEFAULT_FAMILY = "all"
# What a network is and what it is tested on; all other options are how it was trained.
_FAMILY_OPTIONS = ("width", "image_size", "train_size", "validate")
# Networks of a search space are trained alike, and ranked among those trained as long.
_LENGTHS = ("epochs", "budget")
_RUN_COLUMNS = {
    "checkpoint": "weights.safetensors",
    "accuracy": "after the last epoch, on the run's test set",
    "train_accuracy": "of the last epoch, during training and with augmentation",
    "group": "all options but the seed",
    "family": "network, or search space and length of training, data and their sizes",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of a table's columns; None for the usual names."""

    checkpoint: str | None = None
    accuracy: str | None = None
    train_accuracy: str | None = None
    group: str | None = None
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """A trained network."""

    name: str
    path: Path  # of its weights
    accuracy: float  # on the test set, as a share or in percent
    train_accuracy: float | None  # on the same scale
    family: str  # networks of one family are ranked among each other
    group: str  # networks of one group, such as trials of one setting, are not independent
    key: str | None = None  # of the weights in a file of several networks

    @property
    def gap(self) -> float | None:
        """The generalisation gap: train accuracy − test accuracy."""
        return None if self.train_accuracy is None else self.train_accuracy - self.accuracy


class SkippedNetwork(NamedTuple):
    """A network that is not ranked, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Zoo:
    """Networks to rank."""

    source: str
    networks: tuple[Network, ...]  # those with weights and accuracies
    skipped: tuple[SkippedNetwork, ...]
    columns: Mapping[str, str]  # where each value was read from
    grouping: Mapping[str, str] = field(default_factory=dict)  # what makes a group, by family
    notes: tuple[str, ...] = ()  # warnings while reading


def read_table(path: Path, columns: Columns | None = None) -> Zoo:
    """Read a table with a header: checkpoints (paths from the table's folder) and accuracies."""
    heads, rows = _read_rows(path)
    chosen = {role: _choose_columns(role, columns, heads, path) for role in _COLUMN_NAMES}
    duplicate = next(
        (name for names in chosen.values() for name in names if heads.count(name) > 1), None
    )
    if duplicate is not None:
        raise ConfigError(f"{path} has more than one column {duplicate!r}; rename one.")
    read = [_read_row(row, number, chosen, path.parent) for number, row in rows]
    networks = [one for one in read if isinstance(one, Network)]
    skipped = [one for one in read if isinstance(one, SkippedNetwork)]
    grouping: dict[str, str] = {}
    # A column that was named explicitly is used as it is.
    if chosen["group"] == ["source"] and (columns is None or columns.group is None):
        networks, grouping = _group_by_source(networks)
    _check_scales(networks, str(path))
    used = {role: ", else ".join(names) for role, names in chosen.items() if names}
    return Zoo(str(path), tuple(networks), tuple(skipped), used, grouping)


def _read_rows(path: Path) -> tuple[list[str], list[tuple[int, Mapping[str, str]]]]:
    """Return the names of the columns, and the rows with their line numbers."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            heads = next((row for row in reader if any(row)), [])
            rows: list[tuple[int, Mapping[str, str]]]
            # Missing values are empty, values beyond the last column are dropped.
            rows = [
                (reader.line_num, dict.fromkeys(heads, "") | dict(zip(heads, row, strict=False)))
                for row in reader
                if any(row)
            ]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read as CSV in UTF-8: {error}.") from None
    if not rows:
        raise DataError(f"{path} has no rows: expected a header, then one line per checkpoint.")
    return heads, rows


def _choose_columns(
    role: str, columns: Columns | None, heads: Sequence[str], path: Path
) -> list[str]:
    """Return the named column, or those of usual names."""
    name = getattr(columns, role) if columns is not None else None
    chosen = [name] if name is not None else [n for n in _COLUMN_NAMES[role] if n in heads]
    if name is not None and name not in heads:
        raise ConfigError(
            f"{path} has no column {name!r}; it has {', '.join(heads)}.{suggest_names(name, heads)}"
        )
    if not chosen and role in _REQUIRED:
        expected = ", ".join(_COLUMN_NAMES[role])
        raise ConfigError(
            f"{path} has no column for the {role} ({expected}); it has {', '.join(heads)}. Name "
            f"the column to use with --{role}."
        )
    return chosen if role == "accuracy" else chosen[:1]


def _read_row(
    row: Mapping[str, str], number: int, columns: Mapping[str, Sequence[str]], folder: Path
) -> Network | SkippedNetwork:
    given = {
        role: next((row[name].strip() for name in names if row.get(name, "").strip()), "")
        for role, names in columns.items()
    }
    name = given["checkpoint"] or f"line {number}"
    if not given["checkpoint"]:
        return SkippedNetwork(name, "names no checkpoint")
    if not given["accuracy"]:
        return SkippedNetwork(name, "has no accuracy")
    accuracy, trained = _parse_accuracy(given["accuracy"]), _parse_accuracy(given["train_accuracy"])
    if accuracy is None:
        return SkippedNetwork(name, f"has an invalid accuracy: {given['accuracy']!r}")
    if trained is None and given["train_accuracy"]:
        return SkippedNetwork(name, f"has an invalid train accuracy: {given['train_accuracy']!r}")
    path = folder / name
    if not _exists(path):
        return SkippedNetwork(name, "there is no such file")
    family = given["family"] or _DEFAULT_FAMILY
    # A row without a group is its own group.
    return Network(name, path, accuracy, trained, family, given["group"] or name)


def _exists(path: Path) -> bool:
    try:
        return path.is_file() or path.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _parse_accuracy(text: str) -> float | None:
    """Return a share or a percentage; None for anything else. "81 %" is a share."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        return None
    if not (math.isfinite(value) and 0 <= value <= 100):
        return None
    return value / 100 if text.endswith("%") else value


def _group_by_source(networks: Sequence[Network]) -> tuple[list[Network], dict[str, str]]:
    """Replace each network's source by a coarser group; return each family's level too.

    A source reads "owner/repo@commit:path". Networks of one repository have author, code and data
    in common, so the coarsest level is the most careful one: the repository, the folder in it, the
    file. A level with fewer than five groups leaves nothing to resample; then the next one is used.
    """
    grouped, levels = list(networks), {}
    for family in dict.fromkeys(network.family for network in networks):
        places = [place for place, network in enumerate(networks) if network.family == family]
        for level, name in enumerate(_LEVELS):
            groups = [_coarsen(networks[place].group, level) for place in places]
            levels[family] = name
            if len(set(groups)) >= _MIN_GROUPS:
                break
        for place, group in zip(places, groups, strict=True):
            grouped[place] = replace(networks[place], group=group)
    return grouped, levels


def _coarsen(source: str, level: int) -> str:
    scheme, separator, rest = source.rpartition("://")
    repository, _, path = rest.partition(":")
    owner = scheme + separator + repository.partition("@")[0]
    return (owner, f"{owner}:{path.rpartition('/')[0]}", source)[level]


def _check_scales(networks: Iterable[Network], source: str) -> None:
    """Check that a family's accuracies are all shares or all percents: else a gap is nonsense."""
    families: dict[str, list[Network]] = {}
    for network in networks:
        families.setdefault(network.family, []).append(network)
    for family, members in families.items():
        values = {
            "accuracies": [one.accuracy for one in members],
            "train accuracies": [
                one.train_accuracy for one in members if one.train_accuracy is not None
            ],
        }
        if len({value > 1 for some in values.values() for value in some if value}) > 1:
            counts = ", ".join(
                f"{sum(value > 1 for value in some)} of {len(some)} {name} above 1"
                for name, some in values.items()
                if some
            )
            raise ConfigError(
                f"{source}: the family {family!r} mixes shares and percents ({counts}). Give "
                "all of its accuracies from 0 to 1, or all from 0 to 100."
            )


def read_run_networks(folder: Path, names: Collection[str] | None = None) -> Zoo:
    """Read the networks of the runs in a folder; runs without a final accuracy are skipped."""
    folders = [path for path in sorted(folder.glob("*/")) if is_run(path)]
    folders = [path for path in folders if names is None or path.name in names]
    if not folders:
        raise DataError(
            f"{folder} holds no {'runs' if names is None else 'run of this study'}. Expected a CSV "
            "of checkpoints and accuracies, a folder of runs as `rankwise train --out` writes it, "
            "or a study whose runs are there."
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        read = [_read_run(path) for path in folders]
    networks = tuple(one for one in read if isinstance(one, Network))
    skipped = tuple(one for one in read if isinstance(one, SkippedNetwork))
    _check_scales(networks, str(folder))
    notes = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    return Zoo(str(folder), networks, skipped, _RUN_COLUMNS, notes=notes)


def _read_run(folder: Path) -> Network | SkippedNetwork:
    try:
        run = load_run(folder)
    except (RunError, OSError) as error:
        return SkippedNetwork(folder.name, f"its records can't be read: {error}")
    accuracy = run.scores.get("accuracy")
    if run.status != "finished":
        return SkippedNetwork(folder.name, f"the run is {run.status}")
    if accuracy is None:
        return SkippedNetwork(folder.name, "has no test accuracy")
    if not run.weights.is_file():
        return SkippedNetwork(folder.name, f"has no {run.weights.name}")
    trained = run.epochs[-1].train.get("accuracy")
    group = setting_name(run.config)
    return Network(folder.name, run.weights, accuracy, trained, _name_family(run), group)


def _name_family(run: Run) -> str:
    options, default = run.config.identity(), type(run.config)().identity()
    in_space = is_in_size_space(run.config.network)
    network = PREFIX if in_space else run.config.network
    names = (*_FAMILY_OPTIONS, *(_LENGTHS if in_space else ()))
    sizes = [format_option(name, options[name]) for name in names if options[name] != default[name]]
    return " ".join([network, run.config.data, *sizes])
