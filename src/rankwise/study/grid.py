"""A TOML file → a study: every combination of networks, data, optimizers or anything else.

title = "Optimizers on digits"
trials = 3                          # seeds 0, 1, 2
[options]                           # of every run; a list means each of its values
epochs = 15
data = ["cifar10", "cifar100"]
[[method]]                          # an axis: one entry of each axis makes a cell
label = "SGD, cosine"
optimizer = "sgd"
schedule = "cosine"
tune = { lr = [0.03, 0.1, 0.3] }    # the best of these on held-out training images
[tuning]                            # what runs that choose have instead; may be left out
data = "cifar10"
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from rankwise._text import suggest_names
from rankwise.errors import ConfigError
from rankwise.lab.config import Config, from_mapping, read_toml
from rankwise.lab.data import is_text
from rankwise.lab.defaults import kind_of, resolve
from rankwise.lab.networks import EXTERNAL_PACKAGES, IMAGE_NETWORKS
from rankwise.lab.networks.language import LANGUAGE_NETWORKS
from rankwise.lab.tasks.gan import GAN_NETWORKS
from rankwise.study.columns import trials_name
from rankwise.study.entries import (
    UNTUNED,
    WORDS,
    Entry,
    Options,
    axis_entries,
    check_count,
    entry_of,
    layered,
    shown,
)

__all__ = ["Cell", "Study", "read_study"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination: a setting that is run once for each seed.

    Attributes:
        config: The options as given, with the first seed.
        labels: What the cell is called on each axis.
        seeds: One a trial.
        tuned: The options whose values are to be found by validation.
        candidates: A run for each of those values, scored on held-out training images.
    """

    config: Config
    labels: Mapping[str, str]
    seeds: tuple[int, ...]
    tuned: tuple[str, ...] = ()
    candidates: tuple[Config, ...] = ()

    def trials(self, chosen: Config | None = None) -> tuple[Config, ...]:
        """The cell's runs, one a seed; none as long as it is tuned and nothing was chosen.

        Args:
            chosen: The best of the candidates, where there are any.
        """
        if self.candidates and chosen is None:
            return ()
        found = {name: getattr(chosen, name) for name in self.tuned}
        return tuple(self.config.with_(**found, seed=seed) for seed in self.seeds)


@dataclass(frozen=True, slots=True)
class Study:
    """A grid of runs.

    Attributes:
        name: The file's, without its ending.
        title: A line.
        about: A sentence or two; may be empty.
        path: The file.
        trials: How many seeds each cell has.
        cells: All combinations, in the file's order.

    Example:
        >>> from rankwise.study.grid import read_study
        >>> study = read_study("studies/cpu/table_1a.toml")  # doctest: +SKIP
        >>> study.cells[0].labels  # doctest: +SKIP
        {'data': 'cifar10', 'method': 'SGD, cosine'}
    """

    name: str
    title: str
    about: str
    path: Path
    trials: int
    cells: tuple[Cell, ...]

    def placed(self, *, out: str | None = None, data_root: str | None = None) -> Study:
        """The same study with its runs and data elsewhere; None leaves a place as it is."""
        given = {"out": out, "data_root": data_root}
        where = {name: value for name, value in given.items() if value is not None}
        cells = (
            replace(
                cell,
                config=cell.config.with_(**where),
                candidates=tuple(config.with_(**where) for config in cell.candidates),
            )
            for cell in self.cells
        )
        return replace(self, cells=tuple(cells))


def read_study(path: Path | str) -> Study:
    """Read a study; every run's options are checked.

    Args:
        path: A TOML file.

    Raises:
        ConfigError: If the file is not as above; it names the file and the key.

    Example:
        >>> from rankwise.study.grid import read_study
        >>> read_study("studies/cpu/table_1a.toml").trials  # doctest: +SKIP
        3
    """
    path = Path(path)
    content = read_toml(path)
    trials = _word(content, "trials", 1, path)
    if trials < 1:
        raise ConfigError(f"{path}: expected trials of 1 or more, got {trials}.")
    axes = {
        key: axis_entries(value, key, path) for key, value in content.items() if key not in WORDS
    }
    options = _word(content, "options", {}, path)
    if not options and not axes:
        raise ConfigError(f"{path} asks for no runs: expected [options], or axes as [[method]].")
    common = entry_of(options, f"{path}: [options]")
    if common.label is not None:
        raise ConfigError(f"{path}: [options] has no label; give it to the entries of an axis.")
    both = next((key for key in axes if key in common.listed), None)
    if both is not None:
        raise ConfigError(f"{path}: {both!r} is an axis and a list in [options]. Rename the axis.")
    instead = _tuning(_word(content, "tuning", {}, path), f"{path}: [tuning]")
    cells = tuple(_cells(common, axes, _Trying(trials, instead), path))
    _check_runs(cells, path)
    title = _word(content, "title", path.stem, path)
    return Study(path.stem, title, _word(content, "about", "", path), path, trials, cells)


def _word(content: Mapping[str, Any], key: str, default: Any, path: Path) -> Any:  # noqa: ANN401
    value = content.get(key, default)
    if type(value) is not type(default):
        kind = "a table" if default == {} else type(default).__name__
        raise ConfigError(f"{path}: {key} should be {kind}, got {value!r}.")
    return value


class _Trying(NamedTuple):
    """How often a cell is run, and what its candidates have instead of its own options."""

    trials: int
    instead: Options


def _tuning(table: Mapping[str, Any], source: str) -> Options:
    found = entry_of(table, source)
    if found.label is not None or found.listed or found.tune:
        raise ConfigError(f"{source}: expected options with one value each.")
    wrong = next((key for key in found.fixed if key in UNTUNED), None)
    if wrong is not None:
        raise ConfigError(f"{source}: {wrong} can't differ between tuning and trials.")
    return found.fixed


def _cells(
    common: Entry, axes: Mapping[str, Sequence[Entry]], trying: _Trying, path: Path
) -> Iterator[Cell]:
    sizes = chain(map(len, axes.values()), map(len, common.listed.values()))
    check_count(math.prod(sizes) * trying.trials, path)
    asked = 0
    for entries in product(*axes.values()):
        fixed, tune = layered((common, *entries))
        # What an entry says itself is not combined with what [options] lists.
        free = {k: v for k, v in common.listed.items() if k not in fixed and k not in tune}
        for values in product(*free.values()):
            options = {**fixed, **dict(zip(free, values, strict=True))}
            labels = {
                key: "tuned" if key in tune else shown(key, options[key]) for key in common.listed
            }
            labels |= {axis: str(e.label) for axis, e in zip(axes, entries, strict=True)}
            asked += trying.trials + (math.prod(map(len, tune.values())) if tune else 0)
            check_count(asked, path)
            yield _cell(options, tune, labels, trying, path)


def _cell(
    options: Options,
    tune: Mapping[str, list[object]],
    labels: Mapping[str, str],
    trying: _Trying,
    path: Path,
) -> Cell:
    config = from_mapping(options, str(path))
    if config.validate:
        raise ConfigError(f"{path}: validate belongs to tuning; trials are scored by the test set.")
    seeds = tuple(range(config.seed, config.seed + trying.trials))
    both = next((key for key in tune if key in trying.instead), None)
    if both is not None:
        raise ConfigError(f"{path}: {both} is tuned, and has a value in [tuning]. Remove one.")
    candidates = tuple(
        config.with_(**trying.instead, **dict(zip(tune, values, strict=True)), validate=True)
        for values in (product(*tune.values()) if tune else ())
    )
    return Cell(config, labels, seeds, tuple(tune), candidates)


def _check_task(config: Config) -> None:
    """See that there is such a network, and that it gets what it is for: words, or images."""
    known = (*IMAGE_NETWORKS, *LANGUAGE_NETWORKS, *GAN_NETWORKS)
    package, colon, _ = config.network.partition(":")
    if config.network not in known and not (colon and package in EXTERNAL_PACKAGES):
        raise ConfigError(
            f"There is no network {config.network!r}.{suggest_names(config.network, known)} "
            "`rankwise train --list` names all of them."
        )
    words = is_text(config.data)
    if words != (kind_of(config.network) in ("language", "gpt")):
        one, other = ("text", "images") if words else ("images", "text")
        raise ConfigError(f"{config.data} is {one}, and {config.network} is for {other}.")


def _check_runs(cells: Sequence[Cell], path: Path) -> None:
    """Every run can be asked for, and no two cells ask for the same."""
    seen: dict[object, str] = {}
    for cell in cells:
        named = ", ".join(cell.labels.values()) or "its only cell"
        if cell.config.devices != 1:
            raise ConfigError(
                f"{path}: {named}: expected devices = 1, got {cell.config.devices}. The runs of a "
                "study take one each; several go side by side."
            )
        try:
            _check_task(cell.config)
            for config in cell.candidates:
                resolve(config)
            trials = [cell.trials(one)[0] for one in cell.candidates or (None,)]
            settings = frozenset(trials_name(resolve(config)) for config in trials)
        except ConfigError as error:
            raise ConfigError(f"{path}: {named}: {error}") from None
        # Cells that are tuned may come to share a setting, but not all that they might have.
        if settings in seen:
            raise ConfigError(
                f"{path}: {named} and {seen[settings]} share a run, or would but for their seeds. "
                "Remove one; `trials` makes more seeds."
            )
        seen[settings] = named
