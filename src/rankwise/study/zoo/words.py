"""What a ranking says, in plain words."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rankwise.study.correlation import Correlation
from rankwise.study.zoo.ranking import Choice, Family, Ranked, Ranking
from rankwise.study.zoo.scores import PROPOSED, SCORES

__all__ = ["LEVEL", "family_words", "p_text", "ranking_verdict", "why_words"]

LEVEL = 0.05  # the p up to which something is said to be beyond chance
_RANKS, _BACKWARDS = "ranks these networks", "ranks these networks backwards"
_FOLLOWS = 0.5  # an SROCC from which on Q is said to follow the unfoldings of rank 1


def ranking_verdict(found: Ranking) -> tuple[str, ...]:
    """The whole: whether Q ranks the networks of each family, and whether anything does."""
    if not found.families:
        return ("No network could be measured, so there is nothing to rank.",)
    words = [_overall(found), *(family_words(family) for family in found.families)]
    words += [_choice_words(choice) for choice in found.choices]
    if len(found.choices) > 1:
        words.append(_hold_words(found.choices))
    return tuple(words)


def _overall(found: Ranking) -> str:
    """In how many families Q ranks, and how much is left once all tests are counted."""
    judged = [_judged(family.of("quality")) for family in found.families]
    every = [ranked for family in found.families for ranked in (*family.accuracy, *family.gap)]
    sure = sum(ranked.adjusted is not None and ranked.adjusted <= LEVEL for ranked in every)
    families = "1 family" if len(judged) == 1 else f"{len(judged)} families"
    return (
        f"Of {families}, Q ranks the networks by accuracy in {judged.count(_RANKS)} and backwards "
        f"in {judged.count(_BACKWARDS)}. Adjusted for {found.tests} tests, {sure} of them "
        f"{'is' if sure == 1 else 'are'} beyond chance."
    )


def family_words(family: Family) -> str:
    """Whether Q ranks a family's networks, and how the proposed score does."""
    quality, proposed = family.of("quality"), family.of(PROPOSED)
    groups = quality.srocc.groups
    if quality.srocc.value is None:
        return f"{family.name}: no correlation of Q and accuracy, since {quality.srocc.reason}."
    size = f"{len(family.members)} networks"
    size += "" if groups == len(family.members) else f" in {groups} groups"
    own = f"The proposed score, {SCORES[PROPOSED].label}, has {_value(proposed.srocc)}"
    return f"{family.name}: Q {_judged(quality)} ({_value(quality.srocc)}; {size}). {own}."


def _judged(ranked: Ranked) -> str:
    found = ranked.srocc
    if found.low is None or found.high is None or ranked.p is None:
        return "can't be judged on so few independent networks"
    if found.low <= 0 <= found.high or ranked.p > LEVEL:
        return "does not rank these networks"
    return _RANKS if found.low > 0 else _BACKWARDS


def _value(found: Correlation) -> str:
    if found.value is None:
        return f"no SROCC, {found.reason}"
    text = f"SROCC {found.value:.2f}"
    if found.low is None or found.high is None:
        return text
    return f"{text}, 95 % from {found.low:.2f} to {found.high:.2f}"


def why_words(family: Family) -> str:
    """What the layers of a family are like, and whether Q follows that."""
    one, empty = (100 * family.layer_share(field) for field in ("rank_one", "empty"))
    modes = sum(member.modes for member in family.members)
    widths = [width for member in family.members for width in member.rank_one_widths]
    words = f"{one:.0f} % of layers are of rank 1 and {empty:.0f} % are empty"
    if widths:
        words += f"; {100 * len(widths) / modes:.0f} % of unfoldings are of rank 1"
        words += f", their smaller side {statistics.median(widths):g} in the median"
    words += f". {_architectures(family)}"
    follows = family.rank_one_quality.srocc
    if follows.value is not None and follows.value >= _FOLLOWS:
        words += (
            f" Q follows the share of rank-1 unfoldings ({_value(follows)}): their κ is 0 by "
            "definition and their q at its maximum."
        )
    return words


def _architectures(family: Family) -> str:
    if family.architectures == 1:
        return "All have one architecture."
    found = family.alike_quality.srocc
    among = f"; among the {family.alike} of the commonest Q has {_value(found)}"
    known = found.value is not None
    return f"There are {family.architectures} architectures{among if known else ''}."


def _choice_words(choice: Choice) -> str:
    label = SCORES[choice.score].label
    return (
        f"Chosen on {_listed(choice.chosen_on)}: {label}. On the families that had no part in the "
        f"choice it has {_listed(choice.reported_on) or 'no value'}."
    )


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ({value:.2f})" for name, value in values.items())


def _hold_words(choices: Sequence[Choice]) -> str:
    reported = [value for choice in choices for value in choice.reported_on.values()]
    if len({choice.score for choice in choices}) == 1 and reported and min(reported) > 0:
        return "The same score is chosen either way, and has the right sign on every other family."
    return "The choice does not hold up from one half of the families to the other."


def p_text(p: float | None) -> str:
    """A p as people write it.

    Example:
        >>> p_text(0.0001), p_text(0.034), p_text(None)
        ('<.001', '.034', '–')
    """
    if p is None:
        return "–"
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
