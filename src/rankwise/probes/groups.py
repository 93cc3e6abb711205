"""Experts or heads of one kind and shape as one group: their spread, and which are unlike.

A network with experts has thousands of matrices. Tables and charts show one row for those that
have the same role in a block; JSON and CSV keep every one.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from rankwise.probes.layer_metrics import LayerMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# As in "model.layers.0.mlp.experts.17.w1.weight" or "mlp.experts.expert_17.wi.weight".
_EXPERT = re.compile(r"(?:^|[._])experts\.(?:expert_)?([0-9]{1,6})(?=\.)")
_SLICE = re.compile(r"\[(?:head )?[0-9]+(?:,[0-9]+)*\]")  # an expert, or an attention head
_FEWEST_SLICES = 2  # of one stored tensor
_FEWEST_EXPERTS = 4  # that only their names show
_FEWEST_COMPARED = 6  # members of which one can be an outlier

_METRICS = (
    *("rank", "rank_fraction", "stable_rank", "condition", "quality", "noise_fraction"),
    *("noise_variance", "spectral_norm", "frobenius_norm", "effective_rank", "prominence"),
)
_DEVIATIONS = 5.0  # robust standard deviations from the median that make an outlier
_ROBUST = 1.4826  # standard deviations of a normal distribution in a median absolute deviation
# The least difference from the median that counts, in each metric that outliers are found by: of
# the number itself, and as a share of the median. Ranks are whole numbers, and often all equal.
_LEAST: dict[str, tuple[float, float]] = {
    "rank": (3.0, 0.2),
    "stable_rank": (0.002, 0.2),
    "noise_fraction": (0.02, 0.0),
    "frobenius_norm": (0.0, 0.5),
}


@dataclass(frozen=True, slots=True)
class Outlier:
    """An expert unlike its siblings.

    Attributes:
        layer: Its row.
        metric: The metric in which it differs most: "rank", "stable_rank", "noise_fraction" or
            "frobenius_norm".
        usual: The median of that metric over the group.
        distance: From the median, in limits: more than 1.
    """

    layer: LayerMetrics
    metric: str
    usual: float
    distance: float


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """The probed experts of one role and shape.

    Attributes:
        name: The stored tensor that holds them, or their names with a star for the number.
        members: Their rows.
        low: A row with the minimum of each metric.
        median: A row with the median of each metric, the most frequent verdict, the parameters of
            all members together, and the unfoldings of the typical member.
        high: A row with the maximum of each metric.
        typical: The member whose s is in the middle, whose spectrum stands for the others'.
        outliers: Of six members or more, those more than 5 robust standard deviations (1.4826
            median absolute deviations) from the median in rank, s, noise share or norm, the
            farthest first. A difference in rank up to 3, in s up to 0.002, in either up to a fifth
            of the median, in the noise share up to 0.02, or in the norm up to half of the median
            does not count.
    """

    name: str
    members: tuple[LayerMetrics, ...]
    low: LayerMetrics
    median: LayerMetrics
    high: LayerMetrics
    typical: LayerMetrics
    outliers: tuple[Outlier, ...]


class Member(Protocol):
    """What can be one of many experts."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sides."""

    @property
    def group(self) -> str | None:
        """The stored tensor that it is a slice of."""


Item = LayerMetrics | LayerGroup  # what takes one row of a table or chart


def group_layers(layers: Iterable[LayerMetrics]) -> list[Item]:
    """Return the probed layers in order, with each group of experts in the place of its first.

    Slices of one stored tensor are a group from two on, experts that only their names show from
    four on. Experts of different shapes are different groups.

    Example:
        >>> import torch, rankwise
        >>> weights = {f"experts.{i}.w1.weight": torch.randn(8, 16) for i in range(8)}
        >>> result = rankwise.probe({"gate.weight": torch.randn(8, 16), **weights})
        >>> [item.name for item in group_layers(result.layers)]
        ['gate.weight', 'experts.*.w1.weight']
    """
    probed = [layer for layer in layers if layer.is_probed]
    items: dict[int, Item] = dict(enumerate(probed))
    for name, places in find_groups(probed):
        for place in places[1:]:
            del items[place]
        items[places[0]] = make_group(name, [probed[place] for place in places])
    return list(items.values())  # in the order of their places, which are never inserted anew


def find_groups(layers: Sequence[Member]) -> list[tuple[str, list[int]]]:
    """Return the name of each group and the places of its members among the layers."""
    groups: dict[tuple[str, tuple[int, ...], bool], list[int]] = {}
    for place, layer in enumerate(layers):
        if name := _find_group_name(layer):
            groups.setdefault((name, layer.shape, layer.group is None), []).append(place)
    return [
        (name, places)
        for (name, _, is_by_name), places in groups.items()
        if len(places) >= (_FEWEST_EXPERTS if is_by_name else _FEWEST_SLICES)
    ]


def make_group(name: str, members: Sequence[LayerMetrics]) -> LayerGroup:
    """Return the group of these members: the spread of each metric, and the outliers."""
    ordered = sorted(members, key=lambda layer: layer.stable_rank or 0.0)
    typical = ordered[len(ordered) // 2]
    verdicts = Counter(layer.verdict for layer in members)
    middle = replace(
        typical,
        name=name,
        group=None,
        reason="",
        parameters=sum(layer.parameters for layer in members),
        verdict=verdicts.most_common(1)[0][0],
    )
    low: dict[str, Any] = {}
    usual: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for metric in _METRICS:
        values = [v for layer in members if (v := getattr(layer, metric)) is not None]
        low[metric] = min(values, default=None)
        usual[metric] = median(values) if values else None
        high[metric] = max(values, default=None)
    return LayerGroup(
        name,
        tuple(members),
        replace(middle, **low),
        replace(middle, **usual),
        replace(middle, **high),
        typical,
        tuple(_find_outliers(members)),
    )


def get_row(item: Item) -> LayerMetrics:
    """Return the row that stands for an item: the layer's own, or a group's medians."""
    return item.median if isinstance(item, LayerGroup) else item


def list_outliers(items: Iterable[Item]) -> list[Outlier]:
    """Return the outliers of all groups, the farthest from their siblings first."""
    groups = (item for item in items if isinstance(item, LayerGroup))
    return sorted((one for group in groups for one in group.outliers), key=lambda o: -o.distance)


def _find_group_name(layer: Member) -> str | None:
    if layer.group is not None:
        # What follows the number of the slice is its part, as the gate of a stacked projection.
        part = _SLICE.sub("", layer.name.removeprefix(layer.group), count=1)
        return f"{layer.group}{part}" if layer.name.startswith(layer.group) else layer.group
    match = _EXPERT.search(layer.name)
    if match is None:
        return None
    return f"{layer.name[: match.start(1)]}*{layer.name[match.end(1) :]}"


def _find_outliers(members: Sequence[LayerMetrics]) -> list[Outlier]:
    farthest: dict[int, Outlier] = {}
    if len(members) < _FEWEST_COMPARED:
        return []
    for metric, (least, share) in _LEAST.items():
        values = [getattr(layer, metric) or 0.0 for layer in members]
        usual = median(values)
        spread = median(abs(value - usual) for value in values)
        limit = max(_DEVIATIONS * _ROBUST * spread, least, share * abs(usual))
        for place, value in enumerate(values if limit else ()):
            distance = abs(value - usual) / limit
            if distance > max(1.0, farthest[place].distance if place in farthest else 0.0):
                farthest[place] = Outlier(members[place], metric, usual, distance)
    return sorted(farthest.values(), key=lambda outlier: -outlier.distance)
