"""Write the tables of docs/adapters.md from the records that `python -m benchmarks.adapters` keeps.

python -m tools.adapter_tables
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.adapters.records import Record, Records

from tools.marks import fill_marks
from tools.results.tables import table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "adapters.md"
RECORDS = ROOT / "studies" / "records" / "adapters"
TASKS = {
    "resnet": "ResNet20, CIFAR-100 → CIFAR-10",
    "vit": "ViT, CIFAR-100 → histology",
    "gpt": "GPT, PTB → Python's manual",
    "smollm2": "SmolLM2-135M → PTB",
}
_NO_RECORDS = "(No records yet.)"


def make_extraction(lines: Sequence[Record]) -> str:
    """The share of the gain that each rule keeps, and its size, by task."""
    known = [line for line in lines if "score" in line]
    return _cross(known, [x for x in _list(known, "arm") if _is_rule(x)], _describe_extraction)


def make_equal_sizes(lines: Sequence[Record]) -> str:
    """Rules at the size of another: the difference in the share of the gain."""
    known = [line for line in lines if "score" in line and line.get("like")]
    by_key = {(x["task"], x["seed"], x["arm"]): x for x in lines if "score" in x}

    def describe(chosen: Sequence[Record]) -> str:
        differences = [
            _find_gain(line) - _find_gain(other)
            for line in chosen
            if (other := by_key.get((line["task"], line["seed"], line["like"])))
        ]
        return _format_mean(differences, sign=True)

    return _cross(known, _list(known, "arm"), describe)


def make_resizing(lines: Sequence[Record]) -> str:
    """What smaller LoRAs lose of the score."""
    known = [{**line, "row": _name_target(line)} for line in lines if "target" in line]
    return _cross(known, _list(known, "row"), _describe_resizing, key="row")


def _name_target(line: Record) -> str:
    target = line["target"]
    return line["arm"] if target is None else f"{line['arm']}, {100 * target:.0f} % of the bytes"


def make_selection(lines: Sequence[Record]) -> str:
    """The score after fine-tuning a quarter of the layers, minus that before."""
    known = [{**line, "row": _name_arm(line["arm"])} for line in lines if "parameters" in line]
    return _cross(known, _list(known, "row"), _describe_selection, key="row")


def _name_arm(arm: str) -> str:
    return "random, five draws" if arm.startswith("random") else arm


TABLES: dict[str, tuple[Callable[[Sequence[Record]], str], str]] = {
    "extraction": (make_extraction, "extraction"),
    "equal sizes": (make_equal_sizes, "extraction"),
    "resizing": (make_resizing, "resizing"),
    "selection": (make_selection, "selection"),
}


def _cross(
    lines: Sequence[Record],
    rows: Iterable[str],
    describe: Callable[[Sequence[Record]], str],
    key: str = "arm",
) -> str:
    """A table with a row for each value of a field and a column for each task."""
    tasks = [task for task in TASKS if any(line["task"] == task for line in lines)]
    if not tasks:
        return _NO_RECORDS
    body = []
    for row in rows:
        chosen = [line for line in lines if line[key] == row]
        by_task = [[line for line in chosen if line["task"] == task] for task in tasks]
        body.append([row, *(describe(some) if some else "–" for some in by_task)])
    return table([["", *(TASKS[task] for task in tasks)], *body])


def _list(lines: Sequence[Record], field: str) -> list[str]:
    return list(dict.fromkeys(line[field] for line in lines))


def _is_rule(arm: str) -> bool:
    return " of " not in arm


def _find_gain(line: Record) -> float:
    """Return the share of the fine-tune's gain that is kept."""
    return float((line["score"] - line["base"]) / (line["tuned"] - line["base"]))


def _describe_extraction(lines: Sequence[Record]) -> str:
    gain = _format_mean([_find_gain(line) for line in lines])
    size = 100 * fmean(line["parameters"] / line["full"] for line in lines)
    return f"{gain} at {size:.1f} % of the size"


def _describe_resizing(lines: Sequence[Record]) -> str:
    lost = _format_mean([line["full"] - line["score"] for line in lines], percent=False)
    return f"{lost} at {100 * fmean(line['share'] for line in lines):.0f} %"


def _describe_selection(lines: Sequence[Record]) -> str:
    return _format_mean([line["score"] - line["base"] for line in lines], percent=False)


def _format_mean(values: Sequence[float], *, percent: bool = True, sign: bool = False) -> str:
    """Return the mean and, of several, the standard deviation."""
    if not values:
        return "–"
    factor, unit = (100, " %") if percent else (1, "")
    mean = f"{factor * fmean(values):{'+' if sign else ''}.{1 if percent else 2}f}"
    spread = f" ± {factor * stdev(values):.{1 if percent else 2}f}" if len(values) > 1 else ""
    return f"{mean}{spread}{unit}".replace("-", "−")


def fill_page(page: str, records: Path) -> str:
    """Return the page with the tables that follow from a folder of records."""
    tables = {}
    for name, (make, file) in TABLES.items():
        tables[name] = make(Records(records / f"{file}.jsonl").lines)
    return fill_marks(page, tables)


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8"), RECORDS), encoding="utf-8")
