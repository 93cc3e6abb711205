"""Records of a run → rows of figures. They do as well for the newest epochs alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rankwise._text import sanitize

__all__ = ["PARTS", "epoch_rows", "layer_rows", "quality_rows", "time_rows"]

Records = Iterable[Mapping[str, Any]]
Row = dict[str, Any]

METRICS = ("stable_rank", "condition", "quality", "rank", "rate")
PARTS = ("data", "step", "probe", "eval", "save")  # where an epoch's seconds go
SETS = ("train", "test")


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
        metrics = {metric: _finite(record.get(metric)) for metric in METRICS}
        layer = sanitize(record["name"])
        rows.append({"epoch": epoch, "layer": layer, "depth": seen[epoch], **metrics})
    return rows


def epoch_rows(records: Records) -> list[Row]:
    """A row for every score of every epoch, on the training and on the test set.

    Args:
        records: What `Run.epochs` holds.

    Example:
        >>> seconds = {"trained": 2.0}
        >>> epoch_rows([{"epoch": 1, "train": {}, "test": {"loss": 0.5}, "seconds": seconds}])
        [{'epoch': 1, 'seconds': 2.0, 'set': 'test', 'score': 'loss', 'value': 0.5}]
    """
    return [
        {**_when(record), "set": part, "score": score, "value": value}
        for record in records
        for part in SETS
        for score, value in record[part].items()
        if value is not None
    ]


def quality_rows(records: Records) -> list[Row]:
    """A row for Q after every epoch that has one.

    Args:
        records: What `Run.epochs` holds.

    Example:
        >>> quality_rows([{"epoch": 1, "quality": 0.4, "seconds": {"trained": 2.0}}])
        [{'epoch': 1, 'seconds': 2.0, 'quality': 0.4}]
    """
    return [
        {**_when(record), "quality": record["quality"]}
        for record in records
        if record["quality"] is not None
    ]


def time_rows(records: Records) -> list[Row]:
    """A row for every part of every epoch's time.

    Args:
        records: What `Run.epochs` holds.

    Example:
        >>> time_rows([{"epoch": 1, "seconds": {"step": 0.9, "trained": 1.0}}])
        [{'epoch': 1, 'part': 'step', 'seconds': 0.9}]
    """
    return [
        {"epoch": record["epoch"], "part": part, "seconds": record["seconds"][part]}
        for record in records
        for part in PARTS
        if part in record["seconds"]
    ]


def _when(record: Mapping[str, Any]) -> Row:
    return {"epoch": record["epoch"], "seconds": record["seconds"]["trained"]}


def _finite(value: float | None) -> float | None:
    """A gap for what is no number: a training that is watched may have such rates."""
    return value if value is not None and math.isfinite(value) else None
