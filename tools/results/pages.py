"""The two pages of results: findings, and the long tables, from records and words.

`studies/records/NAME.jsonl` holds the runs of `studies/cpu/NAME.toml`, `ranking_*.json` what
`rankwise study correlate --json` wrote. Words stand in findings.md, with a mark for each table, and
in sections.md, with a heading for each section; every table comes from the records.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
from tools.results.controls import controls, summarize_controls
from tools.results.tables import (
    by_length,
    by_option,
    by_rate,
    compare_scales,
    next_beta,
    pooled,
    ranking,
    scale_up,
    summary,
    times,
)
from tools.results.untuned import regrets

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies" / "cpu"
RECORDS = ROOT / "studies" / "records"
FINDINGS = ROOT / "docs" / "results.md"
TABLES = ROOT / "docs" / "results-tables.md"
WORDS = Path(__file__).parent
WITH_LAYERS = ("evolution",)  # whose figures need the layers of every epoch


def write_records(runs: Path) -> None:
    """Pack the runs of every study that has any there, with those that were packed before."""
    every = load_runs(runs)
    RECORDS.mkdir(exist_ok=True)
    for path in sorted(STUDIES.glob("*.toml")):
        study = read_study(path)
        found = {r.config.name: r for r in select_runs(study, every) if r.status != "unfinished"}
        if not found:
            continue
        records = RECORDS / f"{path.stem}.jsonl"
        with tempfile.TemporaryDirectory() as folder:
            known = unpack(records, Path(folder) / "runs") if records.exists() else []
            merged = {run.config.name: run for run in known} | found
            packed = pack(list(merged.values()), layers=path.stem in WITH_LAYERS)
        records.write_text(packed, encoding="utf-8")


def write_pages() -> None:
    """Write both pages, and the figures of the second."""
    with tempfile.TemporaryDirectory() as folder:
        found = read_records(Path(folder))
        FINDINGS.write_text(make_findings(found), encoding="utf-8")
        TABLES.write_text(make_tables(found), encoding="utf-8")
        if "evolution" in found:
            _draw(found["evolution"], TABLES.parent)


def read_records(folder: Path) -> dict[str, StudyResults]:
    """Return what every study with records found; the runs are unpacked into a folder."""
    return {
        name: read_found(name, folder / name)
        for name in SECTIONS
        if (RECORDS / f"{name}.jsonl").exists()
    }


def read_found(name: str, folder: Path) -> StudyResults:
    """Return what a study found, by its committed records."""
    runs = unpack(RECORDS / f"{name}.jsonl", folder)
    return collect_results(runs, read_study(STUDIES / f"{name}.toml"))


def make_findings(found: Mapping[str, StudyResults]) -> str:
    """Return the short page: its words, with a table in the place of every mark."""
    words = (WORDS / "findings.md").read_text(encoding="utf-8")

    def make(match: re.Match[str]) -> str:
        table, names = MARKS[match[1]]
        missing = [name for name in names if name not in found]
        if missing:
            return f"(No records of {' and '.join(missing)} yet.)"
        open_runs = [f"{n} of {name}" for name in names if (n := found[name].missing)]
        text = table([found[name] for name in names])
        if not open_runs:
            return text
        missing_runs = f"runs that are missing yet: {', '.join(open_runs)}"
        return f"**Not complete, so nothing follows from this table:** {missing_runs}.\n\n{text}"

    return re.sub(r"^<!-- (\w+) -->$", make, words, flags=re.MULTILINE)


def make_tables(found: Mapping[str, StudyResults]) -> str:
    """Return the long page: a section for every study, with what is said of some together."""
    words = _read_words()
    sections = {n: _section(SECTIONS[n](one), words.get(n, "")) for n, one in found.items()}
    for together, names in POOLED.items():
        if found.keys() >= set(names):
            sections[names[-1]] += "\n\n" + together([found[name] for name in names])
    rankings = [
        _section(ranking(json.loads(path.read_bytes())), words.get(path.stem, ""))
        for path in sorted(RECORDS.glob("ranking_*.json"))
    ]
    tables = [found[name] for name in ("table_1a", "table_1a_vgg") if name in found]
    return "\n\n".join([words["page"], summary(tables), *sections.values(), *rankings]) + "\n"


def _read_words() -> dict[str, str]:
    """Return the words of each section; those before the first heading are the page's own."""
    text = (WORDS / "sections.md").read_text(encoding="utf-8")
    first, *parts = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)
    named = zip(parts[::2], parts[1::2], strict=True)
    return {"page": first.strip(), **{name: text.strip() for name, text in named}}


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
# The tables of the short page, each from some studies.
MARKS: dict[str, tuple[Callable[[Sequence[StudyResults]], str], tuple[str, ...]]] = {
    "controls": (summarize_controls, ("controls",)),
    "untuned": (regrets, ("controls", "untuned")),
    "scale": (compare_scales, ("scale_up",)),
}
