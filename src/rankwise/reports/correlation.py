"""How well scores rank networks, as a page: the verdict, a scatter a family, all coefficients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rankwise._text import format_count, sanitize
from rankwise.charts.study import draw_networks
from rankwise.reports.page import (
    NOTHING,
    Cell,
    Fact,
    Page,
    Picture,
    Section,
    Table,
    Words,
    number_cell,
)
from rankwise.study.stats import Correlation
from rankwise.study.zoo.networks import SkippedNetwork
from rankwise.study.zoo.ranking import Family, Ranking, ScoreCorrelation
from rankwise.study.zoo.scores import PROPOSED, SCORES
from rankwise.study.zoo.verdict import (
    count_significant,
    describe_layers,
    describe_ranking,
    format_p,
)

__all__ = ["correlation_page"]

_SHOWN = ("quality", PROPOSED)
_FEWEST = 3  # points that a scatter is drawn of
_LONG = 12
HINTS = {
    "groups": "How many are independent; networks of one group are drawn and shuffled together.",
    "SROCC": "Spearman: do the ranks agree? 1 in all pairs, 0 by chance, -1 the other way round.",
    "95 %": "Percentile bootstrap over groups.",
    "KROCC": "Kendall: the same by pairs.",
    "PLCC": "Pearson: do they lie on a line?",
    "p": "How often shuffled groups give an SROCC as far from 0.",
    "adjusted": "The same for this many tests, by Holm's rule: the one to judge by.",
}


def correlation_page(found: Ranking, *, title: str = "What ranks these networks?") -> Page:
    """A ranking as a page.

    Args:
        found: As `rank_networks` gives it.
        title: The page's head.
    """
    sections = [_family(family, number) for number, family in enumerate(found.families)]
    return Page(
        title=title,
        verdict=tuple(map(sanitize, describe_ranking(found))),
        facts=tuple(_facts(found)),
        sections=(*sections, *_left_out(found.skipped), _method(found)),
        source=sanitize(found.zoo.source),
    )


def _facts(found: Ranking) -> Iterator[Fact]:
    members = [member for family in found.families for member in family.members]
    groups = {(member.network.family, member.network.group) for member in members}
    lost = f"{len(found.skipped)} left out" if found.skipped else "none left out"
    yield Fact("Networks", str(len(members)), lost)
    yield Fact("Families", str(len(found.families)))
    yield Fact("Independent groups", str(len(groups)))
    sure = count_significant(found)
    yield Fact(
        "Beyond chance", f"{sure} of {format_count(found.tests, 'test')}", "adjusted p of .05"
    )


def _family(family: Family, number: int) -> Section:
    rows = [
        {
            "network": sanitize(member.network.name),
            "group": sanitize(member.network.group),
            "rank_one": member.rank_one_share,
            "accuracy": member.network.accuracy,
            "gap": member.network.gap,
            **{score: member.scores[score] for score in _SHOWN},
        }
        for member in family.members
    ]
    tables = [_scores("Scores against test accuracy", family.accuracy)]
    if family.gap:
        tables.append(_scores("Scores against generalisation gap", family.gap))
    if family.layers:
        tables.append(_layers(family))
    words = Words((sanitize(describe_layers(family)),))
    pictures = _pictures(family, rows, number)
    return Section(sanitize(family.name), (words, *pictures, *tables))


def _pictures(family: Family, rows: list[dict[str, Any]], number: int) -> Iterator[Picture]:
    targets = [("accuracy", "test accuracy", family.accuracy)]
    if family.gap:
        targets.append(("gap", "generalisation gap", family.gap))
    for field, what, ranked in targets:
        for score in _SHOWN:
            found = next(one for one in ranked if one.name == score).srocc
            if found.n < _FEWEST:
                continue
            label = SCORES[score].label
            figure = draw_networks(rows, (score, label), (field, what), dataset=f"family-{number}")
            reading = f"A point for each network. {_said(found)}"
            yield Picture(_capital(f"{label} and {what}"), figure, reading)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _said(found: Correlation) -> str:
    if found.value is None:
        return f"No correlation: {found.reason}."
    interval = "" if found.low is None else f", 95 % interval {_interval(found)}"
    return (
        f"SROCC {found.value:.2f}{interval}, n = {found.n}, {format_count(found.groups, 'group')}."
    )


def _interval(found: Correlation) -> str:
    return "–" if found.low is None else f"{found.low:.2f} to {found.high:.2f}"


def _scores(caption: str, ranked: Sequence[ScoreCorrelation]) -> Table:
    strongest = _strongest(ranked)
    return Table(
        f"{caption}. Green: the SROCC furthest from 0.",
        ("score", "formula", *_HEADS),
        tuple(
            (
                Cell(SCORES[one.name].label),
                Cell(SCORES[one.name].formula, tone="dim"),
                *_cells(one, best=one is strongest),
            )
            for one in ranked
        ),
        numeric=tuple(range(2, 2 + len(_HEADS))),
        hints=HINTS,
    )


_HEADS = ("n", "groups", "SROCC", "95 %", "KROCC", "PLCC", "p", "adjusted")


def _layers(family: Family) -> Table:
    strongest = _strongest(family.layers)
    return Table(
        f"The q of each layer against test accuracy, in the {family.alike} networks of the "
        "commonest architecture. p is adjusted for the number of layers.",
        ("layer", *_HEADS),
        tuple(
            (Cell(sanitize(one.name)), *_cells(one, best=one is strongest)) for one in family.layers
        ),
        filter=len(family.layers) > _LONG,
        hints=HINTS,
    )


def _strongest(ranked: Sequence[ScoreCorrelation]) -> ScoreCorrelation | None:
    known = [one for one in ranked if one.srocc.value is not None]
    return max(known, key=lambda one: abs(one.srocc.value or 0.0), default=None)


def _cells(one: ScoreCorrelation, *, best: bool) -> tuple[Cell, ...]:
    value = one.srocc.value
    ranks = NOTHING if value is None else Cell(f"{value:.2f}", value, "best" if best else "")
    return (
        number_cell(one.srocc.n, "d"),
        number_cell(one.srocc.groups, "d"),
        ranks,
        Cell(_interval(one.srocc), value=one.srocc.low, tone="dim"),
        number_cell(one.krocc.value, ".2f"),
        number_cell(one.plcc.value, ".2f"),
        Cell(format_p(one.p), value=one.p),
        Cell(format_p(one.adjusted), value=one.adjusted),
    )


def _left_out(left_out: Sequence[SkippedNetwork]) -> Iterator[Section]:
    if left_out:
        rows = tuple((Cell(sanitize(o.name)), Cell(sanitize(o.reason))) for o in left_out)
        table = Table("Networks that take no part, and why.", ("network", "why"), rows, numeric=())
        yield Section("Left out", (table,))


def _method(found: Ranking) -> Section:
    columns = (f"{role.replace('_', ' ')}: {text}" for role, text in found.zoo.columns.items())
    levels = (f"{family} by {level}" for family, level in found.zoo.grouping.items())
    words = [
        f"Read from {found.zoo.source}: {'; '.join(columns)}.",
        f"Intervals: {found.resamples} bootstrap resamples of whole groups. p: of the SROCC of "
        f"groups' means, by {found.permutations} shuffles. Seed {found.seed}. Adjusted by Holm's "
        f"rule for {found.tests} tests.",
        *found.zoo.notes,
    ]
    if found.zoo.grouping:
        words.insert(1, f"Groups are made from where networks were published: {', '.join(levels)}.")
    return Section("How this was computed", (Words(tuple(map(sanitize, words))),))
