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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rankwise.lab import load_runs
from rankwise.lab.compare import Comparison
from rankwise.lab.records import Run
from rankwise.lab.scores import score_text
from rankwise.lab.study import Findings, findings, pack, read_study, to_markdown, unpack
from rankwise.lab.study.gather import gather
from rankwise.lab.study.paired import paired

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "studies" / "cpu"
RECORDS = ROOT / "studies" / "records"
PAGE = Path(__file__).with_name("results.md")
WORDS = Path(__file__).with_name("results_words.md")
WITH_LAYERS = ("evolution",)  # whose figures need the layers of every epoch
REFERENCE = "SGD, cosine"


def write_records(runs: Path) -> None:
    """Pack the runs of every study that has any there."""
    every = load_runs(runs)
    for path in sorted(STUDIES.glob("*.toml")):
        found = gather(read_study(path), every).runs
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
        parts += [_section(SECTIONS[name](one), words.get(name, "")) for name, one in found.items()]
        if pictures is not None and "evolution" in found:
            _draw(found["evolution"], pictures)
    parts += [
        _section(ranking(json.loads(path.read_bytes())), words.get(path.stem, ""))
        for path in sorted(RECORDS.glob("ranking_*.json"))
    ]
    tables = [found[name] for name in ("table_1a", "table_1a_vgg") if name in found]
    return "\n\n".join([words["results"], summary(tables), *parts]) + "\n"


def found_in(name: str, folder: Path) -> Findings:
    """What a study found, by its committed records."""
    runs = unpack(RECORDS / f"{name}.jsonl", folder)
    return findings(runs, read_study(STUDIES / f"{name}.toml"))


def _words() -> dict[str, str]:
    """The words of each section; those before the first heading are the page's own."""
    first, *parts = re.split(r"^## (\w+)\n", WORDS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = zip(parts[::2], parts[1::2], strict=True)
    return {"results": first.strip(), **{name: text.strip() for name, text in named}}


def _section(text: str, words: str) -> str:
    head, _, body = text.strip().partition("\n")
    return "\n\n".join(part for part in (head, words, body.strip()) if part)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Cells as Markdown; the first row is the head."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *body])


def summary(found: Sequence[Findings]) -> str:
    """Every method's place on each task of Table 1a, the best mean place first."""
    places: dict[str, list[int]] = {}
    tasks = []
    for one in found:
        for task in one.table.tasks:
            tasks.append(f"{task.network} {task.label}")
            scored = [entry.found.setting for entry in one.table.column(task)]
            for place, setting in enumerate(scored, 1):
                places.setdefault(setting, []).append(place)
    whole = {setting: found for setting, found in places.items() if len(found) == len(tasks)}
    rows = [
        [setting, *map(str, found), f"{fmean(found):.1f}"]
        for setting, found in sorted(whole.items(), key=lambda item: fmean(item[1]))
    ]
    head = ["place of", *tasks, "mean"]
    text = f"Places of {len(places)} methods by mean test accuracy, each with its own tuned rate:"
    return f"## Table 1a in short\n\n{text}\n\n{table([head, *rows])}"


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
        head = ["first rate", *methods, f"annealed − {REFERENCE} [95 %]"]
        rows = [
            [f"{rate:g}", *(_cell(cells.get((m, rate))) for m in methods), _gain(cells, rate)]
            for rate in rates
        ]
        parts += [f"**{task.label}** (test accuracy)", table([head, *rows])]
    return "\n\n".join(part for part in parts if part)


def _cell(one: Comparison | None) -> str:
    return f"{score_text(one.values, one.score)} (n = {len(one.values)})" if one else "–"


def _gain(cells: dict[tuple[str, float], Comparison], rate: float) -> str:
    first, second = (cells.get((method, rate)) for method in ("RMSGD, annealed", REFERENCE))
    if first is None or second is None:
        return "–"
    return _difference(first, second)


def _difference(first: Comparison, second: Comparison) -> str:
    test = paired(_by_seed(first), _by_seed(second))
    if test.difference is None or test.low is None or test.high is None or test.p is None:
        return "–"
    text = f"{100 * test.difference:+.1f} [{100 * test.low:+.1f}, {100 * test.high:+.1f}]"
    return f"{text}, p = {test.p:.2g}, {test.n} seeds"


def _by_seed(one: Comparison) -> dict[int, float]:
    return dict(zip((run.config.seed for run in one.finished), one.values, strict=True))


def by_length(found: Findings) -> str:
    """A table of β for each number of epochs, with the share of the first rate that it leaves."""
    parts = [f"## {found.title}", found.about, _state(found)]
    lengths: dict[int, dict[float, Comparison]] = {}
    for entry in found.table.entries.values():
        config = entry.found.runs[0].config
        lengths.setdefault(config.epochs or 0, {})[config.beta or 0.0] = entry.found
    rows = [
        [str(epochs), f"{beta:g}", f"{beta**epochs:.1%}", _cell(cells[beta]), _lead(cells, beta)]
        for epochs, cells in sorted(lengths.items())
        for beta in sorted(cells)
    ]
    head = ["epochs", "β", "left of the first rate", "test accuracy", "− the smallest β [95 %]"]
    return "\n\n".join([*parts, table([head, *rows])])


def _lead(cells: dict[float, Comparison], beta: float) -> str:
    return "" if beta == min(cells) else _difference(cells[beta], cells[min(cells)])


def _state(found: Findings) -> str:
    machines = "; ".join(found.machines)
    left = f" {found.missing} of {found.asked} runs are still to be done." if found.missing else ""
    return f"{machines}.{left}"


def times(found: Findings) -> str:
    """Seconds of an epoch, without its tests, and the probe's part of it."""
    rows = []
    for (setting, _), entry in found.table.entries.items():
        runs = entry.found.finished
        steps = [_seconds(run, "data", "step") for run in runs]
        rows.append((setting, steps, median(_seconds(run, "probe") for run in runs)))
    sgd = next(median(steps) for setting, steps, _ in rows if setting == REFERENCE)
    head = ["optimizer", "s an epoch", "runs", "÷ SGD", "probe, s an epoch", "probe's share"]
    lines = [
        [
            name,
            f"{median(steps):.2f}",
            f"{min(steps):.2f} … {max(steps):.2f}",
            f"{median(steps) / sgd:.2f}",
            f"{probe:.3f}",
            f"{probe / median(steps):.1%}",
        ]
        for name, steps, probe in sorted(rows, key=lambda row: median(row[1]))
    ]
    n = max(len(steps) for _, steps, _ in rows)
    text = (
        f"Data and steps, without tests; the median of {n} runs, their range, the first epoch left "
        "out. All runs are probed for their records, but only RMSGD needs it."
    )
    return "\n\n".join([f"## {found.title}", _state(found), text, table([head, *lines])])


def _seconds(run: Run, *clocks: str) -> float:
    return median(sum(record["seconds"][c] for c in clocks) for record in run.epochs[1:])


def evolution(found: Findings) -> str:
    """The table, and what the rates and ranks of RMSGD's layers did."""
    figures = "\n\n".join(f"![{text}]({name})" for name, text in FIGURES.items())
    return f"{to_markdown(found).strip()}\n\n{figures}"


def _draw(found: Findings, folder: Path) -> None:
    (run,) = (run for run in found.runs if run.config.optimizer == "rmsgd")
    for name, chart in zip(
        FIGURES, (run.plot_rates(), run.plot_heat_map("stable_rank")), strict=True
    ):
        chart.save(str(folder / name), scale_factor=2)


def ranking(found: dict[str, Any]) -> str:
    """What `rankwise study correlate` found: the verdict, and every score on every family."""
    count = sum(family["networks"] for family in found["families"])
    verdict, *more = found["verdict"]
    parts = [f"## How scores rank {count} networks: `{found['source']}`", f"**{verdict}**", *more]
    for kind, text in (("accuracy", "test accuracy"), ("gap", "generalisation gap")):
        families = [family for family in found["families"] if family[kind]]
        if families:
            head = f"SROCC with {text} [95 %], p adjusted by Holm:"
            parts += [head, _scores(families, kind, found["scores"])]
    parts += [f"{family['name']}: {family['words']}" for family in found["families"]]
    return "\n\n".join(parts)


def _scores(families: Sequence[dict[str, Any]], kind: str, formulas: dict[str, str]) -> str:
    heads = [f"{f['name']} (n = {f['networks']}, {f['groups']} groups)" for f in families]
    names = [ranked["name"] for ranked in families[0][kind]]
    rows = [
        [f"{name}: {formulas[name]}", *(_coefficient(f[kind][place]) for f in families)]
        for place, name in enumerate(names)
    ]
    return table([["score", *heads], *rows])


def _coefficient(ranked: dict[str, Any]) -> str:
    one = ranked["srocc"]
    if one["value"] is None:
        return "–"
    interval = "" if one["low"] is None else f" [{one['low']:.2f}, {one['high']:.2f}]"
    p = "" if ranked["adjusted"] is None else f", p = {ranked['adjusted']:.2g}"
    return f"{one['value']:.2f}{interval}{p}"


FIGURES = {
    "evolution-rates.png": "Rates of RMSGD's layers over epochs",
    "evolution-stable-rank.png": "Stable rank of RMSGD's layers over epochs",
}
SECTIONS: dict[str, Callable[[Findings], str]] = {
    "table_1a": to_markdown,
    "table_1a_vgg": to_markdown,
    "table_1b": to_markdown,
    "rates": by_rate,
    "rates_vgg": by_rate,
    "annealed": to_markdown,
    "beta_epochs": by_length,
    "beta": to_markdown,
    "batch_sizes": to_markdown,
    "imagenet_batches": to_markdown,
    "pathology": to_markdown,
    "lstm": to_markdown,
    "wgan": to_markdown,
    "epoch_times": times,
    "evolution": evolution,
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
