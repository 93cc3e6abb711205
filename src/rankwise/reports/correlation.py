"""The page of how well scores rank networks: a scatter per family and all coefficients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rankwise._text import format_count, sanitize
from rankwise.charts.study import draw_networks
from rankwise.reports.page import (
    Cell,
    ChartPanel,
    Fact,
    Page,
    Section,
    Table,
    Text,
    capitalize,
    format_number_cell,
    make_columns,
)
from rankwise.study.stats import Correlation
from rankwise.study.zoo.networks import SkippedNetwork
from rankwise.study.zoo.ranking import Family, Ranking, ScoreCorrelation
from rankwise.study.zoo.scores import REFERENCES, SCORES
from rankwise.study.zoo.verdict import (
    count_significant,
    describe_layers,
    describe_ranking,
    format_p,
)

_CHARTED = ("quality", *REFERENCES)
_FEWEST = 3  # points that a scatter is drawn of
_LONG = 12
_TITLES = ("n", "groups", "SROCC", "95 %", "KROCC", "PLCC", "p", "adjusted")
HINTS = {
    "groups": "How many are independent; networks of one group are drawn and shuffled together.",
    "SROCC": "Spearman: do the ranks agree? 1 in all pairs, 0 by chance, -1 the other way round.",
    "95 %": "Percentile bootstrap over groups.",
    "KROCC": "Kendall: the same by pairs.",
    "PLCC": "Pearson: do they lie on a line?",
    "p": "How often shuffled groups give an SROCC as far from 0.",
    "adjusted": "The same for this many tests, by Holm's rule: the one to judge by.",
}


def make_correlation_page(ranking: Ranking, *, title: str = "What ranks these networks?") -> Page:
    """Return a ranking as a page."""
    sections = [_make_section(family, number) for number, family in enumerate(ranking.families)]
    return Page(
        title=title,
        summary=tuple(map(sanitize, describe_ranking(ranking))),
        facts=tuple(_list_facts(ranking)),
        sections=(*sections, *_list_left_out(ranking.skipped), _describe_method(ranking)),
        source=sanitize(ranking.zoo.source),
    )


def _list_facts(ranking: Ranking) -> Iterator[Fact]:
    members = [member for family in ranking.families for member in family.members]
    groups = {(member.network.family, member.network.group) for member in members}
    lost = f"{len(ranking.skipped)} left out" if ranking.skipped else "none left out"
    yield Fact("Networks", str(len(members)), lost)
    yield Fact("Families", str(len(ranking.families)))
    yield Fact("Independent groups", str(len(groups)))
    tests = format_count(ranking.tests, "test")
    yield Fact("Significant", f"{count_significant(ranking)} of {tests}", "adjusted p ≤ .05")


def _make_section(family: Family, number: int) -> Section:
    rows = [
        {
            "network": sanitize(member.network.name),
            "group": sanitize(member.network.group),
            "rank_one": member.rank_one_share,
            "accuracy": member.network.accuracy,
            "gap": member.network.gap,
            **{score: member.scores[score] for score in _CHARTED},
        }
        for member in family.members
    ]
    tables = [_make_score_table("Scores against test accuracy", family.accuracy)]
    if family.gap:
        tables.append(_make_score_table("Scores against generalisation gap", family.gap))
    if family.layers:
        tables.append(_make_layer_table(family))
    text = Text((sanitize(describe_layers(family)),))
    panels = _draw_scatters(family, rows, number)
    return Section(sanitize(family.name), (text, *panels, *tables))


def _draw_scatters(family: Family, rows: list[dict[str, Any]], number: int) -> Iterator[ChartPanel]:
    targets = [("accuracy", "test accuracy", family.accuracy)]
    if family.gap:
        targets.append(("gap", "generalisation gap", family.gap))
    for field, what, ranked in targets:
        for score in _CHARTED:
            srocc = next(one for one in ranked if one.name == score).srocc
            if srocc.n < _FEWEST:
                continue
            label = SCORES[score].label
            chart = draw_networks(rows, (score, label), (field, what), dataset=f"family-{number}")
            caption = f"A point for each network. {_describe_srocc(srocc)}"
            yield ChartPanel(capitalize(f"{label} and {what}"), chart, caption)


def _describe_srocc(srocc: Correlation) -> str:
    if srocc.value is None:
        return f"No correlation: {srocc.reason}."
    interval = "" if srocc.low is None else f", 95 % interval {_format_interval(srocc)}"
    groups = format_count(srocc.groups, "group")
    return f"SROCC {srocc.value:.2f}{interval}, n = {srocc.n}, {groups}."


def _format_interval(srocc: Correlation) -> str:
    return "–" if srocc.low is None else f"{srocc.low:.2f} to {srocc.high:.2f}"


def _make_score_table(caption: str, ranked: Sequence[ScoreCorrelation]) -> Table:
    strongest = _find_strongest(ranked)
    return Table(
        make_columns(("score", "formula", *_TITLES), left=("formula",)),
        tuple(
            (
                Cell(SCORES[one.name].label),
                Cell(SCORES[one.name].formula, "dim"),
                *_make_cells(one, is_strongest=one is strongest),
            )
            for one in ranked
        ),
        f"{caption}. Green: the SROCC furthest from 0.",
        hints=HINTS,
    )


def _make_layer_table(family: Family) -> Table:
    strongest = _find_strongest(family.layers)
    return Table(
        make_columns(("layer", *_TITLES)),
        tuple(
            (Cell(sanitize(one.name)), *_make_cells(one, is_strongest=one is strongest))
            for one in family.layers
        ),
        f"The q of each layer against test accuracy, in the {family.alike} networks of the "
        "commonest architecture. p is adjusted for the number of layers.",
        has_filter=len(family.layers) > _LONG,
        hints=HINTS,
    )


def _find_strongest(ranked: Sequence[ScoreCorrelation]) -> ScoreCorrelation | None:
    known = [one for one in ranked if one.srocc.value is not None]
    return max(known, key=lambda one: abs(one.srocc.value or 0.0), default=None)


def _make_cells(one: ScoreCorrelation, *, is_strongest: bool) -> tuple[Cell, ...]:
    return (
        format_number_cell(one.srocc.n, "d"),
        format_number_cell(one.srocc.groups, "d"),
        format_number_cell(one.srocc.value, ".2f", style="best" if is_strongest else ""),
        Cell(_format_interval(one.srocc), "dim", one.srocc.low),
        format_number_cell(one.krocc.value, ".2f"),
        format_number_cell(one.plcc.value, ".2f"),
        Cell(format_p(one.p), value=one.p),
        Cell(format_p(one.adjusted), value=one.adjusted),
    )


def _list_left_out(left_out: Sequence[SkippedNetwork]) -> Iterator[Section]:
    if left_out:
        rows = tuple((Cell(sanitize(o.name)), Cell(sanitize(o.reason))) for o in left_out)
        columns = make_columns(("network", "why"), left=("why",))
        table = Table(columns, rows, "Networks that were left out, and why.")
        yield Section("Left out", (table,))


def _describe_method(ranking: Ranking) -> Section:
    zoo = ranking.zoo
    columns = (f"{role.replace('_', ' ')}: {text}" for role, text in zoo.columns.items())
    levels = (f"{family} by {level}" for family, level in zoo.grouping.items())
    lines = [
        f"Read from {zoo.source}: {'; '.join(columns)}.",
        f"Intervals: {ranking.resamples} bootstrap resamples of whole groups. p: of the SROCC of "
        f"groups' means, by {ranking.permutations} shuffles. Seed {ranking.seed}. Adjusted by "
        f"Holm's rule for {ranking.tests} tests.",
        *zoo.notes,
    ]
    if zoo.grouping:
        lines.insert(1, f"Groups are made from where networks were published: {', '.join(levels)}.")
    return Section("How this was computed", (Text(tuple(map(sanitize, lines))),))
