"""Records of a run → rows of figures. They do as well for the newest epochs alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rankwise.files.printable import printable

__all__ = ["PARTS", "epoch_rows", "layer_rows", "main_score", "quality_rows", "time_rows"]

Records = Iterable[Mapping[str, Any]]
Row = dict[str, Any]

METRICS = ("stable_rank", "condition", "quality", "rank", "rate")
PARTS = ("data", "step", "probe", "eval", "save")  # where an epoch's seconds go
SETS = ("train", "test")
SCORES = ("accuracy", "perplexity", "frechet")


def layer_rows(records: Records) -> list[Row]:
    """A row for every layer of every epoch; its depth is its place in the epoch.

    Args:
        records: What `Run.layers()` gives: whole epochs.

    Example:
        >>> layer_rows([{"epoch": 1, "name": "fc", "stable_rank": 0.25, "rate": 0.1}])[0]["depth"]
        1
    """
    seen: Counter[int] = Counter()
    rows = []
    for record in records:
        epoch = record["epoch"]
        seen[epoch] += 1
        metrics = {metric: _number(record.get(metric)) for metric in METRICS}
        layer = printable(str(record["name"]))
        rows.append({"epoch": epoch, "layer": layer, "depth": seen[epoch], **metrics})
    return rows


def epoch_rows(records: Records, run: str = "") -> list[Row]:
    """A row for every score of every epoch, on the training and on the test set.

    Args:
        records: What `Run.epochs` holds.
        run: What to call the run where there are several.

    Example:
        >>> record = {"epoch": 1, "test": {"loss": 0.5}, "seconds": {"trained": 2.0}}
        >>> epoch_rows([record])
        [{'run': '', 'epoch': 1, 'seconds': 2.0, 'set': 'test', 'score': 'loss', 'value': 0.5}]
    """
    return [
        {**_when(record, run), "set": part, "score": str(score), "value": _number(value)}
        for record in records
        for part in SETS
        for score, value in _mapping(record.get(part)).items()
        if _number(value) is not None
    ]


def quality_rows(records: Records, run: str = "") -> list[Row]:
    """A row for Q after every epoch that has one.

    Args:
        records: What `Run.epochs` holds.
        run: What to call the run where there are several.

    Example:
        >>> quality_rows([{"epoch": 1, "quality": 0.4, "seconds": {"trained": 2.0}}], "a")
        [{'run': 'a', 'epoch': 1, 'seconds': 2.0, 'quality': 0.4}]
    """
    return [
        {**_when(record, run), "quality": _number(record["quality"])}
        for record in records
        if _number(record.get("quality")) is not None
    ]


def time_rows(records: Records) -> list[Row]:
    """A row for every part of every epoch's time.

    Args:
        records: What `Run.epochs` holds.

    Example:
        >>> time_rows([{"epoch": 1, "seconds": {"step": 0.9, "trained": 1.0}}])
        [{'epoch': 1, 'part': 'step', 'seconds': 0.9}]
    """
    found = (
        {"epoch": record["epoch"], "part": part, "seconds": _number(seconds.get(part))}
        for record in records
        for seconds in [_mapping(record.get("seconds"))]
        for part in PARTS
    )
    return [row for row in found if row["seconds"] is not None]


def main_score(records: Records) -> str:
    """The score that a run is judged by: the test set's; the loss where it has none.

    Example:
        >>> main_score([{"test": {"loss": 5.6, "perplexity": 281.4}}])
        'perplexity'
    """
    found = {score for record in records for score in _mapping(record.get("test"))}
    return next((score for score in SCORES if score in found), "loss")


def _when(record: Mapping[str, Any], run: str) -> Row:
    trained = _number(_mapping(record.get("seconds")).get("trained"))
    return {"run": run, "epoch": record["epoch"], "seconds": trained}


def _number(value: object) -> float | None:
    """A finite number; None for all else that a file may hold."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return value if known and math.isfinite(value) else None  # type: ignore[arg-type, return-value]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
