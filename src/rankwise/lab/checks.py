"""Whether a line of a run's records is as we write it; files are edited, cut and damaged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

__all__ = ["CHECKS", "is_epoch"]

Record = dict[str, Any]

_EPOCH = {"epoch", "train", "test", "quality", "rates", "seconds"}
_COLUMNS = {"name", "stable_rank", "condition", "quality", "rank", "rate"}
_DEEP = 6  # levels of what a start tells; twice as many as there are
_AGES = 1e12  # seconds


def is_epoch(found: object) -> TypeGuard[Record]:
    """Whether it is what a run writes about an epoch: all that reads records may rely on it.

    Args:
        found: A line of epochs.jsonl. Null stands for a figure that is no number.

    Example:
        >>> from rankwise.lab.checks import is_epoch
        >>> is_epoch({"epoch": 1, "test": None})
        False
    """
    return (
        isinstance(found, dict)
        and found.keys() >= _EPOCH
        and _is_count(found["epoch"])
        and _are_figures(found["train"])
        and _are_figures(found["test"])
        and isinstance(found["seconds"], dict)
        and all(map(_is_time, found["seconds"].values()))
        and "trained" in found["seconds"]
        and _is_figure(found["quality"])
        and (found["rates"] is None or _is_column(found["rates"], 2))
        and not any(isinstance(found[key], dict | list) for key in found.keys() - _EPOCH)
    )


def _are_layers(found: object) -> bool:
    if not (isinstance(found, dict) and _is_count(found.get("epoch"))):
        return False
    columns = found.get("layers")
    if not (isinstance(columns, dict) and columns.keys() == _COLUMNS):
        return False
    names = columns["name"]
    return (
        isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and all(_is_column(columns[metric], len(names)) for metric in _COLUMNS - {"name"})
    )


def _is_session(found: object) -> bool:
    if not (isinstance(found, dict) and isinstance(found.get("started"), str)):
        return False
    hardware = found.get("hardware", {})
    return (
        isinstance(found.get("versions", {}), dict)
        and isinstance(hardware, dict)
        and isinstance(hardware.get("accelerators", []), list)
        and all(isinstance(name, str) for name in hardware.get("accelerators", []))
        and _is_plain(found, _DEEP)
    )


def _is_budget(found: object) -> bool:
    return isinstance(found, dict) and _is_figure(found.get("seconds"))


def _is_outcome(found: object) -> bool:
    return isinstance(found, dict) and (not found.get("epochs") or _is_count(found["epochs"]))


CHECKS: dict[str, Callable[[object], bool]] = {
    "epochs.jsonl": is_epoch,
    "layers.jsonl": _are_layers,
    "sessions.jsonl": _is_session,
    "budget.json": _is_budget,
    "outcome.json": _is_outcome,
}


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0 and _is_figure(value)


def _is_time(value: object) -> bool:
    """Whether it is a number of seconds, of which many can be added up."""
    return isinstance(value, int | float) and _is_figure(value) and 0 <= value < _AGES


def _is_figure(value: object) -> bool:
    """Whether it is a finite number or null; JSON has integers beyond all floats."""
    if value is None or isinstance(value, bool):
        return value is None
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def _are_figures(found: object) -> bool:
    return isinstance(found, dict) and all(map(_is_figure, found.values()))


def _is_column(found: object, length: int) -> bool:
    return isinstance(found, list) and len(found) == length and all(map(_is_figure, found))


def _is_plain(found: object, levels: int) -> bool:
    """Whether nothing in it is nested deeper than that, and no number is one JSON does not have."""
    if isinstance(found, float):
        return math.isfinite(found)
    inside = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    return levels > 0 and all(_is_plain(item, levels - 1) for item in inside)
