"""The regret of untuned methods: their distance from the best tuned method of the same task.

.venv/bin/python -m tools.results.untuned --runs runs
.venv/bin/python -m tools.results.untuned studies/records
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rankwise.lab import load_runs
from rankwise.study import StudyResults, collect_results, read_study, unpack
from rankwise.study.stats import PairedTest, paired_test
from tools.results.controls import BySeed, Variant, format_signed, read_scores, scale_scores
from tools.results.tables import table

STUDIES = Path(__file__).parents[2] / "studies" / "cpu"
NAMES = ("controls", "untuned")


@dataclass(frozen=True, slots=True)
class Regret:
    """A method at its default rate: by task, the best tuned method minus it, for shared seeds."""

    method: str
    by_task: Mapping[str, tuple[float, ...]]
    diverged: int

    @property
    def means(self) -> dict[str, float]:
        """The mean of each task."""
        return {task: fmean(values) for task, values in self.by_task.items()}

    @property
    def mean(self) -> float:
        """The mean over tasks."""
        return fmean(self.means.values())

    @property
    def test(self) -> PairedTest:
        """The mean with its interval, tasks as clusters: Student's t over their means."""
        means = dict(enumerate(self.means.values()))
        return paired_test(means, dict.fromkeys(means, 0.0))


def find_best(controls: StudyResults) -> dict[str, tuple[Variant, BySeed]]:
    """Return the tuned method with the best mean of each task; controls of a rule are none."""
    best: dict[str, tuple[Variant, BySeed]] = {}
    for (variant, task), scores in read_scores(controls).items():
        if variant.control in ("plain", "none") and scores:
            known = best.get(task)
            if known is None or fmean(scores.values()) > fmean(known[1].values()):
                best[task] = variant, scores
    return best


def measure_regrets(
    best: Mapping[str, tuple[Variant, BySeed]], untuned: StudyResults
) -> list[Regret]:
    """Return the regret of every method, the smallest mean first."""
    by_method: dict[str, dict[str, tuple[float, ...]]] = {}
    diverged: dict[str, int] = {}
    for (method, task), entry in untuned.table.entries.items():
        diverged[method] = diverged.get(method, 0) + entry.trials.diverged
        if task.label not in best:
            continue
        _, tuned = best[task.label]
        own = scale_scores(entry.trials)
        shared = sorted(own.keys() & tuned.keys())
        if shared:
            gaps = tuple(tuned[seed] - own[seed] for seed in shared)
            by_method.setdefault(method, {})[task.label] = gaps
    found = [Regret(method, gaps, diverged[method]) for method, gaps in by_method.items()]
    return sorted(found, key=lambda one: one.mean)


def regrets(found: Sequence[StudyResults]) -> str:
    """The table of regrets, from the study of controls and that of defaults."""
    controls, untuned = found
    best = find_best(controls)
    rows = measure_regrets(best, untuned)
    tasks = list(dict.fromkeys(task for one in rows for task in one.by_task))
    head = ["untuned method", "mean regret [95 %]", "worst task", *tasks, "diverged"]
    cells = [
        [
            one.method,
            _format_mean(one.test),
            f"{max(one.means.values()):.1f}",
            *(f"{one.means[task]:.1f}" if task in one.means else "–" for task in tasks),
            str(one.diverged or ""),
        ]
        for one in rows
    ]
    named = "; ".join(f"{task}: {name.label}" for task, (name, _) in best.items())
    return "\n\n".join(
        [
            "**Regret.** How far each method at its default rate is from the best tuned method of "
            "the same task, over the seeds that both have:",
            table([head, *cells]),
            "Points of accuracy; for perplexity percent. Smaller is better, below 0 it is better "
            "than the best tuned one. The interval has tasks as clusters. The best tuned methods "
            "(by the same test scores, so that they are a little too good; controls of a rule do "
            f"not count): {named}.",
        ]
    )


def _format_mean(test: PairedTest) -> str:
    if test.difference is None:
        return "–"
    within = ""
    if test.low is not None and test.high is not None:
        within = f" [{format_signed(test.low, 1)}, {format_signed(test.high, 1)}]"
    return f"{format_signed(test.difference, 1)}{within}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="?", type=Path, help="the folder of exported records")
    parser.add_argument("--runs", type=Path, help="a folder of runs instead")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            if given.runs is not None:
                runs = load_runs(given.runs)
            elif given.records is not None:
                runs = unpack(given.records / f"{name}.jsonl", Path(folder) / name)
            else:
                parser.error("expected a folder of records, or --runs and a folder")
            found.append(collect_results(runs, read_study(STUDIES / f"{name}.toml")))
        print(regrets(found))


if __name__ == "__main__":
    main()
