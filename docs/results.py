"""Writes docs/results.md from the records in studies/records; nothing is trained.

    .venv/bin/python docs/results.py                 # the page, from the records
    .venv/bin/python docs/results.py --runs runs     # first the records, from folders of runs

`studies/records/NAME.jsonl` holds the runs of `studies/cpu/NAME.toml`; `correlation_*.json` what
`rankwise study correlate --json` wrote.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rankwise.lab import load_runs
from rankwise.lab.compare import Comparison
from rankwise.lab.scores import score_text
from rankwise.lab.study.archive import pack, unpack
from rankwise.lab.study.findings import Findings, findings
from rankwise.lab.study.gather import gather
from rankwise.lab.study.grid import read_study
from rankwise.lab.study.markdown import to_markdown
from rankwise.lab.study.paired import paired

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "studies" / "cpu"
RECORDS = ROOT / "studies" / "records"
PAGE = Path(__file__).with_name("results.md")
WORDS = Path(__file__).with_name("results_words.md")


def write_records(runs: Path) -> None:
    """Pack the runs of every study that has any there, those of before included."""
    every = load_runs(runs)
    for path in sorted(STUDIES.glob("*.toml")):
        found = gather(read_study(path), every).runs
        over = [run for run in found if run.status != "unfinished"]
        if over:
            (RECORDS / f"{path.stem}.jsonl").write_text(pack(over), encoding="utf-8")


def page() -> str:
    """The whole page."""
    parts = [WORDS.read_text(encoding="utf-8").strip()]
    for name, form in SECTIONS.items():
        record = RECORDS / f"{name}.jsonl"
        if record.exists():
            with tempfile.TemporaryDirectory() as folder:
                parts.append(form(found_in(name, record, Path(folder))))
    parts += [ranking(path) for path in sorted(RECORDS.glob("correlation_*.json"))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def found_in(name: str, record: Path, folder: Path) -> Findings:
    """What a study found, by its committed records."""
    return findings(unpack(record, folder), read_study(STUDIES / f"{name}.toml"))


def table(rows: Iterable[Sequence[str]]) -> str:
    """Cells as Markdown; the first row is the head."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *body])


def whole(found: Findings) -> str:
    """A study's table as `rankwise study table --format markdown` prints it."""
    return to_markdown(found)


def by_rate(found: Findings) -> str:
    """First rates in rows, methods in columns, and where the annealed rule differs from SGD."""
    parts = [f"## {found.title}", found.about, _state(found)]
    for task in found.table.tasks:
        cells: dict[tuple[str, float], Comparison] = {}
        for (setting, of), entry in found.table.entries.items():
            if of == task:
                rate = entry.found.runs[0].config.lr or 0.0
                cells[setting.rpartition(" lr=")[0], rate] = entry.found
        methods = list(dict.fromkeys(method for method, _ in cells))
        rates = sorted({rate for _, rate in cells})
        head = ["first rate", *methods, "annealed − SGD, cosine [95 %]"]
        rows = [[f"{rate:g}", *(_cell(cells, m, rate) for m in methods)] for rate in rates]
        ends = [[_difference(cells, rate)] for rate in rates]
        rows = [row + end for row, end in zip(rows, ends, strict=True)]
        parts += [f"**{task.label}** (test accuracy)", table([head, *rows])]
    return "\n\n".join(part for part in parts if part)


def _cell(cells: dict[tuple[str, float], Comparison], method: str, rate: float) -> str:
    one = cells.get((method, rate))
    return f"{score_text(one.values, one.score)} (n = {len(one.values)})" if one else "–"


def _difference(cells: dict[tuple[str, float], Comparison], rate: float) -> str:
    both = [cells.get((method, rate)) for method in ("RMSGD, annealed", "SGD, cosine")]
    if None in both:
        return "–"
    first, second = ({r.config.seed: r.last["test"]["accuracy"] for r in c.finished} for c in both)
    test = paired(first, second)
    if test.difference is None:
        return "–"
    text = f"{100 * test.difference:+.1f}"
    if test.low is None or test.high is None or test.p is None:
        return text
    return f"{text} [{100 * test.low:+.1f}, {100 * test.high:+.1f}], p = {test.p:.2g}"


def _state(found: Findings) -> str:
    machines = "; ".join(found.machines)
    left = f" {found.missing} of {found.asked} runs are still to be done." if found.missing else ""
    return f"{machines}.{left}"


def times(found: Findings) -> str:
    """Seconds of an epoch, without its tests, and the probe's part of it."""
    rows = []
    for (setting, _), entry in found.table.entries.items():
        run = entry.found.runs[0]
        seconds = [record["seconds"] for record in run.epochs[1:]]  # the first one warms up
        steps = fmean(part["data"] + part["step"] for part in seconds)
        rows.append((setting, steps, fmean(part["probe"] for part in seconds)))
    sgd = next(steps for setting, steps, _ in rows if setting.startswith("SGD"))
    lines = [
        [name, f"{steps:.2f}", f"{steps / sgd:.2f}", f"{probe * 1000:.0f}", f"{probe / steps:.1%}"]
        for name, steps, probe in sorted(rows, key=lambda row: row[1])
    ]
    head = ["optimizer", "s an epoch", "÷ SGD", "probe, ms an epoch", "probe's share"]
    text = (
        "Mean over all epochs but the first. All runs are probed for their records; only RMSGD "
        "needs it. The median of several runs would be better: n = 1."
    )
    return "\n\n".join([f"## {found.title}", _state(found), text, table([head, *lines])])


def ranking(path: Path) -> str:
    """What `rankwise study correlate` found, for the scores that say most."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return _ranking_text(found, path.stem)


def _ranking_text(found: dict[str, Any], name: str) -> str:
    return f"## {name}\n\n{found['verdict']}"


SECTIONS: dict[str, Callable[[Findings], str]] = {
    "table_1a": whole,
    "table_1a_vgg": whole,
    "table_1b": whole,
    "rates": by_rate,
    "rates_vgg": by_rate,
    "annealed": whole,
    "beta": whole,
    "beta_epochs": whole,
    "batch_sizes": whole,
    "imagenet_batches": whole,
    "pathology": whole,
    "lstm": whole,
    "wgan": whole,
    "epoch_times": times,
    "evolution": whole,
    "correlation": whole,
}


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="folders of runs to make the records from")
    given = parser.parse_args()
    if given.runs is not None:
        RECORDS.mkdir(exist_ok=True)
        write_records(given.runs)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
