"""How well scores rank networks, family by family (METHOD §7): correlations, intervals, p."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import rankwise
from rankwise.study.stats import Correlation, adjust_holm, correlate, permutation_test
from rankwise.study.zoo.networks import SkippedNetwork, Zoo
from rankwise.study.zoo.scores import CANDIDATES, SCORES, MeasuredNetwork, measure_networks

_SHUFFLES = 10  # for each resample: Holm's rule over many tests needs a small least p
_MIN_NETWORKS = 3


@dataclass(frozen=True, slots=True)
class ScoreCorrelation:
    """How a score, or the q of a layer, correlates with a target."""

    name: str
    plcc: Correlation  # Pearson
    srocc: Correlation  # Spearman
    krocc: Correlation  # Kendall
    p: float | None  # of the rank correlation, by a permutation test
    adjusted: float | None = None  # by Holm's rule, over all scores and families, or all layers


@dataclass(frozen=True, slots=True)
class Family:
    """Networks that are ranked among each other."""

    name: str
    grouping: str  # what makes a group; "" where the table says it
    members: tuple[MeasuredNetwork, ...]
    accuracy: tuple[ScoreCorrelation, ...]  # every score against the test accuracy
    gap: tuple[ScoreCorrelation, ...]  # against the generalisation gap; empty if it is not known
    alike: int  # how many members have the most common architecture
    alike_quality: ScoreCorrelation  # Q against the test accuracy among those
    layers: tuple[ScoreCorrelation, ...]  # the q of each of their layers against the test accuracy
    rank_one_quality: ScoreCorrelation  # Q against the share of unfoldings that have rank 1

    @property
    def architectures(self) -> int:
        """How many architectures the members have."""
        return len({member.shapes for member in self.members})

    def of(self, score: str) -> ScoreCorrelation:
        """Return a score against the test accuracy."""
        return next(one for one in self.accuracy if one.name == score)

    def layer_share(self, field: str) -> float:
        """Return the share of all members' layers that are "rank_one" or "empty"."""
        layers = sum(len(member.shapes) for member in self.members)
        return float(sum(getattr(member, field) for member in self.members) / layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the family as plain types, ready for JSON."""
        widths = Counter(width for member in self.members for width in member.rank_one_widths)
        return {
            "name": self.name,
            "networks": len(self.members),
            "groups": len({member.network.group for member in self.members}),
            "grouping": self.grouping,
            "architectures": self.architectures,
            "rank_one_layers": self.layer_share("rank_one"),
            "empty_layers": self.layer_share("empty"),
            "rank_one_widths": dict(sorted(widths.items())),
            "quality_and_rank_one_share": asdict(self.rank_one_quality),
            "accuracy": [asdict(one) for one in self.accuracy],
            "gap": [asdict(one) for one in self.gap],
            "of_one_architecture": {
                "networks": self.alike,
                "quality": asdict(self.alike_quality),
                "layers": [asdict(one) for one in self.layers],
            },
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate that does best on some families, and how it does on the others."""

    score: str  # the candidate with the highest mean SROCC
    chosen_on: Mapping[str, float]  # its SROCC, by family
    reported_on: Mapping[str, float]  # on the families that had no part in the choice


@dataclass(frozen=True, slots=True)
class Ranking:
    """How well all scores rank the networks of a zoo."""

    zoo: Zoo
    families: tuple[Family, ...]
    skipped: tuple[SkippedNetwork, ...]
    choices: tuple[Choice, ...]  # made on each half of the families; empty for a single family
    tests: int  # that `ScoreCorrelation.adjusted` is adjusted for
    seed: int
    resamples: int  # for an interval
    permutations: int  # for a p

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain types, ready for JSON."""
        return {
            "format": "rankwise-ranking",
            "source": self.zoo.source,
            "columns": dict(self.zoo.columns),
            "notes": list(self.zoo.notes),
            "seed": self.seed,
            "resamples": self.resamples,
            "permutations": self.permutations,
            "tests": self.tests,
            "scores": {name: score.formula for name, score in SCORES.items()},
            "families": [family.to_dict() for family in self.families],
            "choices": [asdict(choice) for choice in self.choices],
            "skipped": [one._asdict() for one in self.skipped],
        }


def rank_networks(
    zoo: Zoo,
    *,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[rankwise.Progress], None] | None = None,
) -> Ranking:
    """Measure all networks of a zoo and compute which scores rank them."""
    measured, unreadable = measure_networks(zoo.networks, progress)
    members: dict[str, list[MeasuredNetwork]] = {}
    for one in measured:
        members.setdefault(one.network.family, []).append(one)
    draws = _Draws(resamples, _SHUFFLES * resamples - 1, seed)
    families = _adjust(
        [_rank_family(n, zoo.grouping.get(n, ""), members[n], draws) for n in sorted(members)]
    )
    return Ranking(
        zoo,
        families,
        (*zoo.skipped, *unreadable),
        _choose_both_ways(families),
        sum(one.p is not None for family in families for one in (*family.accuracy, *family.gap)),
        seed,
        resamples,
        draws.permutations,
    )


@dataclass(frozen=True, slots=True)
class _Draws:
    """How often to draw, and the seed."""

    resamples: int
    permutations: int
    seed: int

    def correlate(
        self,
        name: str,
        members: Sequence[MeasuredNetwork],
        first: Sequence[float | None],
        second: Sequence[float | None],
    ) -> ScoreCorrelation:
        groups = [member.network.group for member in members]
        coefficients = correlate(
            first, second, groups=groups, resamples=self.resamples, seed=self.seed
        )
        p = permutation_test(
            first, second, groups=groups, permutations=self.permutations, seed=self.seed
        )
        return ScoreCorrelation(name, *coefficients, p=p)

    def correlate_scores(
        self, members: Sequence[MeasuredNetwork], target: Sequence[float | None]
    ) -> tuple[ScoreCorrelation, ...]:
        return tuple(
            self.correlate(name, members, [member.scores[name] for member in members], target)
            for name in SCORES
        )

    def correlate_layers(self, alike: Sequence[MeasuredNetwork]) -> tuple[ScoreCorrelation, ...]:
        """The q of each layer of networks of one architecture."""
        accuracies = [member.network.accuracy for member in alike]
        return tuple(
            self.correlate(layer, alike, [m.qualities.get(layer) for m in alike], accuracies)
            for layer in alike[0].qualities
        )


def _rank_family(
    name: str, grouping: str, members: Sequence[MeasuredNetwork], draws: _Draws
) -> Family:
    shapes = Counter(member.shapes for member in members).most_common(1)[0][0]
    alike = [member for member in members if member.shapes == shapes]
    gaps = [member.network.gap for member in members]
    has_gap = len(members) - gaps.count(None) >= _MIN_NETWORKS
    return Family(
        name,
        grouping,
        tuple(members),
        draws.correlate_scores(members, [member.network.accuracy for member in members]),
        draws.correlate_scores(members, gaps) if has_gap else (),
        len(alike),
        draws.correlate(
            "quality",
            alike,
            [member.scores["quality"] for member in alike],
            [member.network.accuracy for member in alike],
        ),
        draws.correlate_layers(alike) if len(alike) >= _MIN_NETWORKS else (),
        draws.correlate(
            "rank_one_share",
            members,
            [member.scores["quality"] for member in members],
            [member.rank_one_share for member in members],
        ),
    )


def _adjust(families: Sequence[Family]) -> tuple[Family, ...]:
    """Adjust p: scores over all families and targets, layers within each family."""
    adjusted = iter(adjust_holm([one.p for f in families for one in (*f.accuracy, *f.gap)]))
    return tuple(
        replace(
            family,
            accuracy=tuple(replace(one, adjusted=next(adjusted)) for one in family.accuracy),
            gap=tuple(replace(one, adjusted=next(adjusted)) for one in family.gap),
            layers=tuple(
                replace(one, adjusted=p)
                for one, p in zip(
                    family.layers, adjust_holm([one.p for one in family.layers]), strict=True
                )
            ),
        )
        for family in families
    )


def _choose_both_ways(families: Sequence[Family]) -> tuple[Choice, ...]:
    """Choose the best candidate on every other family, report it on the rest; and vice versa."""
    halves = families[0::2], families[1::2]
    if not halves[1]:
        return ()
    choices = (_choose(halves[0], halves[1]), _choose(halves[1], halves[0]))
    return tuple(choice for choice in choices if choice is not None)


def _choose(chosen_on: Sequence[Family], reported_on: Sequence[Family]) -> Choice | None:
    values = {score.name: _list_srocc(chosen_on, score.name) for score in CANDIDATES}
    means = {name: statistics.fmean(own.values()) for name, own in values.items() if own}
    if not means:
        return None
    best = max(means, key=means.__getitem__)
    return Choice(best, values[best], _list_srocc(reported_on, best))


def _list_srocc(families: Iterable[Family], score: str) -> dict[str, float]:
    values = {family.name: family.of(score).srocc.value for family in families}
    return {name: value for name, value in values.items() if value is not None}
