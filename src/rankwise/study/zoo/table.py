"""A CSV of checkpoints and accuracies → the networks to rank. Nothing in it is run."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rankwise.errors import ConfigError, DataError
from rankwise.study.zoo.networks import Columns, LeftOut, Network, Zoo, check_scales, source_groups

__all__ = ["read_table"]

Row = Mapping[str, str]

# The usual names, the best first; of the accuracies a row has the first that is not empty.
USUAL: Mapping[str, tuple[str, ...]] = {
    "checkpoint": ("checkpoint", "file", "path"),
    "accuracy": (
        "accuracy",
        "acc",
        "test_accuracy",
        "acc_measured",
        "acc_recorded",
        "acc_published",
    ),
    "train_accuracy": ("train_accuracy",),
    "group": ("group", "source"),
    "family": ("family",),
}
_NEEDED = ("checkpoint", "accuracy")
ALL = "all"


def read_table(path: Path, asked: Columns | None = None) -> Zoo:
    """Read a table with a head line: checkpoints (paths from the table's folder) and accuracies.

    Args:
        path: The CSV file, in UTF-8.
        asked: The columns to use; without it those of usual names.

    Raises:
        DataError: If it can't be read as CSV, or has no rows.
        ConfigError: If a column is missing, or a family mixes shares and percents.
    """
    heads, rows = _rows(path)
    twice = sorted({name for name in heads if heads.count(name) > 1})
    chosen = {role: _columns(role, asked, heads, path) for role in USUAL}
    repeated = [name for names in chosen.values() for name in names if name in twice]
    if repeated:
        raise ConfigError(f"{path} has more than one column {repeated[0]!r}; rename one.")
    found = [_network(row, number, chosen, path.parent) for number, row in rows]
    networks = [one for one in found if isinstance(one, Network)]
    left_out = [one for one in found if isinstance(one, LeftOut)]
    # A column that was named is taken as it is.
    by_source = chosen["group"] == ["source"] and (asked is None or asked.group is None)
    networks, grouping = _grouped(networks) if by_source else (networks, {})
    check_scales(networks, str(path))
    said = {role: ", else ".join(names) for role, names in chosen.items() if names}
    return Zoo(str(path), tuple(networks), tuple(left_out), said, grouping)


def _rows(path: Path) -> tuple[list[str], list[tuple[int, Row]]]:
    """The names of the columns, and the rows with the numbers of their lines."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            heads = next((row for row in reader if any(row)), [])
            rows: list[tuple[int, Row]]
            # What a row has too little of is empty, and what it has too much of is left out.
            rows = [
                (reader.line_num, dict.fromkeys(heads, "") | dict(zip(heads, row, strict=False)))
                for row in reader
                if any(row)
            ]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read as CSV in UTF-8: {error}.") from None
    if not rows:
        raise DataError(f"{path} has no rows: expected a line of names, then a line a checkpoint.")
    return heads, rows


def _columns(role: str, asked: Columns | None, heads: Sequence[str], path: Path) -> list[str]:
    """The columns that serve for something: the one asked for, or those of usual names."""
    name = getattr(asked, role) if asked is not None else None
    found = [name] if name is not None else [usual for usual in USUAL[role] if usual in heads]
    if name is not None and name not in heads:
        raise ConfigError(f"{path} has no column {name!r}; it has {', '.join(heads)}.")
    if not found and role in _NEEDED:
        expected = ", ".join(USUAL[role])
        raise ConfigError(
            f"{path} has no column for the {role} ({expected}); it has {', '.join(heads)}. Name "
            f"the one to take with --{role}."
        )
    return found if role == "accuracy" else found[:1]


def _network(
    row: Row, number: int, columns: Mapping[str, Sequence[str]], folder: Path
) -> Network | LeftOut:
    given = {role: _first(row, names) for role, names in columns.items()}
    name = given["checkpoint"] or f"line {number}"
    if not given["checkpoint"]:
        return LeftOut(name, "names no checkpoint")
    if not given["accuracy"]:
        return LeftOut(name, "has no accuracy")
    accuracy, trained = _accuracy(given["accuracy"]), _accuracy(given["train_accuracy"])
    if accuracy is None:
        return LeftOut(name, f"has an accuracy that is none: {given['accuracy']!r}")
    if trained is None and given["train_accuracy"]:
        return LeftOut(name, f"has a train accuracy that is none: {given['train_accuracy']!r}")
    path = folder / name
    if not _exists(path):
        return LeftOut(name, "there is no such file")
    # A row that names no group stands for itself.
    return Network(name, path, accuracy, trained, given["family"] or ALL, given["group"] or name)


def _exists(path: Path) -> bool:
    try:
        return path.is_file() or path.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _first(row: Row, names: Sequence[str]) -> str:
    return next((row[name].strip() for name in names if row.get(name, "").strip()), "")


def _accuracy(text: str) -> float | None:
    """A share or a percentage; None for anything else. What has a sign of percent is a share."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        return None
    if not (math.isfinite(value) and 0 <= value <= 100):
        return None
    return value / 100 if text.endswith("%") else value


def _grouped(networks: Sequence[Network]) -> tuple[list[Network], dict[str, str]]:
    """The networks with coarser groups than their sources, and the level of each family's."""
    families: dict[str, list[int]] = {}
    for place, network in enumerate(networks):
        families.setdefault(network.family, []).append(place)
    grouped, levels = list(networks), {}
    for family, places in families.items():
        levels[family], groups = source_groups([networks[place].group for place in places])
        for place, group in zip(places, groups, strict=True):
            grouped[place] = replace(networks[place], group=group)
    return grouped, levels
