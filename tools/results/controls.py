"""The tests of studies/cpu/controls.toml, from records or from a folder of runs, complete or not.

.venv/bin/python -m tools.results.controls --runs runs
.venv/bin/python -m tools.results.controls studies/records/controls.jsonl
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance
from typing import NamedTuple

from scipy import stats

from rankwise.lab import load_runs
from rankwise.lab.scores import is_falling
from rankwise.study import StudyResults, collect_results, read_study, unpack
from rankwise.study.stats import adjust_holm, paired_test
from rankwise.study.table import Trials
from tools.results.tables import table

STUDY = Path(__file__).parents[2] / "studies" / "cpu" / "controls.toml"
RULES = {
    "annealed": "annealed stable rank",
    "stable-rank": "stable rank",
    "temp-balance": "TempBalance",
    "llr": "LLR",
}
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
CONTROLS = {"plain": "plain optimizer", "mean": "mean", "shuffled": "shuffled"}


class Variant(NamedTuple):
    """A row of the study: the rule is "" and the control "plain" for the optimizer alone."""

    optimizer: str
    rule: str
    control: str

    @property
    def label(self) -> str:
        """The name in tables."""
        return ", ".join(filter(None, (OPTIMIZERS[self.optimizer], RULES.get(self.rule))))


BySeed = Mapping[int, float]
# By variant and task, the scores of the seeds, so that a difference of 1 is a point or a percent.
Scores = Mapping[tuple[Variant, str], BySeed]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A rule as it is minus something else: means over tasks, each the mean over shared seeds."""

    rule: Variant
    control: str
    by_task: Mapping[str, tuple[float, ...]]  # the differences by seed
    adjusted: float | None = None  # p over tasks, by Holm's rule
    adjusted_here: float | None = None  # p for these tasks alone, by Holm's rule

    @property
    def means(self) -> dict[int, float]:
        """The mean difference of each task, numbered."""
        return dict(enumerate(map(fmean, self.by_task.values())))

    @property
    def pairs(self) -> int:
        """How many pairs of runs there are."""
        return sum(map(len, self.by_task.values()))

    @property
    def difference(self) -> float | None:
        """The mean over tasks; None without any pair."""
        return fmean(self.means.values()) if self.by_task else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval with tasks as clusters: Student's t over their means."""
        test = paired_test(self.means, dict.fromkeys(self.means, 0.0))
        return None if test.low is None or test.high is None else (test.low, test.high)

    @property
    def p(self) -> float | None:
        """The two-sided p with tasks as clusters; None for fewer than two."""
        return paired_test(self.means, dict.fromkeys(self.means, 0.0)).p

    @property
    def p_here(self) -> float | None:
        """The two-sided p for these tasks alone: a t-test stratified by task (Welch)."""
        if not self.by_task or min(map(len, self.by_task.values())) < 2:
            return None
        parts = [(variance(d) / len(d), len(d) - 1) for d in self.by_task.values()]
        total = math.fsum(part for part, _ in parts)
        if not total:
            return None
        freedom = total**2 / math.fsum(part**2 / free for part, free in parts)
        t = math.fsum(self.means.values()) / math.sqrt(total)
        return float(2 * stats.t.sf(abs(t), freedom))


def read_scores(found: StudyResults) -> dict[tuple[Variant, str], dict[int, float]]:
    """Return the scores of all finished trials: accuracy in points, −100·ln perplexity."""
    scores: dict[tuple[Variant, str], dict[int, float]] = {}
    for (_, task), entry in found.table.entries.items():
        config = entry.trials.runs[0].config
        control = "plain" if config.rule is None else config.control or "none"
        variant = Variant(config.optimizer, config.rule or "", control)
        scores[variant, task.label] = scale_scores(entry.trials)
    return scores


def scale_scores(trials: Trials) -> dict[int, float]:
    """Return scores by seed so that higher is better and 1 is a point or a percent."""
    if is_falling(trials.score):
        return {seed: -100 * math.log(value) for seed, value in trials.by_seed.items()}
    return {seed: 100 * value for seed, value in trials.by_seed.items()}


def compare(scores: Scores) -> list[Comparison]:
    """Return the 24 stated comparisons; all count in Holm's rule, those without runs too."""
    tasks = list(dict.fromkeys(task for _, task in scores))
    made = [
        _pair(scores, Variant(optimizer, rule, "none"), control, tasks)
        for optimizer in OPTIMIZERS
        for rule in RULES
        for control in CONTROLS
    ]
    over_tasks = _adjust([one.p for one in made])
    here = _adjust([one.p_here for one in made])
    return [
        Comparison(one.rule, one.control, one.by_task, p, p_here)
        for one, p, p_here in zip(made, over_tasks, here, strict=True)
    ]


def _adjust(values: Sequence[float | None]) -> list[float | None]:
    adjusted = adjust_holm([1.0 if p is None else p for p in values])
    return [None if p is None else one for p, one in zip(values, adjusted, strict=True)]


def _pair(scores: Scores, rule: Variant, control: str, tasks: Iterable[str]) -> Comparison:
    name = "" if control == "plain" else rule.rule
    other = Variant(rule.optimizer, name, control)
    by_task: dict[str, tuple[float, ...]] = {}
    for task in tasks:
        first, second = (scores.get((variant, task), {}) for variant in (rule, other))
        shared = sorted(first.keys() & second.keys())
        if shared:
            by_task[task] = tuple(first[seed] - second[seed] for seed in shared)
    return Comparison(rule, control, by_task)


def describe(comparisons: Sequence[Comparison]) -> str:
    """The tests as Markdown, and each task's mean differences."""
    tasks = list(dict.fromkeys(task for one in comparisons for task in one.by_task))
    head = ["optimizer", "rule", "minus", "difference [95 %]", "p, tasks", "p, these", "n"]
    rows = [[*_name(one), *_figures(one)] for one in comparisons]
    each = [
        [
            *_name(one),
            *(format_signed(fmean(d)) if (d := one.by_task.get(t)) else "–" for t in tasks),
        ]
        for one in comparisons
    ]
    return "\n\n".join(
        [
            table([head, *rows]),
            "Points of accuracy; for perplexity percent (100 times the difference in its "
            "logarithm). Mean over tasks of the mean over seeds. The interval and the first p take "
            "tasks as clusters (Student's t over their means); the second p is for these tasks "
            "alone (a t-test stratified by task). Both are adjusted by Holm's rule for all "
            f"{len(comparisons)} stated tests. n: tasks, pairs of runs. Runs that diverged are in "
            "no pair.",
            table([[*head[:3], *tasks], *each]),
        ]
    )


def _name(one: Comparison) -> list[str]:
    return [OPTIMIZERS[one.rule.optimizer], RULES[one.rule.rule], CONTROLS[one.control]]


def _figures(one: Comparison) -> list[str]:
    if one.difference is None:
        return ["–", "–", "–", "0"]
    ps = ["–" if p is None else f"{p:.3f}" for p in (one.adjusted, one.adjusted_here)]
    return [_format_difference(one), *ps, f"{len(one.by_task)}, {one.pairs}"]


def _format_difference(one: Comparison) -> str:
    if one.difference is None:
        return "–"
    low_high = one.interval
    within = f" [{format_signed(low_high[0])}, {format_signed(low_high[1])}]" if low_high else ""
    return format_signed(one.difference) + within


def format_signed(value: float, digits: int = 2) -> str:
    """Return a difference with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def summarize_controls(found: Sequence[StudyResults]) -> str:
    """The tests with a row for each rule: minus the plain optimizer, the mean and the shuffle."""
    made = compare(read_scores(found[0]))
    by_rule: dict[Variant, list[Comparison]] = {}
    for one in made:
        by_rule.setdefault(one.rule, []).append(one)
    rows = [[rule.label, *map(_summarize, row)] for rule, row in by_rule.items()]
    head = ["rule", *(f"− {name} [95 %]" for name in CONTROLS.values())]
    return "\n\n".join(
        [
            table([head, *rows]),
            "Points of accuracy, for perplexity percent; the mean over the tasks, with an interval "
            "that has tasks as clusters. ★: p < 0.05 over tasks; †: p < 0.05 for these tasks only. "
            f"Both p are adjusted by Holm's rule for all {len(made)} tests.",
        ]
    )


def _summarize(one: Comparison) -> str:
    if one.difference is None:
        return "–"
    ps = {"★": one.adjusted, "†": one.adjusted_here}
    mark = next((mark for mark, p in ps.items() if p is not None and p < 0.05), "")
    return f"{_format_difference(one)} {mark}".strip()


def controls(found: StudyResults) -> str:
    """The section of docs/results-tables.md."""
    total = sum(len(one.trials.runs) for one in found.table.entries.values())
    diverged = sum(one.trials.diverged for one in found.table.entries.values())
    state = f"{total} runs after tuning, {diverged} diverged; {found.missing} of the study missing."
    return "\n\n".join(
        [f"## {found.title}", found.about, state, describe(compare(read_scores(found)))]
    )


def main() -> None:
    """Print the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="?", type=Path, help="what `study export` wrote")
    parser.add_argument("--runs", type=Path, help="a folder of runs instead")
    given = parser.parse_args()
    study = read_study(STUDY)
    with tempfile.TemporaryDirectory() as folder:
        if given.runs is not None:
            runs = load_runs(given.runs)
        elif given.records is not None:
            runs = unpack(given.records, Path(folder) / "runs")
        else:
            parser.error("expected records, or --runs and a folder")
        print(controls(collect_results(runs, study)))


if __name__ == "__main__":
    main()
