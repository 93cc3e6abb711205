"""Does Q rank networks by accuracy? Spearman's ρ over families of real trained networks.

Run with `python -m benchmarks.zoo FOLDER`, where FOLDER holds an `index.csv` (columns family, file,
acc_measured, acc_recorded, acc_published) and the networks it names.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

from scipy.stats import spearmanr

import rankwise
from benchmarks.timing import table

_ACCURACIES = ("acc_measured", "acc_recorded", "acc_published")


def run(folder: Path) -> str:
    """The table."""
    families: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    with (folder / "index.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            accuracy = next((float(row[name]) for name in _ACCURACIES if row[name]), None)
            found = rankwise.probe(folder / row["file"])
            if accuracy is not None and found.quality is not None:
                layers = [layer.stable_rank or 0.0 for layer in found.probed]
                families[row["family"]].append((accuracy, found.quality, sum(layers) / len(layers)))
    rows = [_row(name, points) for name, points in families.items()]
    return table(("family", "networks", "ρ of Q", "p", "ρ of the mean s", "p"), rows)


def _row(name: str, points: list[tuple[float, float, float]]) -> tuple[str, ...]:
    accuracy, quality, stable_rank = zip(*points, strict=True)
    tests = [spearmanr(accuracy, figure) for figure in (quality, stable_rank)]
    figures = [f"{value:.2f}" for test in tests for value in (test.statistic, test.pvalue)]
    return (name, str(len(points)), *figures)


if __name__ == "__main__":
    print(run(Path(sys.argv[1])))
