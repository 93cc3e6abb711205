"""Records of experiments: a line of JSON for each, added as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


class Records:
    """The records of one experiment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.lines: list[Record] = [json.loads(line) for line in lines]

    def has(self, key: Record) -> bool:
        """Return whether a record has all these fields."""
        return any(key.items() <= line.items() for line in self.lines)

    def find(self, key: Record) -> Record:
        """Return the record with all these fields."""
        return next(line for line in self.lines if key.items() <= line.items())

    def add(self, record: Record) -> None:
        """Add a record to the file."""
        self.lines.append(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        print(json.dumps(record, ensure_ascii=False), flush=True)

    def choose_rate(
        self, key: Record, rates: Sequence[float], measure: Callable[[float], float]
    ) -> float:
        """Return the rate with the best score on held-out data; these scores are recorded too."""
        scores = {}
        for rate in rates:
            own = {**key, "held_out_rate": rate}
            if not self.has(own):
                self.add({**own, "score": measure(rate)})
            scores[rate] = self.find(own)["score"]
        return max(scores, key=lambda rate: scores[rate])
