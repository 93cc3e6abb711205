"""What was found on how scores rank networks, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rankwise.study.correlation import Correlation
from rankwise.study.zoo.measure import Measured
from rankwise.study.zoo.networks import LeftOut, Zoo
from rankwise.study.zoo.scores import SCORES

__all__ = ["Choice", "Family", "Ranked", "Ranking"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """How a score goes with something.

    Attributes:
        name: The score's, or a layer's.
        plcc: Pearson's coefficient.
        srocc: Spearman's.
        krocc: Kendall's.
        p: Of the rank correlation by a permutation test; None where there is none.
        adjusted: The same by Holm's rule, for all scores and families, or for all layers.
    """

    name: str
    plcc: Correlation
    srocc: Correlation
    krocc: Correlation
    p: float | None
    adjusted: float | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """Networks that are ranked among each other.

    Attributes:
        name: The family's.
        grouping: What makes a group, in words; "" where the table says.
        members: The networks.
        accuracy: Every score against the test accuracy.
        gap: Every score against the generalisation gap; empty where it is not known.
        alike: How many members have the commonest architecture.
        alike_quality: Q against the test accuracy among those.
        layers: The q of each of their layers against the test accuracy.
        rank_one_quality: Q against the share of unfoldings that are of rank 1.
    """

    name: str
    grouping: str
    members: tuple[Measured, ...]
    accuracy: tuple[Ranked, ...]
    gap: tuple[Ranked, ...]
    alike: int
    alike_quality: Ranked
    layers: tuple[Ranked, ...]
    rank_one_quality: Ranked

    @property
    def architectures(self) -> int:
        """How many sets of names and shapes the members have."""
        return len({member.shapes for member in self.members})

    def of(self, score: str) -> Ranked:
        """A score against the test accuracy."""
        return next(ranked for ranked in self.accuracy if ranked.name == score)

    def layer_share(self, field: str) -> float:
        """The share of all members' layers that are "rank_one" or "empty"."""
        layers = sum(len(member.shapes) for member in self.members)
        return float(sum(getattr(member, field) for member in self.members) / layers)


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate that does best on some families, and how it does on the others.

    Attributes:
        score: The candidate with the highest mean SROCC.
        chosen_on: By family, its SROCC there.
        reported_on: The same on the families that had no part in the choice.
    """

    score: str
    chosen_on: Mapping[str, float]
    reported_on: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The whole.

    Attributes:
        zoo: What was read.
        families: By name.
        left_out: What takes no part, and why.
        choices: Of one half of the families and of the other; empty for a single family.
        tests: How many tests `Ranked.adjusted` is adjusted for.
        seed: What the drawing began with.
        resamples: How many were drawn for an interval.
        permutations: How many shuffles a p is of.
    """

    zoo: Zoo
    families: tuple[Family, ...]
    left_out: tuple[LeftOut, ...]
    choices: tuple[Choice, ...]
    tests: int
    seed: int
    resamples: int
    permutations: int

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain types, ready for JSON."""
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
            "families": [_family_dict(family) for family in self.families],
            "choices": [asdict(choice) for choice in self.choices],
            "left_out": [one._asdict() for one in self.left_out],
        }


def _family_dict(family: Family) -> dict[str, Any]:
    widths = [width for member in family.members for width in member.rank_one_widths]
    return {
        "name": family.name,
        "networks": len(family.members),
        "groups": len({member.network.group for member in family.members}),
        "grouping": family.grouping,
        "architectures": family.architectures,
        "rank_one_layers": family.layer_share("rank_one"),
        "empty_layers": family.layer_share("empty"),
        "rank_one_widths": dict(sorted(Counter(widths).items())),
        "quality_and_rank_one_share": asdict(family.rank_one_quality),
        "accuracy": [asdict(ranked) for ranked in family.accuracy],
        "gap": [asdict(ranked) for ranked in family.gap],
        "of_one_architecture": {
            "networks": family.alike,
            "quality": asdict(family.alike_quality),
            "layers": [asdict(ranked) for ranked in family.layers],
        },
    }
