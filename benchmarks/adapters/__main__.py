"""Run the experiments behind docs/adapters.md; each adds lines to its records and can be repeated.

python -m benchmarks.adapters base --work W --data-root D          # train the networks
python -m benchmarks.adapters selection vit --work W --data-root D
python -m benchmarks.adapters extraction resnet --work W --data-root D --seeds 1 2 3
python -m benchmarks.adapters resizing vit --work W --data-root D
python -m benchmarks.adapters language-model --work W --data-root D
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.adapters.extraction import SEEDS, measure_extraction
from benchmarks.adapters.language_model import measure_language_model
from benchmarks.adapters.records import Records
from benchmarks.adapters.resizing import measure_resizing
from benchmarks.adapters.selection import measure_selection
from benchmarks.adapters.tasks import TASKS, make_base

RECORDS = Path("studies/records/adapters")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    experiments = ["base", "extraction", "language-model", "resizing", "selection"]
    parser.add_argument("experiment", choices=experiments)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--work", type=Path, required=True, help="a folder for networks")
    parser.add_argument("--data-root", type=Path, required=True, help="the folder of data sets")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS), help="of extraction")
    given = parser.parse_args()
    if given.experiment == "selection":
        records = Records(RECORDS / "selection.jsonl")
        measure_selection(given.tasks, given.work, given.data_root, records)
        return
    if given.experiment == "resizing":
        records = Records(RECORDS / "resizing.jsonl")
        measure_resizing(given.tasks, given.work, given.data_root, records)
        return
    if given.experiment == "extraction":
        records = Records(RECORDS / "extraction.jsonl")
        measure_extraction(given.tasks, given.work, given.data_root, records, given.seeds)
        return
    if given.experiment == "language-model":
        records = Records(RECORDS / "extraction.jsonl")
        measure_language_model(given.work, given.data_root, records)
        return
    for name in given.tasks:
        task = TASKS[name]
        network, data = make_base(task, given.work, given.data_root)
        print(f"{name}: {task.score(network, data.test):.2f} before fine-tuning", flush=True)


if __name__ == "__main__":
    main()
