"""Networks whose accuracy is known, wherever they come from: a table of checkpoints, or runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rankwise.errors import ConfigError

__all__ = ["Columns", "LeftOut", "Network", "Zoo", "check_scales", "source_groups"]

FEWEST_GROUPS = 5  # as many as an interval takes
LEVELS = ("repository", "folder", "file")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table that were asked for; those that are None are found by usual names."""

    checkpoint: str | None = None
    accuracy: str | None = None
    train_accuracy: str | None = None
    group: str | None = None
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """A trained network.

    Attributes:
        name: What to call it.
        path: Its weights.
        accuracy: On the test set, as a share or in percent.
        train_accuracy: On the training set, where known, on the same scale.
        family: Networks of one family are ranked among each other.
        group: Networks of one group, such as trials of one setting, are not independent.
    """

    name: str
    path: Path
    accuracy: float
    train_accuracy: float | None
    family: str
    group: str

    @property
    def gap(self) -> float | None:
        """The generalisation gap: by how much it does better in training."""
        return None if self.train_accuracy is None else self.train_accuracy - self.accuracy


class LeftOut(NamedTuple):
    """A network that takes no part, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Zoo:
    """Networks to rank.

    Attributes:
        source: Where they were read from.
        networks: Those that can be measured, as far as is known.
        left_out: The others.
        columns: What was taken from where, by what it was taken for.
        grouping: What makes a group, by family.
        notes: What was warned of while reading.
    """

    source: str
    networks: tuple[Network, ...]
    left_out: tuple[LeftOut, ...]
    columns: Mapping[str, str]
    grouping: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def check_scales(networks: Iterable[Network], source: str) -> None:
    """See that a family's accuracies, tested and trained, are all shares or all percents.

    Raises:
        ConfigError: Naming the family. A gap of one scale and the other would be nonsense.
    """
    families: dict[str, list[Network]] = {}
    for network in networks:
        families.setdefault(network.family, []).append(network)
    for family, members in families.items():
        trained = [one.train_accuracy for one in members if one.train_accuracy is not None]
        values = [one.accuracy for one in members]
        found = {"accuracies": values, "train accuracies": trained}
        scales = {
            "percent" if value > 1 else "share" for v in found.values() for value in v if value
        }
        if len(scales) > 1:
            counts = ", ".join(_counted(name, v) for name, v in found.items() if v)
            raise ConfigError(
                f"{source}: the family {family!r} mixes shares and percents ({counts}). Give "
                "all of its accuracies from 0 to 1, or all from 0 to 100."
            )


def _counted(name: str, values: Sequence[float]) -> str:
    above = sum(value > 1 for value in values)
    return f"{above} of {len(values)} {name} above 1"


def source_groups(sources: Sequence[str]) -> tuple[str, list[str]]:
    """Groups from where each network of a family was published, as in "owner/repo@commit:path".

    Networks of one repository have an author, code and data in common, so the coarsest level is
    the most careful one: the repository, the folder in it, the file. But a level with fewer than
    five groups leaves nothing to draw; the next one is taken then.

    Returns:
        The level, and a group for each network.

    Example:
        >>> source_groups(["a/b:save/best.pt", "a/b:save/last.pt", "c/d:x.pt"])[0]
        'file'
    """
    for level, name in enumerate(LEVELS):
        groups = [_at_level(source, level) for source in sources]
        if len(set(groups)) >= FEWEST_GROUPS:
            return name, groups
    return LEVELS[-1], list(sources)


def _at_level(source: str, level: int) -> str:
    scheme, found, rest = source.rpartition("://")
    repository, _, path = rest.partition(":")
    owner = scheme + found + repository.partition("@")[0]
    return (owner, f"{owner}:{path.rpartition('/')[0]}", source)[level]
