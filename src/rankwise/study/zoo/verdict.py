"""A ranking in sentences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rankwise._text import format_count
from rankwise.study.stats import SIGNIFICANCE, Correlation
from rankwise.study.zoo.ranking import Choice, Family, Ranking, ScoreCorrelation
from rankwise.study.zoo.scores import REFERENCES, SCORES

_RANKS, _RANKS_BACKWARDS = "ranks these networks", "ranks these networks backwards"
_STRONG = 0.5  # an SROCC from which on Q is said to follow the unfoldings of rank 1


def describe_ranking(ranking: Ranking) -> tuple[str, ...]:
    """Return whether Q ranks the networks of each family, compared with their size and norm."""
    if not ranking.families:
        return ("No network could be measured, so there is nothing to rank.",)
    sentences = [_summarize(ranking), *map(_describe_family, ranking.families)]
    sentences += map(_describe_choice, ranking.choices)
    if len(ranking.choices) > 1:
        sentences.append(_compare_choices(ranking.choices))
    return tuple(sentences)


def count_significant(ranking: Ranking) -> int:
    """Return how many scores correlate significantly after the adjustment."""
    every = (one for family in ranking.families for one in (*family.accuracy, *family.gap))
    return sum(one.adjusted is not None and one.adjusted <= SIGNIFICANCE for one in every)


def _summarize(ranking: Ranking) -> str:
    verdicts = [_judge(family.of("quality")) for family in ranking.families]
    families = "1 family" if len(verdicts) == 1 else f"{len(verdicts)} families"
    return (
        f"Q ranks the networks by accuracy in {verdicts.count(_RANKS)} of {families}, and "
        f"backwards in {verdicts.count(_RANKS_BACKWARDS)}. After Holm's adjustment, "
        f"{count_significant(ranking)} of {format_count(ranking.tests, 'test')} are significant."
    )


def _describe_family(family: Family) -> str:
    quality = family.of("quality")
    if quality.srocc.value is None:
        return f"{family.name}: no correlation of Q and accuracy, since {quality.srocc.reason}."
    size = f"{len(family.members)} networks"
    groups = quality.srocc.groups
    size += "" if groups == len(family.members) else f" in {groups} groups"
    others = "; ".join(
        f"{SCORES[name].label}, {_format(family.of(name).srocc)}" for name in REFERENCES
    )
    verdict = f"Q {_judge(quality)} ({_format(quality.srocc)}; {size})"
    return f"{family.name}: {verdict}. For comparison: {others}."


def _judge(score: ScoreCorrelation) -> str:
    srocc = score.srocc
    if srocc.low is None or srocc.high is None or score.p is None:
        return "can't be judged with so few independent networks"
    if srocc.low <= 0 <= srocc.high or score.p > SIGNIFICANCE:
        return "does not rank these networks"
    return _RANKS if srocc.low > 0 else _RANKS_BACKWARDS


def _format(srocc: Correlation) -> str:
    if srocc.value is None:
        return f"no SROCC, {srocc.reason}"
    text = f"SROCC {srocc.value:.2f}"
    if srocc.low is None or srocc.high is None:
        return text
    return f"{text}, 95 % interval {srocc.low:.2f} to {srocc.high:.2f}"


def describe_layers(family: Family) -> str:
    """Return what the layers of a family are like, and whether Q follows from that."""
    one, empty = (100 * family.layer_share(field) for field in ("rank_one", "empty"))
    modes = sum(member.modes for member in family.members)
    widths = [width for member in family.members for width in member.rank_one_widths]
    text = f"{one:.0f} % of layers have rank 1 and {empty:.0f} % are empty"
    if widths:
        text += f"; {100 * len(widths) / modes:.0f} % of unfoldings have rank 1"
        text += f", with a median smaller side of {statistics.median(widths):g}"
    text += f". {_describe_architectures(family)}"
    follows = family.rank_one_quality.srocc
    if follows.value is not None and follows.value >= _STRONG:
        text += (
            f" Q follows the share of rank-1 unfoldings ({_format(follows)}): their κ is 0 by "
            "definition and their q is the maximum."
        )
    return text


def _describe_architectures(family: Family) -> str:
    if family.architectures == 1:
        return "All have one architecture."
    srocc = family.alike_quality.srocc
    text = f"There are {family.architectures} architectures"
    if srocc.value is None:
        return f"{text}."
    return f"{text}; among the {family.alike} of the most common one Q has {_format(srocc)}."


def _describe_choice(choice: Choice) -> str:
    return (
        f"Chosen on {_list(choice.chosen_on)}: {SCORES[choice.score].label}. On the other families "
        f"it has {_list(choice.reported_on) or 'no value'}."
    )


def _list(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ({value:.2f})" for name, value in values.items())


def _compare_choices(choices: Sequence[Choice]) -> str:
    reported = [value for choice in choices for value in choice.reported_on.values()]
    if len({choice.score for choice in choices}) == 1 and reported and min(reported) > 0:
        return "Both halves choose the same score, and it has the right sign on every other family."
    return "The choice on one half of the families does not hold on the other half."


def format_p(p: float | None) -> str:
    """Return p as usual in tables.

    Example:
        >>> format_p(0.0001), format_p(0.034), format_p(None)
        ('<.001', '.034', '–')
    """
    if p is None:
        return "–"
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
