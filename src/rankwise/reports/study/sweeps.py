"""Comparisons in which one option varies, or two, and all others are the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rankwise.charts.study import OPTIONS
from rankwise.study.table import Trials, differing_options, format_options

__all__ = ["Grid", "Sweep", "grids", "sweep"]

Row = dict[str, Any]
Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sweep:
    """An option that varies.

    Attributes:
        option: Its name.
        series: What else tells the lines apart, the best first.
        rows: Mean and standard deviation of the score for each series and value.
    """

    option: str
    series: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Two options that vary.

    Attributes:
        label: What all of it shares, as far as it tells it from other grids.
        across: An option's name.
        up: The other's.
        rows: The score's mean for each pair of values.
    """

    label: str
    across: str
    up: str
    rows: tuple[Row, ...]


def sweep(found: Sequence[Trials], option: str) -> Sweep | None:
    """What an option does with all others the same; None where it never varies alone."""
    groups = _alike(found, (option,))
    names = _labels([group[0] for group in groups], (option,))
    groups_by_name = sorted(zip(names, groups, strict=True), key=lambda pair: _best(pair[1]))
    rows = tuple(
        {"series": name, "value": one.options[option], **_span(one)}
        for name, group in groups_by_name
        for one in sorted(group, key=lambda one: one.options[option])
    )
    return Sweep(option, tuple(name for name, _ in groups_by_name), rows) if groups else None


def grids(found: Sequence[Trials]) -> list[Grid]:
    """Where two options vary over a grid with all others the same, the largest first."""
    maps = []
    for pair in combinations(OPTIONS, 2):
        groups = [group for group in _alike(found, pair) if _spans(group, pair)]
        names = _labels([group[0] for group in groups], pair)
        maps += [Grid(name, *pair, _cells(g, pair)) for name, g in zip(names, groups, strict=True)]
    return sorted(maps, key=lambda grid: -len(grid.rows))


def _alike(found: Sequence[Trials], names: Sequence[str]) -> list[list[Trials]]:
    """Groups of two or more that differ in the named options only."""
    groups: dict[str, list[Trials]] = {}
    for one in found:
        options = one.options
        if all(options[name] is not None for name in names):
            rest = {k: v for k, v in options.items() if k not in (*names, "seed")}
            groups.setdefault(repr(rest), []).append(one)
    return [group for group in groups.values() if len(group) > 1]


def _spans(group: Sequence[Trials], pair: Iterable[str]) -> bool:
    """Whether both options vary, and over more than a cross or a diagonal."""
    sizes = [len({one.options[name] for one in group}) for name in pair]
    return min(sizes) > 1 and len(group) > max(sum(sizes) - 1, 3)


def _labels(firsts: Sequence[Trials], without: Sequence[str]) -> list[str]:
    """Each group's optimizer, and what tells it from others of that optimizer."""
    options = [one.options for one in firsts]
    labels = []
    for own in options:
        same = [other for other in options if other["optimizer"] == own["optimizer"]]
        names = [name for name in differing_options(same) if name not in without]
        labels.append(" ".join([own["optimizer"], *format_options(own, names)]))
    return labels


def _best(group: Sequence[Trials]) -> float:
    return min(_badness(one) for one in group)


def _badness(found: Trials) -> float:
    mean = _mean(found)
    return mean if found.lower_is_better else -mean


def _mean(found: Trials) -> float:
    if found.mean is None:
        raise ValueError(f"{found.setting} has no finished trial.")
    return found.mean


def _span(found: Trials) -> Row:
    mean, spread = _mean(found), found.spread or 0.0
    return {"mean": mean, "low": mean - spread, "high": mean + spread, "n": len(found.values)}


def _cells(group: Sequence[Trials], pair: Sequence[str]) -> tuple[Row, ...]:
    worst, best = max(map(_badness, group)), min(map(_badness, group))
    return tuple(
        {
            "across": one.options[pair[0]],
            "up": one.options[pair[1]],
            "mean": _mean(one),
            "spread": one.spread,
            "n": len(one.values),
            "share": (worst - _badness(one)) / (worst - best) if worst > best else 1.0,
        }
        for one in group
    )
