"""A TOML file → a study: every combination of networks, data, optimizers or any other option.

title = "Optimizers on digits"
trials = 3                          # seeds 0, 1, 2
[options]                           # of every run; a list means each of its values
epochs = 15
data = ["cifar10", "cifar100"]
[[method]]                          # an axis: one entry of each axis makes a grid point
label = "SGD, cosine"
optimizer = "sgd"
schedule = "cosine"
tune = { lr = [0.03, 0.1, 0.3] }    # choose the best of these on held-out training images
[tuning]                            # options of the tuning runs, instead of the trials' (optional)
data = "cifar10"
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from rankwise._text import format_count, suggest_names
from rankwise.errors import ConfigError
from rankwise.lab.config import Config, from_mapping, read_toml
from rankwise.lab.data import is_text
from rankwise.lab.defaults import check_network, kind_of, resolve

_KEYS = ("title", "about", "trials", "options", "tuning")  # every other key is an axis
_SELF_EXPLANATORY = ("network", "data", "optimizer", "schedule")  # values need no option's name
_NOT_TUNABLE = {"seed", "validate", *(f.name for f in fields(Config) if f.metadata["where"])}
_MAX_RUNS = 10_000  # more are a mistake in the file

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One combination of options, trained once for each seed.

    Attributes:
        config: The options as given, with the first seed.
        labels: Its name on each axis.
        seeds: One for each trial.
        tuned: The options whose values are chosen by validation.
        candidates: A run for each of those values, scored on held-out training images.
    """

    config: Config
    labels: Mapping[str, str]
    seeds: tuple[int, ...]
    tuned: tuple[str, ...] = ()
    candidates: tuple[Config, ...] = ()

    def __repr__(self) -> str:
        trials = format_count(len(self.seeds), "trial")
        tuned = f", {', '.join(self.tuned)} tuned" if self.tuned else ""
        return f"<GridPoint {self.name!r}: {trials}{tuned}>"

    @property
    def name(self) -> str:
        """All labels in a line."""
        return ", ".join(self.labels.values()) or "all runs"

    def trials(self, best: Config | None = None) -> tuple[Config, ...]:
        """Return the runs, one for each seed; none while tuning is not over.

        `best` is the best of the candidates, where there are any.
        """
        if self.candidates and best is None:
            return ()
        values = {name: getattr(best, name) for name in self.tuned}
        return tuple(self.config.with_(**values, seed=seed) for seed in self.seeds)


@dataclass(frozen=True, slots=True)
class Study:
    """A grid of runs.

    Attributes:
        name: The file's name without its ending.
        about: A sentence or two; may be empty.
        path: The file.
        trials: How many seeds each grid point has.
        points: All combinations, in the file's order.

    Example:
        >>> from rankwise.study import read_study
        >>> study = read_study("studies/cpu/table_1a.toml")  # doctest: +SKIP
        >>> study.points[0].labels  # doctest: +SKIP
        {'data': 'cifar10', 'method': 'SGD, cosine'}
    """

    name: str
    title: str
    about: str
    path: Path
    trials: int
    points: tuple[GridPoint, ...]

    def __repr__(self) -> str:
        points = format_count(len(self.points), "grid point")
        return f"<Study {self.name!r}: {points}, {format_count(self.trials, 'trial')} each>"

    def with_folders(self, *, out: str | None = None, data_root: str | None = None) -> Study:
        """Return the study with other folders for runs and data; None keeps a folder."""
        given = {"out": out, "data_root": data_root}
        folders = {name: value for name, value in given.items() if value is not None}
        points = (
            replace(
                point,
                config=point.config.with_(**folders),
                candidates=tuple(config.with_(**folders) for config in point.candidates),
            )
            for point in self.points
        )
        return replace(self, points=tuple(points))


def read_study(path: Path | str) -> Study:
    """Read a study and check the options of every run.

    Raises:
        ConfigError: If the file is not as above; the message names the file and the key.

    Example:
        >>> from rankwise.study import read_study
        >>> read_study("studies/cpu/table_1a.toml").trials  # doctest: +SKIP
        3
    """
    path = Path(path)
    content = read_toml(path)
    trials = _read_key(content, "trials", 1, path)
    if trials < 1:
        raise ConfigError(f"{path}: expected trials of 1 or more, got {trials}.")
    axes = {key: _read_axis(value, key, path) for key, value in content.items() if key not in _KEYS}
    options = _read_key(content, "options", {}, path)
    if not options and not axes:
        raise ConfigError(f"{path} asks for no runs: expected [options], or axes as [[method]].")
    common = _read_entry(options, f"{path}: [options]")
    if common.label is not None:
        raise ConfigError(f"{path}: [options] has no label; give it to the entries of an axis.")
    both = next((key for key in axes if key in common.listed), None)
    if both is not None:
        raise ConfigError(f"{path}: {both!r} is an axis and a list in [options]. Rename the axis.")
    tuning = _read_tuning(_read_key(content, "tuning", {}, path), f"{path}: [tuning]")
    points = tuple(_expand_grid(common, axes, _Repeats(trials, tuning), path))
    _check_runs(points, path)
    title = _read_key(content, "title", path.stem, path)
    return Study(path.stem, title, _read_key(content, "about", "", path), path, trials, points)


def _read_key(content: Mapping[str, Any], key: str, default: Any, path: Path) -> Any:  # noqa: ANN401
    value = content.get(key, default)
    if type(value) is not type(default):
        kind = "a table" if default == {} else type(default).__name__
        raise ConfigError(f"{path}: {key} should be {kind}, got {value!r}.")
    return value


class _Entry(NamedTuple):
    """The options of a table in the file: single values, lists to combine, lists to choose from."""

    label: str | None
    fixed: Options
    listed: dict[str, list[object]]
    tune: dict[str, list[object]]


class _Repeats(NamedTuple):
    """How many trials a grid point has, and the options of its tuning runs."""

    trials: int
    tuning: Options


def _read_entry(table: Mapping[str, Any], source: str) -> _Entry:
    """Read a table; its options are checked one by one."""
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
        if key in given or key in _NOT_TUNABLE:
            why = "it has a value here already" if key in given else "it is not a tunable option"
            raise ConfigError(f"{source}: {key} can't be tuned: {why}.")
        if not isinstance(values, list):
            raise ConfigError(f"{source}: tune {key} should be a list, got {values!r}.")
    listed = {key: value for key, value in given.items() if isinstance(value, list)}
    fixed = {key: [value] for key, value in given.items() if key not in listed}
    if "seed" in listed:
        raise ConfigError(f"{source}: seed should be int, the first trial's; `trials` makes more.")
    return _Entry(
        label,
        {key: value[0] for key, value in _check_values(fixed, source).items()},
        _check_values(listed, source),
        _check_values(tune, f"{source}: tune"),
    )


def _check_values(lists: Mapping[str, list[object]], source: str) -> dict[str, list[object]]:
    """Return the values as a configuration holds them (1 becomes 1.0 for a rate)."""
    for key, values in lists.items():
        if not values:
            raise ConfigError(f"{source}: {key} is an empty list; expected a value or more.")
    return {
        key: [getattr(from_mapping({key: value}, source), key) for value in values]
        for key, values in lists.items()
    }


def _read_axis(tables: object, key: str, path: Path) -> list[_Entry]:
    """Read the entries of an axis; one with lists becomes several."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        hint = suggest_names(key, _KEYS) or " An option of all runs belongs in [options]."
        raise ConfigError(f"{path}: expected {key!r} to be an axis of [[{key}]] tables.{hint}")
    if not tables:
        raise ConfigError(f"{path}: the axis {key!r} is empty; expected a table or more.")
    entries: list[_Entry] = []
    for number, table in enumerate(tables, 1):
        entries += _expand_lists(_read_entry(table, f"{path}: [[{key}]] no. {number}"), path)
    labels = [entry.label for entry in entries]
    duplicate = next((label for label in labels if labels.count(label) > 1), None)
    if duplicate is not None:
        raise ConfigError(
            f"{path}: two entries of [[{key}]] are called {duplicate!r}. Give each its own label."
        )
    return entries


def _expand_lists(entry: _Entry, path: Path) -> Iterator[_Entry]:
    _check_count(math.prod(map(len, entry.listed.values())), path)
    for values in product(*entry.listed.values()):
        chosen = dict(zip(entry.listed, values, strict=True))
        # A common label is followed by the options in which the entries differ.
        named = chosen if entry.label is not None else {**entry.fixed, **chosen}
        words = [entry.label] if entry.label is not None else []
        words += [_label_option(key, value) for key, value in named.items()]
        yield _Entry(" ".join(words) or "default", {**entry.fixed, **chosen}, {}, entry.tune)


def _label_option(key: str, value: object) -> str:
    if isinstance(value, bool):
        return key if value else f"no {key}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if key in _SELF_EXPLANATORY else f"{key}={text}"


def _read_tuning(table: Mapping[str, Any], source: str) -> Options:
    entry = _read_entry(table, source)
    if entry.label is not None or entry.listed or entry.tune:
        raise ConfigError(f"{source}: expected options with one value each.")
    wrong = next((key for key in entry.fixed if key in _NOT_TUNABLE), None)
    if wrong is not None:
        raise ConfigError(f"{source}: {wrong} can't differ between tuning and trials.")
    return entry.fixed


def _expand_grid(
    common: _Entry, axes: Mapping[str, Sequence[_Entry]], repeats: _Repeats, path: Path
) -> Iterator[GridPoint]:
    sizes = chain(map(len, axes.values()), map(len, common.listed.values()))
    _check_count(math.prod(sizes) * repeats.trials, path)
    count = 0
    for entries in product(*axes.values()):
        fixed, tune = _merge((common, *entries))
        # An option that an entry sets itself is not combined with a list of it in [options].
        free = {k: v for k, v in common.listed.items() if k not in fixed and k not in tune}
        for values in product(*free.values()):
            options = {**fixed, **dict(zip(free, values, strict=True))}
            labels = {
                key: "tuned" if key in tune else _label_option(key, options[key])
                for key in common.listed
            }
            labels |= {axis: str(e.label) for axis, e in zip(axes, entries, strict=True)}
            count += repeats.trials + (math.prod(map(len, tune.values())) if tune else 0)
            _check_count(count, path)
            yield _make_point(options, tune, labels, repeats, path)


def _merge(entries: Iterable[_Entry]) -> tuple[Options, dict[str, list[object]]]:
    """Merge options and what is tuned; a later entry overrides an earlier one."""
    fixed: Options = {}
    tune: dict[str, list[object]] = {}
    for entry in entries:
        fixed = {k: v for k, v in fixed.items() if k not in entry.tune} | entry.fixed
        tune = {k: v for k, v in tune.items() if k not in entry.fixed} | entry.tune
    return fixed, tune


def _make_point(
    options: Options,
    tune: Mapping[str, list[object]],
    labels: Mapping[str, str],
    repeats: _Repeats,
    path: Path,
) -> GridPoint:
    config = from_mapping(options, str(path))
    if config.validate:
        raise ConfigError(f"{path}: validate belongs to tuning; trials are scored by the test set.")
    both = next((key for key in tune if key in repeats.tuning), None)
    if both is not None:
        raise ConfigError(f"{path}: {both} is tuned, and has a value in [tuning]. Remove one.")
    candidates = tuple(
        config.with_(**repeats.tuning, **dict(zip(tune, values, strict=True)), validate=True)
        for values in (product(*tune.values()) if tune else ())
    )
    seeds = tuple(range(config.seed, config.seed + repeats.trials))
    return GridPoint(config, labels, seeds, tuple(tune), candidates)


def _check_count(count: int, path: Path) -> None:
    """Refuse a study that could never be run, before it is expanded in memory."""
    if count > _MAX_RUNS:
        raise ConfigError(f"{path} asks for {count} runs; expected {_MAX_RUNS} at most.")


def _check_runs(points: Sequence[GridPoint], path: Path) -> None:
    """Check that every run is possible and that no two grid points are the same."""
    seen: dict[object, str] = {}
    for point in points:
        if point.config.devices != 1:
            raise ConfigError(
                f"{path}: {point.name}: expected devices = 1, got {point.config.devices}. Each run "
                "of a study uses one device; several runs are trained in parallel."
            )
        try:
            _check_task(point.config)
            for config in point.candidates:
                resolve(config)
            trials = [point.trials(one)[0] for one in point.candidates or (None,)]
            settings = frozenset(resolve(config).with_(seed=0).name for config in trials)
        except ConfigError as error:
            raise ConfigError(f"{path}: {point.name}: {error}") from None
        # Tuned points may end up with the same values, but must not have all candidates in common.
        if settings in seen:
            raise ConfigError(
                f"{path}: {point.name} and {seen[settings]} share a run, or differ by their seeds "
                "only. Remove one; `trials` makes more seeds."
            )
        seen[settings] = point.name


def _check_task(config: Config) -> None:
    """Check that the network exists and fits the data: text or images."""
    check_network(config.network)
    text = is_text(config.data)
    if text != (kind_of(config.network) in ("language", "gpt")):
        one, other = ("text", "images") if text else ("images", "text")
        raise ConfigError(f"{config.data} is {one}, and {config.network} is for {other}.")
