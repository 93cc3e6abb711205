"""Write docs/results.md and docs/results-tables.md from studies/records; nothing is trained.

make results                                        # the pages and their figures, from the records
.venv/bin/python -m tools.results --runs runs       # first the records, from a folder of runs
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.results.pages import write_pages, write_records


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="a folder of runs to make the records from")
    given = parser.parse_args()
    if given.runs is not None:
        write_records(given.runs)
    write_pages()


if __name__ == "__main__":
    main()
