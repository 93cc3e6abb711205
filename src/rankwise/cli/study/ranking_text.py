"""A ranking → text for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence

from rankwise._table import Cell, Column, Table, align_cells
from rankwise._text import sanitize, wrap
from rankwise.study.correlation import Correlation
from rankwise.study.exchange import harmless
from rankwise.study.zoo.ranking import Family, Ranked, Ranking
from rankwise.study.zoo.scores import BASELINES, PROPOSED, SCORES
from rankwise.study.zoo.words import p_text, ranking_verdict, why_words

__all__ = ["family_lines", "format_csv", "format_json", "format_method", "format_verdict"]

_SHOWN = (*(score.name for score in BASELINES), PROPOSED)
_MOST_LAYERS = 5
_MOST_LEFT_OUT = 20

Lines = list[tuple[Cell, ...]]


def format_verdict(found: Ranking, width: int | None) -> str:
    """The whole in sentences."""
    return "\n".join(wrap(sanitize(words), width) for words in ranking_verdict(found))


def family_lines(family: Family, width: int | None) -> Iterator[Lines]:
    """A family's tables: scores against accuracy, against the gap, and the strongest layers."""
    chosen = [[r for r in some if r.name in _SHOWN] for some in (family.accuracy, family.gap)]
    for what, ranked in zip(("test accuracy", "generalisation gap"), chosen, strict=True):
        if ranked:
            names = [SCORES[one.name].label for one in ranked]
            yield [
                _title(f"{family.name}: scores and {what}"),
                *_table("score", names, ranked, width),
            ]
    known = [one for one in family.layers if one.srocc.value is not None]
    if known:
        known.sort(key=lambda one: -abs(one.srocc.value or 0.0))
        shown = known[:_MOST_LAYERS]
        title = f"{family.name}: q of the strongest {len(shown)} of {len(family.layers)} layers"
        names = [sanitize(one.name) for one in shown]
        yield [_title(title), *_table("layer", names, shown, width)]
    yield [(Cell(line),) for line in wrap(sanitize(why_words(family)), width, "").split("\n")]


def _title(text: str) -> tuple[Cell, ...]:
    return (Cell(sanitize(text), "title"),)


def _table(head: str, names: Sequence[str], ranked: Sequence[Ranked], width: int | None) -> Lines:
    def column(title: str, texts: Iterable[str], priority: int) -> tuple[Column, Iterable[str]]:
        return Column(title, priority=priority), texts

    table = Table.from_columns(
        [
            (Column(head, "left"), names),
            column("n", (str(one.srocc.n) for one in ranked), 6),
            column("groups", (str(one.srocc.groups) for one in ranked), 5),
            column("SROCC [95 %]", (_with_interval(one.srocc) for one in ranked), 8),
            column("KROCC", (_number(one.krocc.value) for one in ranked), 3),
            column("PLCC", (_number(one.plcc.value) for one in ranked), 2),
            column("p", (p_text(one.p) for one in ranked), 4),
            column("adj.", (p_text(one.adjusted) for one in ranked), 7),
        ]
    )
    return align_cells(table, width)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _with_interval(found: Correlation) -> str:
    if found.low is None or found.high is None:
        return _number(found.value)
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def format_method(found: Ranking, width: int | None) -> str:
    """Which columns were taken, what was left out, and how the numbers came about."""
    columns = "; ".join(
        f"{role.replace('_', ' ')}: {text}" for role, text in found.zoo.columns.items()
    )
    levels = ", ".join(f"{family} by {level}" for family, level in found.zoo.grouping.items())
    words = [f"Read: {columns}."]
    words += [f"Groups from their sources: {levels}."] if levels else []
    words.append(
        f"Intervals: {found.resamples} resamples of groups. p: of the SROCC of groups' means, by "
        f"{found.permutations} shuffles; adj.: by Holm's rule, scores for {found.tests} tests, "
        "layers for their number. All candidates and layers: --out, --json."
    )
    words += [f"Note: {note}" for note in found.zoo.notes]
    words += [f"Left out: {one.name}: {one.reason}" for one in found.left_out[:_MOST_LEFT_OUT]]
    if len(found.left_out) > _MOST_LEFT_OUT:
        words.append(f"Left out: {len(found.left_out) - _MOST_LEFT_OUT} more; --json has them all.")
    return "\n".join(wrap(sanitize(text), width) for text in words)


def format_json(found: Ranking) -> str:
    """All of it."""
    content = found.to_dict()
    words = {family.name: why_words(family) for family in found.families}
    for family in content["families"]:
        family["words"] = words[family["name"]]
    content["verdict"] = list(ranking_verdict(found))
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def format_csv(found: Ranking) -> str:
    """A line for each measured network, with all its scores."""
    heads = ["network", "family", "group", "accuracy", "train_accuracy", "rank_one_share", *SCORES]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    for family in found.families:
        for member in family.members:
            network = member.network
            names = (network.name, network.family, network.group)
            accuracies = (network.accuracy, network.train_accuracy, member.rank_one_share)
            values = (member.scores[score] for score in SCORES)
            writer.writerow([*map(harmless, names), *accuracies, *values])
    return text.getvalue()
