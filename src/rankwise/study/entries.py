"""A study file's tables → entries: what each says of the options, with lists taken apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rankwise.errors import ConfigError
from rankwise.lab.config import Config, from_mapping

__all__ = [
    "UNTUNED",
    "WORDS",
    "Entry",
    "Options",
    "axis_entries",
    "check_count",
    "entry_of",
    "layered",
    "shown",
]

WORDS = ("title", "about", "trials", "options", "tuning")  # every other key is an axis
_SPEAKING = ("network", "data", "optimizer", "schedule")  # whose values tell what they are of
UNTUNED = {"seed", "validate", *(f.name for f in fields(Config) if f.metadata["where"])}
_MOST = 10_000  # runs: more are a slip of the pen

Options = dict[str, Any]


class Entry(NamedTuple):
    """What one layer of options says: a value, or several to combine or to choose from."""

    label: str | None
    fixed: Options
    listed: dict[str, list[object]]
    tune: dict[str, list[object]]


def axis_entries(tables: object, key: str, path: Path) -> list[Entry]:
    """The entries of an axis; one with lists stands for several."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        near = get_close_matches(key, WORDS, 1)
        hint = f"Did you mean {near[0]}?" if near else "An option of all runs belongs in [options]."
        raise ConfigError(f"{path}: {key!r} is no axis, such as [[{key}]] tables make. {hint}")
    if not tables:
        raise ConfigError(f"{path}: the axis {key!r} is empty; expected a table or more.")
    found: list[Entry] = []
    for number, table in enumerate(tables, 1):
        found += _expanded(entry_of(table, f"{path}: [[{key}]] no. {number}"), path)
    labels = [entry.label for entry in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{path}: two entries of [[{key}]] are called {twice!r}. Give each a label of its own."
        )
    return found


def entry_of(table: Mapping[str, Any], source: str) -> Entry:
    """What a table says; its options are checked one by one.

    Raises:
        ConfigError: Naming the source and the key.
    """
    given = {key.replace("-", "_"): value for key, value in table.items()}
    if len(given) < len(table):
        raise ConfigError(f"{source}: an option is given twice, with - and with _.")
    label, tune = given.pop("label", None), given.pop("tune", {})
    if label is not None and (not isinstance(label, str) or not label.strip()):
        raise ConfigError(f"{source}: label should be a name, got {label!r}.")
    if not isinstance(tune, dict):
        raise ConfigError(f"{source}: tune should be as {{ lr = [0.1, 0.3] }}, got {tune!r}.")
    tune = {key.replace("-", "_"): value for key, value in tune.items()}
    for key, values in tune.items():
        if key in given or key in UNTUNED:
            why = "it has a value here already" if key in given else "it is no setting to choose"
            raise ConfigError(f"{source}: {key} can't be tuned: {why}.")
        if not isinstance(values, list):
            raise ConfigError(f"{source}: tune {key} should be a list, got {values!r}.")
    listed = {key: value for key, value in given.items() if isinstance(value, list)}
    fixed = {key: value for key, value in given.items() if key not in listed}
    if "seed" in listed:
        raise ConfigError(f"{source}: seed should be int, the first trial's; `trials` makes more.")
    one = {key: [value] for key, value in fixed.items()}
    return Entry(
        label,
        {key: value[0] for key, value in _checked(one, source).items()},
        _checked(listed, source),
        _checked(tune, f"{source}: tune"),
    )


def _checked(lists: Mapping[str, list[object]], source: str) -> dict[str, list[object]]:
    """The values as a configuration holds them (1 is 1.0 for a rate); wrong ones are refused."""
    for key, values in lists.items():
        if not values:
            raise ConfigError(f"{source}: {key} is an empty list; expected a value or more.")
    return {
        key: [getattr(from_mapping({key: value}, source), key) for value in values]
        for key, values in lists.items()
    }


def _expanded(entry: Entry, path: Path) -> Iterator[Entry]:
    check_count(math.prod(map(len, entry.listed.values())), path)
    for values in product(*entry.listed.values()):
        chosen = dict(zip(entry.listed, values, strict=True))
        # A label for all of them is told apart by what they differ in.
        named = chosen if entry.label is not None else {**entry.fixed, **chosen}
        words = [entry.label] if entry.label is not None else []
        words += [shown(key, value) for key, value in named.items()]
        yield Entry(" ".join(words) or "default", {**entry.fixed, **chosen}, {}, entry.tune)


def shown(key: str, value: object) -> str:
    """An option in a word, as a label has it.

    Example:
        >>> shown("network", "resnet8"), shown("width", 0.5), shown("cutout", True)
        ('resnet8', 'width=0.5', 'cutout')
    """
    if isinstance(value, bool):
        return key if value else f"no {key}"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return shown if key in _SPEAKING else f"{key}={shown}"


def layered(layers: Iterable[Entry]) -> tuple[Options, dict[str, list[object]]]:
    """Options and what is tuned, where a later layer has the last word on an option."""
    fixed: Options = {}
    tune: dict[str, list[object]] = {}
    for layer in layers:
        fixed = {k: v for k, v in fixed.items() if k not in layer.tune} | layer.fixed
        tune = {k: v for k, v in tune.items() if k not in layer.fixed} | layer.tune
    return fixed, tune


def check_count(count: int, path: Path) -> None:
    """Refuse a study that could never be run, before it is laid out in memory.

    Raises:
        ConfigError: If there are too many runs.
    """
    if count > _MOST:
        raise ConfigError(f"{path} asks for {count} runs; expected {_MOST} at most.")
