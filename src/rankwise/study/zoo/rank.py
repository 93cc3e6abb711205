"""How well scores rank networks, family by family (METHOD §7): coefficients, intervals, p."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rankwise.study.correlation import correlate
from rankwise.study.permutation import holm, permutation_test
from rankwise.study.zoo.measure import Measured, Watcher, measure
from rankwise.study.zoo.networks import Zoo
from rankwise.study.zoo.ranking import Choice, Family, Ranked, Ranking
from rankwise.study.zoo.scores import CANDIDATES, SCORES

__all__ = ["rank_networks"]

Values = Sequence[float | None]

_SHUFFLES = 10  # for each resample: Holm's rule over many tests needs a small least p
_FEWEST = 3


def rank_networks(
    zoo: Zoo, *, resamples: int = 1000, seed: int = 0, watch: Watcher | None = None
) -> Ranking:
    """Measure all networks of a zoo and see which scores rank them.

    Args:
        zoo: As `read_table` or `read_runs` gives it.
        resamples: For the intervals; the permutation test takes ten times as many shuffles.
        seed: The same seed gives the same numbers.
        watch: Called after each network.
    """
    measured, unreadable = measure(zoo.networks, watch)
    members: dict[str, list[Measured]] = {}
    for one in measured:
        members.setdefault(one.network.family, []).append(one)
    draws = _Draws(resamples, _SHUFFLES * resamples - 1, seed)
    found = [
        _family(name, zoo.grouping.get(name, ""), members[name], draws) for name in sorted(members)
    ]
    families = _adjusted(found)
    return Ranking(
        zoo,
        families,
        (*zoo.left_out, *unreadable),
        _choices(families),
        sum(ranked.p is not None for f in families for ranked in (*f.accuracy, *f.gap)),
        seed,
        resamples,
        draws.permutations,
    )


@dataclass(frozen=True, slots=True)
class _Draws:
    """How often to draw, and what the drawing begins with."""

    resamples: int
    permutations: int
    seed: int

    def ranked(
        self, name: str, members: Sequence[Measured], first: Values, second: Values
    ) -> Ranked:
        """How two numbers of some networks go together, their groups kept together."""
        groups = [member.network.group for member in members]
        found = correlate(first, second, groups=groups, resamples=self.resamples, seed=self.seed)
        p = permutation_test(
            first, second, groups=groups, permutations=self.permutations, seed=self.seed
        )
        return Ranked(name, *found, p=p)


def _family(name: str, grouping: str, members: Sequence[Measured], draws: _Draws) -> Family:
    shapes = Counter(member.shapes for member in members).most_common(1)[0][0]
    alike = [member for member in members if member.shapes == shapes]
    quality = _scores(members, "quality")
    gaps = [member.network.gap for member in members]
    has_gap = len(members) - gaps.count(None) >= _FEWEST
    return Family(
        name,
        grouping,
        tuple(members),
        _all_scores(members, _accuracies(members), draws),
        _all_scores(members, gaps, draws) if has_gap else (),
        len(alike),
        draws.ranked("quality", alike, _scores(alike, "quality"), _accuracies(alike)),
        _all_layers(alike, draws) if len(alike) >= _FEWEST else (),
        draws.ranked("rank_one_share", members, quality, [m.rank_one_share for m in members]),
    )


def _accuracies(members: Iterable[Measured]) -> list[float]:
    return [member.network.accuracy for member in members]


def _scores(members: Iterable[Measured], score: str) -> list[float | None]:
    return [member.scores[score] for member in members]


def _all_scores(members: Sequence[Measured], target: Values, draws: _Draws) -> tuple[Ranked, ...]:
    return tuple(draws.ranked(name, members, _scores(members, name), target) for name in SCORES)


def _all_layers(alike: Sequence[Measured], draws: _Draws) -> tuple[Ranked, ...]:
    """The q of each layer of networks of one architecture."""
    accuracies = _accuracies(alike)
    return tuple(
        draws.ranked(layer, alike, [member.qualities.get(layer) for member in alike], accuracies)
        for layer in alike[0].qualities
    )


def _adjusted(families: Sequence[Family]) -> tuple[Family, ...]:
    """The families with p adjusted: scores over all families and targets, layers within each."""
    every = iter(holm([r.p for f in families for r in (*f.accuracy, *f.gap)]))
    return tuple(
        replace(
            family,
            accuracy=tuple(replace(ranked, adjusted=next(every)) for ranked in family.accuracy),
            gap=tuple(replace(ranked, adjusted=next(every)) for ranked in family.gap),
            layers=tuple(
                replace(ranked, adjusted=p)
                for ranked, p in zip(
                    family.layers, holm([ranked.p for ranked in family.layers]), strict=True
                )
            ),
        )
        for family in families
    )


def _choices(families: Sequence[Family]) -> tuple[Choice, ...]:
    """The best candidate of every other family, seen on the rest; and the other way round."""
    halves = families[0::2], families[1::2]
    if not halves[1]:
        return ()
    found = (_choice(halves[0], halves[1]), _choice(halves[1], halves[0]))
    return tuple(choice for choice in found if choice is not None)


def _choice(chosen_on: Sequence[Family], reported_on: Sequence[Family]) -> Choice | None:
    on = {score.name: _values(chosen_on, score.name) for score in CANDIDATES}
    means = {name: statistics.fmean(values.values()) for name, values in on.items() if values}
    if not means:
        return None
    best = max(means, key=means.__getitem__)
    return Choice(best, on[best], _values(reported_on, best))


def _values(families: Iterable[Family], score: str) -> dict[str, float]:
    found = {family.name: family.of(score).srocc.value for family in families}
    return {name: value for name, value in found.items() if value is not None}
