"""Writes docs/results.md from the records in studies/records; nothing is trained.

    make results                                     # the page and its figures, from the records
    .venv/bin/python docs/results.py --runs runs     # first the records, from a folder of runs

`studies/records/NAME.jsonl` holds the runs of `studies/cpu/NAME.toml`, `ranking_*.json` what
`rankwise study correlate --json` wrote. Words stand in docs/results_words.md, a heading for each
section; every figure comes from the records.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from results_controls import controls
from results_tables import (
    by_length,
    by_option,
    by_rate,
    next_beta,
    pooled,
    ranking,
    scale_up,
    summary,
    times,
)
from results_untuned import regrets

from rankwise.lab import load_runs
from rankwise.study import (
    StudyResults,
    collect_results,
    pack,
    read_study,
    to_markdown,
    unpack,
)
from rankwise.study.results import select_runs

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "studies" / "cpu"
RECORDS = ROOT / "studies" / "records"
PAGE = Path(__file__).with_name("results.md")
WORDS = Path(__file__).with_name("results_words.md")
WITH_LAYERS = ("evolution",)  # whose figures need the layers of every epoch


def write_records(runs: Path) -> None:
    """Pack the runs of every study that has any there."""
    every = load_runs(runs)
    for path in sorted(STUDIES.glob("*.toml")):
        found = select_runs(read_study(path), every)
        over = [run for run in found if run.status != "unfinished"]
        if over:
            packed = pack(over, layers=path.stem in WITH_LAYERS)
            (RECORDS / f"{path.stem}.jsonl").write_text(packed, encoding="utf-8")


def page(pictures: Path | None = None) -> str:
    """The whole page; its figures are drawn where `pictures` names a folder."""
    words = _words()
    parts: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        found = {
            name: found_in(name, Path(folder) / name)
            for name in SECTIONS
            if (RECORDS / f"{name}.jsonl").exists()
        }
        sections = {n: _section(SECTIONS[n](one), words.get(n, "")) for n, one in found.items()}
        for together, names in POOLED.items():
            if found.keys() >= set(names):
                sections[names[-1]] += "\n\n" + together([found[name] for name in names])
        parts += sections.values()
        if pictures is not None and "evolution" in found:
            _draw(found["evolution"], pictures)
    parts += [
        _section(ranking(json.loads(path.read_bytes())), words.get(path.stem, ""))
        for path in sorted(RECORDS.glob("ranking_*.json"))
    ]
    tables = [found[name] for name in ("table_1a", "table_1a_vgg") if name in found]
    return "\n\n".join([words["results"], summary(tables), *parts]) + "\n"


def found_in(name: str, folder: Path) -> StudyResults:
    """What a study found, by its committed records."""
    runs = unpack(RECORDS / f"{name}.jsonl", folder)
    return collect_results(runs, read_study(STUDIES / f"{name}.toml"))


def _words() -> dict[str, str]:
    """The words of each section; those before the first heading are the page's own."""
    first, *parts = re.split(r"^## (\w+)\n", WORDS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = zip(parts[::2], parts[1::2], strict=True)
    return {"results": first.strip(), **{name: text.strip() for name, text in named}}


def _section(text: str, words: str) -> str:
    head, _, body = text.strip().partition("\n")
    return "\n\n".join(part for part in (head, words, body.strip()) if part)


def evolution(found: StudyResults) -> str:
    """The table, and what the rates and ranks of RMSGD's layers did."""
    figures = "\n\n".join(f"![{text}]({name})" for name, text in FIGURES.items())
    return f"{to_markdown(found).strip()}\n\n{figures}"


def _draw(found: StudyResults, folder: Path) -> None:
    (run,) = (run for run in found.runs if run.config.optimizer == "rmsgd")
    for name, chart in zip(
        FIGURES, (run.plot_rates(), run.plot_heat_map("stable_rank")), strict=True
    ):
        chart.save(str(folder / name), scale_factor=2)


FIGURES = {
    "evolution-rates.png": "Rates of RMSGD's layers over epochs",
    "evolution-stable-rank.png": "Stable rank of RMSGD's layers over epochs",
}
SECTIONS: dict[str, Callable[[StudyResults], str]] = {
    "table_1a": to_markdown,
    "table_1a_vgg": to_markdown,
    "table_1b": to_markdown,
    "rates": by_rate,
    "rates_vgg": by_rate,
    "annealed": by_option,
    "annealed_vgg": by_option,
    "beta_epochs": by_length,
    "beta_epochs_vgg": by_length,
    "beta": to_markdown,
    "batch_sizes": to_markdown,
    "imagenet_batches": to_markdown,
    "pathology": to_markdown,
    "lstm": to_markdown,
    "wgan": to_markdown,
    "epoch_times": times,
    "evolution": evolution,
    "controls": controls,
    "scale_up": scale_up,
    "untuned": to_markdown,
}
# What is said of two studies together stands below the second.
POOLED: dict[Callable[[Sequence[StudyResults]], str], tuple[str, ...]] = {
    pooled: ("annealed", "annealed_vgg"),
    next_beta: ("beta_epochs", "beta_epochs_vgg"),
    regrets: ("controls", "untuned"),
}


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="a folder of runs to make the records from")
    given = parser.parse_args()
    if given.runs is not None:
        RECORDS.mkdir(exist_ok=True)
        write_records(given.runs)
    PAGE.write_text(page(PAGE.parent), encoding="utf-8")


if __name__ == "__main__":
    main()
