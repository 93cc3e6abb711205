"""`rankwise study correlate`: which scores rank networks by their accuracy."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rankwise._table import Cell, Column, Table, align_cells
from rankwise._text import escape_formula, join_lines, sanitize, wrap
from rankwise.cli.output import (
    STDOUT,
    check_outputs,
    get_table_width,
    make_console,
    print_lines,
    print_text,
    write_output,
)
from rankwise.cli.progress import show_probing
from rankwise.cli.study.results import read_runs
from rankwise.errors import ArgumentError
from rankwise.study.grid import read_study
from rankwise.study.results import select_runs
from rankwise.study.stats import Correlation
from rankwise.study.zoo.nats_folder import is_nats_folder, read_nats_folder
from rankwise.study.zoo.networks import Columns, Zoo, read_run_networks, read_table
from rankwise.study.zoo.ranking import Family, Ranking, ScoreCorrelation, rank_networks
from rankwise.study.zoo.scores import BASELINES, REFERENCES, SCORES
from rankwise.study.zoo.verdict import describe_layers, describe_ranking, format_p

_MAX_RESAMPLES = 10_000  # all are held in memory at once
# Q, then what any score must be compared with, then the others.
_SHOWN = tuple(
    dict.fromkeys(("quality", *REFERENCES, *(one.name for one in BASELINES), "rank_by_width"))
)
_MAX_LAYERS = 5
_MAX_SKIPPED = 20


def rank_index(
    index: Path,
    runs: Path,
    columns: Columns,
    targets: Mapping[str, str],
    *,
    resamples: int,
    seed: int,
) -> None:
    """Rank the networks of a table, a folder of runs or a study; print and write the ranking."""
    check_outputs(list(targets.values()), [index])
    if not 1 <= resamples <= _MAX_RESAMPLES or seed < 0:
        raise ArgumentError(
            f"Expected --resamples of 1 to {_MAX_RESAMPLES} and --seed of 0 or more."
        )
    zoo = _read_zoo(index, runs, columns)
    check_outputs(list(targets.values()), [network.path for network in zoo.networks])
    with show_probing() as progress:
        ranking = rank_networks(zoo, resamples=resamples, seed=seed, progress=progress)
    formats = {"html": _make_page, "json": _format_json, "csv": _format_csv}
    for form, target in targets.items():
        write_output(target, formats[form](ranking))
    if STDOUT not in targets.values():
        _print_ranking(ranking)


def _read_zoo(index: Path, runs: Path, columns: Columns) -> Zoo:
    is_study = index.suffix == ".toml"
    if not index.is_dir() and not is_study:
        return read_table(index, columns)
    if columns != Columns():
        raise ArgumentError(f"{index} leads to runs, which have no columns to name.")
    if not is_study:
        return read_nats_folder(index) if is_nats_folder(index) else read_run_networks(index)
    own = select_runs(read_study(index), read_runs(runs))
    trials = {run.folder.name for run in own if not run.config.validate}
    return replace(read_run_networks(runs, trials), source=str(index))


def _make_page(ranking: Ranking) -> bytes:
    from rankwise.reports.correlation import make_correlation_page
    from rankwise.reports.html import encode_page

    return encode_page(make_correlation_page(ranking))


def _format_json(ranking: Ranking) -> bytes:
    content = ranking.to_dict()
    for family, entry in zip(ranking.families, content["families"], strict=True):
        entry["description"] = describe_layers(family)
    content["verdict"] = list(describe_ranking(ranking))
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _format_csv(ranking: Ranking) -> bytes:
    """One line per measured network, with all its scores."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = ["network", "family", "group", "accuracy", "train_accuracy", "rank_one_share"]
    writer.writerow([*heads, *SCORES])
    for family in ranking.families:
        for member in family.members:
            network = member.network
            names = map(join_lines, (network.name, network.family, network.group))
            accuracies = (network.accuracy, network.train_accuracy, member.rank_one_share)
            values = (member.scores[score] for score in SCORES)
            writer.writerow([*map(escape_formula, names), *accuracies, *values])
    return text.getvalue().encode()


def _print_ranking(ranking: Ranking) -> None:
    console = make_console()
    width = get_table_width(console)
    print_text(console, _wrap(describe_ranking(ranking), width))
    for family in ranking.families:
        for table in _build_tables(family):
            console.print()
            print_lines(console, [[Cell(table.caption, "title")], *align_cells(table, width)])
        print_text(console, wrap(sanitize(describe_layers(family)), width, ""))
    print_text(console, _wrap(_describe_method(ranking), width))


def _wrap(sentences: Sequence[str], width: int | None) -> str:
    return "\n".join(wrap(sanitize(text), width) for text in sentences)


def _build_tables(family: Family) -> Iterator[Table]:
    """Scores against accuracy and against the gap, and the layers with the strongest q."""
    targets = {"test accuracy": family.accuracy, "generalisation gap": family.gap}
    for target, scores in targets.items():
        if scores:
            by_name = {one.name: one for one in scores}
            shown = [by_name[name] for name in _SHOWN]
            names = [SCORES[one.name].label for one in shown]
            yield _build_table(f"{family.name}: scores and {target}", "score", names, shown)
    layers = [one for one in family.layers if one.srocc.value is not None]
    if layers:
        layers.sort(key=lambda one: -abs(one.srocc.value or 0.0))
        shown = layers[:_MAX_LAYERS]
        caption = f"{family.name}: q of the strongest {len(shown)} of {len(family.layers)} layers"
        yield _build_table(caption, "layer", [sanitize(one.name) for one in shown], shown)


def _build_table(
    caption: str, head: str, names: Sequence[str], scores: Sequence[ScoreCorrelation]
) -> Table:
    return Table.from_columns(
        [
            (Column(head, "left", 9), names),
            (Column("n", priority=6), [str(one.srocc.n) for one in scores]),
            (Column("groups", priority=5), [str(one.srocc.groups) for one in scores]),
            (Column("SROCC [95 %]", priority=8), [_format_interval(one.srocc) for one in scores]),
            (Column("KROCC", priority=3), [_format_number(one.krocc.value) for one in scores]),
            (Column("PLCC", priority=2), [_format_number(one.plcc.value) for one in scores]),
            (Column("p", priority=4), [format_p(one.p) for one in scores]),
            (Column("adj.", priority=7), [format_p(one.adjusted) for one in scores]),
        ],
        sanitize(caption),
    )


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _format_interval(srocc: Correlation) -> str:
    if srocc.low is None or srocc.high is None:
        return _format_number(srocc.value)
    return f"{srocc.value:.2f} [{srocc.low:.2f}, {srocc.high:.2f}]"


def _describe_method(ranking: Ranking) -> list[str]:
    zoo = ranking.zoo
    columns = "; ".join(f"{role.replace('_', ' ')}: {text}" for role, text in zoo.columns.items())
    levels = ", ".join(f"{family} by {level}" for family, level in zoo.grouping.items())
    sentences = [f"Read: {columns}."]
    sentences += [f"Groups by source: {levels}."] if levels else []
    sentences.append(
        f"Intervals: {ranking.resamples} resamples of groups. p: permutation test of the SROCC of "
        f"group means, {ranking.permutations} shuffles; adj.: Holm's rule, scores over "
        f"{ranking.tests} tests, layers over all layers. All scores and layers: --out, --json."
    )
    sentences += [f"Note: {note}" for note in zoo.notes]
    skipped = ranking.skipped
    sentences += [f"Skipped: {one.name}: {one.reason}" for one in skipped[:_MAX_SKIPPED]]
    if len(skipped) > _MAX_SKIPPED:
        sentences.append(f"Skipped: {len(skipped) - _MAX_SKIPPED} more; --json lists them all.")
    return sentences
